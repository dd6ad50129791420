//! Watching a run does not change it.

use serde_json::{Value, json};
use tenterhook::hooks::hook_fn;
use tenterhook::train::data::Loader;
use tenterhook::train::optim::Clip;
use tenterhook::train::{Settings, Trainer};
use tenterhook::training::registry;

use crate::small::{Bits, adamw, bits, one, record_in, tiny_gpt, tokens};

/// The weights after 30 steps of a small transformer with dropout, accumulation, clipping and validation.
fn final_weights(attach: impl FnOnce(&mut Trainer)) -> Bits {
    let dir = tempfile::tempdir().unwrap();
    let task = tiny_gpt();
    let data = one(Loader { shuffle: true, ..Loader::new("train", tokens(24), 4) });
    let settings = Settings {
        grad_accumulation: 2,
        clip: Clip::Norm(0.5),
        validate_every: Some(tenterhook::train::config::ValidateEvery::Steps(10)),
        ..Settings::steps(30)
    };
    let trainer = Trainer::new(task.clone(), data, adamw(&*task, 3e-3), settings).unwrap();
    let trainer = trainer.with_validation(vec![Loader::new("val", tokens(4), 2)]);
    let mut trainer = trainer.with_run(record_in(dir.path()));
    trainer.hooks().remove_all();
    attach(&mut trainer);
    let finished = trainer.train().unwrap();
    assert_eq!((finished.steps, finished.degraded), (30, false), "{:?}", trainer.errors());
    for hook in trainer.list_hooks() {
        assert!(hook.receipt.fired + hook.receipt.events > 0, "{} watched nothing", hook.id);
    }
    bits(&*task)
}

/// Every built-in kind that only looks, on everything.
fn observers() -> Vec<Value> {
    let measures =
        json!(["mean", "std", "norm", "zeros", { "percentiles": [5, 95] }, { "histogram": 8 }, "time"]);
    vec![
        json!({ "kind": "capture", "points": "*", "retention": "last" }),
        json!({ "kind": "capture", "points": "*", "gradients": true, "retention": "last", "id": "gradients" }),
        json!({ "kind": "monitor", "points": "*", "metrics": measures }),
        json!({ "kind": "debug", "gradients": true }),
        json!({ "kind": "gradient_flow", "points": "*" }),
        json!({ "kind": "activation_stats", "points": "*", "validation": true }),
        json!({ "kind": "head_scores", "validation": true }),
        json!({ "kind": "gradient_monitor", "log_frequency": 1, "log_histogram": true }),
        json!({ "kind": "grad_coverage", "every_step": true }),
        json!({ "kind": "identity_update" }),
        json!({ "kind": "tensorboard" }),
        json!({ "kind": "json_log", "log_every_n_batches": 1 }),
        json!({ "kind": "csv_log" }),
        json!({ "kind": "lr_monitor" }),
        json!({ "kind": "throughput" }),
        json!({ "kind": "ema" }),
        json!({ "kind": "early_stopping", "monitor": "val/loss", "patience": 100 }),
        json!({ "kind": "model_checkpoint", "monitor": "val/loss" }),
        json!({ "kind": "max_time", "duration": "1h" }),
    ]
}

#[test]
fn p16_training_is_the_same_with_every_observer_on_everything() {
    let alone = final_weights(|_| {});
    let watched = final_weights(|trainer| {
        for spec in observers() {
            trainer.add_hook_from(&registry(), &spec).unwrap();
        }
    });
    assert_eq!(alone, watched);
}

#[test]
fn p16_training_is_the_same_with_a_hundred_observers() {
    let alone = final_weights(|_| {});
    let watched = final_weights(|trainer| {
        for _ in 0..50 {
            trainer
                .add_hook(hook_fn::observe("*", |_, x, cx| {
                    cx.log("size", x.elem_count() as f64);
                    Ok(())
                }))
                .unwrap();
            trainer.add_hook(hook_fn::observe_gradient("*", |_, _, _| Ok(()))).unwrap();
        }
        assert_eq!(trainer.list_hooks().len(), 100);
    });
    assert_eq!(alone, watched);
}
