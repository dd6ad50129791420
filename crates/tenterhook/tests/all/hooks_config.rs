//! `[hooks_config]`: the switches and options of the usual hooks, as another way to write `[[hooks]]`.

use serde_json::Value;

use crate::lab::{Lab, TINY};

const SWITCHES: &str = r#"
[hooks_config]
enable_logging_hook = true
enable_gradient_monitor = true
enable_model_checkpoint_hook = true
enable_early_stopping_hook = true
enable_lr_monitor = true
hook_classes = ["json_log"]

[hooks_config.hook_configs.json_log]
log_every_n_batches = 10

[hooks_config.gradient_monitor_config]
log_frequency = 10
log_histogram = true
log_norm = true
param_filter = ["attn", "mlp"]
percentiles = [10, 50, 90]

[hooks_config.model_checkpoint_config]
save_top_k = 3
monitor = "val/loss"
mode = "min"
save_last = true
save_on_train_epoch_end = false
filename = "epoch_{epoch}_loss_{val/loss:.2f}"
auto_insert_metric_name = false

[hooks_config.early_stopping_config]
monitor = "val/loss"
patience = 10
mode = "min"
min_delta = 0.0001
check_on_train_epoch_end = false
strict = true
verbose = true

[hooks_config.lr_monitor_config]
log_momentum = true
log_weight_decay = true
frequency = "epoch"
"#;

#[test]
fn all_switches_together_train_a_run() {
    let lab = Lab::with(&format!("{TINY}{SWITCHES}"));
    let ran = lab.ok(&["train", "run.toml"]);
    let record = lab.record("tiny");
    let kinds = record["hooks"].as_array().unwrap().iter().map(|hook| hook["kind"].as_str().unwrap());
    let every_run_has = ["identity_update", "grad_coverage"];
    let kinds: Vec<&str> = kinds.filter(|kind| !every_run_has.contains(kind)).collect();
    let switched =
        ["json_log", "console_log", "gradient_monitor", "model_checkpoint", "early_stopping", "lr_monitor"];
    assert_eq!(kinds[..6], switched, "in this order");

    assert!(
        ran.stderr.contains("step 40/40  epoch ")
            && ran.stderr.contains("early_stopping: `val/loss` improved")
    );
    assert!(lab.run_dir("tiny").join("logs/json_log.jsonl").is_file());
    let names = lab.checkpoints("tiny");
    assert_eq!(names.iter().filter(|name| name.starts_with("epoch_")).count(), 3, "{names:?}");
    assert_eq!(names.iter().filter(|name| name.starts_with("last-")).count(), 1, "{names:?}");

    let rows = lab.metrics("tiny");
    let with = |name: &str| rows.iter().filter(|row| row.get(name).is_some()).collect::<Vec<&Value>>();
    // Two batches make a step, and still the first step of every epoch is one.
    let epochs = rows.last().unwrap()["epoch"].as_u64().unwrap() as usize + 1;
    for name in ["lr/adamw/decay", "momentum/adamw/decay", "weight_decay/adamw/decay"] {
        assert_eq!(with(name).len(), epochs, "{name}");
    }
    for name in ["grad_norm/transformer.h.0.attn.c_attn.weight", "grad_p90/transformer.h.0.mlp.c_fc.bias"] {
        assert_eq!(with(name).len(), 4, "{name}");
    }
    assert!(with("grad_norm/transformer.wte.weight").is_empty(), "not in `param_filter`");
}

#[test]
fn options_that_would_do_nothing_are_errors() {
    for (more, told) in [
        (
            "early_stopping_config = {patience = 2}",
            "would do nothing without enable_early_stopping_hook = true",
        ),
        ("hook_configs = {json_log = {}}", "is not among `hook_classes`, so these options would do nothing"),
        ("hook_classes = [\"json_lgo\"]", "json_log"),
        ("enable_lr_monitr = true", "enable_lr_monitor"),
    ] {
        let lab = Lab::with(&format!("{TINY}\n[hooks_config]\n{more}\n"));
        let ran = lab.run(&["train", "run.toml"]);
        assert_eq!(ran.code, Some(2), "{more}");
        assert!(ran.stderr.contains(told), "{more}: {}", ran.stderr);
    }
}
