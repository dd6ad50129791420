//! Hooks that decide: when a run ends, what is kept, how fast and what it learns.

use super::cases::{Case, case, check};
use super::scene::{Config, inside};
use super::see::{checkpoints, end, rows, weights};

pub(super) fn cases() -> Vec<Case> {
    [early_stopping(), model_checkpoint(), reduce_lr_on_plateau(), others()].concat()
}

fn early_stopping() -> Vec<Case> {
    const HOPELESS: &str = "min_delta = 1e9\npatience = 1";
    vec![
        case("early_stopping.monitor", ["\"val/loss\"", "\"none\""], end)
            .with("min_delta = 1e9\npatience = 1\nstrict = false"),
        case("early_stopping.patience", ["1", "9"], end).with("min_delta = 1e9"),
        // After the second check exactly one of them has seen no improvement.
        case("early_stopping.mode", ["\"min\"", "\"max\""], end).with("patience = 1"),
        case("early_stopping.min_delta", ["0.0", "1e9"], end).with("patience = 1"),
        case("early_stopping.check_on_train_epoch_end", ["false", "true"], end).with(HOPELESS),
        case("early_stopping.strict", ["true", "false"], end).with("monitor = \"none\""),
    ]
}

fn model_checkpoint() -> Vec<Case> {
    let kept = |option, values| case(option, values, checkpoints);
    vec![
        kept("model_checkpoint.save_top_k", ["1", "2"]),
        kept("model_checkpoint.monitor", ["", "\"val/loss\""]),
        kept("model_checkpoint.mode", ["\"min\"", "\"max\""]).with("monitor = \"val/loss\""),
        kept("model_checkpoint.save_last", ["false", "true"]),
        kept("model_checkpoint.save_on_train_epoch_end", ["false", "true"]).with("save_top_k = -1"),
        kept("model_checkpoint.save_every_n_epochs", ["1", "2"]).with("save_top_k = -1"),
        kept("model_checkpoint.save_every_n_steps", ["1", "3"]).with("save_top_k = -1"),
        kept("model_checkpoint.filename", ["", "\"epoch_{epoch}_loss_{val/loss:.2f}\""]),
        kept("model_checkpoint.auto_insert_metric_name", ["true", "false"]).with("filename = \"{epoch}\""),
    ]
}

/// What never improves reduces after every validation but the first.
fn reduce_lr_on_plateau() -> Vec<Case> {
    const HOPELESS: &str = "threshold = 1e9\nthreshold_mode = \"abs\"\npatience = 0";
    let rates = |option, values| case(option, values, rows).set("train.validate_every=1");
    vec![
        rates("reduce_lr_on_plateau.monitor", ["\"val/loss\"", "\"val/accuracy\""]).with("patience = 0"),
        rates("reduce_lr_on_plateau.mode", ["\"min\"", "\"max\""]).with("patience = 0"),
        rates("reduce_lr_on_plateau.factor", ["0.5", "0.1"]).with(HOPELESS),
        rates("reduce_lr_on_plateau.patience", ["0", "9"]).with("threshold = 1e9\nthreshold_mode = \"abs\""),
        rates("reduce_lr_on_plateau.threshold", ["0.0", "0.9"]).with("patience = 0"),
        // The losses are about 1.8: a share of them is more than the number itself, and the second is better by something in between.
        rates("reduce_lr_on_plateau.threshold_mode", ["\"rel\"", "\"abs\""])
            .with("patience = 0\nthreshold = 0.005"),
        rates("reduce_lr_on_plateau.cooldown", ["0", "2"]).with(HOPELESS),
        rates("reduce_lr_on_plateau.min_lr", ["0.0", "5e-3"]).with(HOPELESS),
    ]
}

fn others() -> Vec<Case> {
    vec![
        case("ema.decay", ["0.5", "0.99"], rows),
        case("ema.start_step", ["0", "4"], rows).with("decay = 0.9"),
        case("ema.use_for_validation", ["true", "false"], rows).with("decay = 0.9"),
        case("freeze.params", ["[\"*\"]", "[\"*ln*\"]"], weights),
        case("freeze.until_epoch", ["", "1"], weights).with("params = [\"*\"]"),
        case("max_time.duration", ["\"1h\"", "1e-6"], end),
    ]
}

/// A limit of the run and one of a hook both hold, whichever is the shorter.
#[test]
fn both_time_limits_hold() {
    for (hook, train) in [("1e-6", "train.max_time=3600"), ("3600", "train.max_time=0.001")] {
        let hooks = format!("[[hooks]]\nkind = \"max_time\"\nduration = {hook}\n");
        let seen = inside(&Config { hooks, set: vec![train] });
        assert!(seen.end.starts_with("stopped after "), "{hook} {train}: {}", seen.end);
    }
}

#[test]
fn every_option_of_a_hook_that_decides_makes_a_difference() {
    check(&cases());
}
