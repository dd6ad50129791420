//! What may change when a run is resumed.

use serde_json::Value;

use super::path;
use tenterhook_record::differences::{Difference, HOOK_ORDER, differences_with};

/// These change neither the weights nor the data.
const FREE: [&str; 11] = [
    "run",
    "train.steps",
    "train.epochs",
    "train.max_time",
    "train.log_every",
    "train.watchdog",
    "train.debug",
    "train.keep_checkpoints",
    "train.checkpoint_every",
    "ranks.check_every",
    "ranks.bucket_mb",
];

/// Hooks that only tell.
const LOGGING: [&str; 12] = [
    "activation_stats",
    "console_log",
    "csv_log",
    "gradient_monitor",
    "head_scores",
    "json_log",
    "lr_monitor",
    "model_summary",
    "progress",
    "tensorboard",
    "throughput",
    "webhook",
];

/// What differs between two resolved configurations ([`RunConfig::to_value`](super::RunConfig::to_value)) and may not change when a run
/// is resumed: each key with its old and its new value. Hooks are named by their ids.
pub fn resume_differences(old: &Value, new: &Value) -> Vec<String> {
    let counts = |hook: &Value| !only_tells(hook);
    let is_free = |key: &str| FREE.iter().any(|free| path::is_within(key, free));
    let found = differences_with(old, new, counts).into_iter().filter(|difference| !is_free(&difference.key));
    found.map(|difference| in_words(&difference)).collect()
}

/// Whether a hook only tells: the results of a run are the same without it.
pub(super) fn only_tells(hook: &Value) -> bool {
    hook["kind"].as_str().is_some_and(|kind| LOGGING.contains(&kind))
}

fn in_words(difference: &Difference) -> String {
    let Difference { key, a, b } = difference;
    let order = |ids: &Option<Value>| {
        let ids = ids.iter().filter_map(Value::as_array).flatten();
        ids.filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
    };
    if key == HOOK_ORDER {
        return format!("hooks: the order was {}, is {}", order(a), order(b));
    }
    let shown =
        |value: &Option<Value>| value.as_ref().map_or_else(|| "not set".to_string(), Value::to_string);
    format!("{key}: was {}, is {}", shown(a), shown(b))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> Value {
        json!({
            "run": {"seed": 1, "dir": "runs"},
            "model": {"kind": "gpt", "width": 64},
            "data": {"train": [{"kind": "text", "batch": 8}], "val": []},
            "train": {"steps": 10, "grad_clip": 1.0, "log_every": 1},
            "optimizer": [{"kind": "adamw", "lr": 1, "betas": [0.9, 0.99]}],
            "hooks": [
                {"kind": "console_log"},
                {"kind": "early_stopping", "patience": 3},
                {"kind": "ema", "decay": 0.99},
                {"kind": "early_stopping", "id": "second", "patience": 5},
            ],
        })
    }

    #[test]
    fn only_what_leaves_the_training_alone_may_change() {
        let cases: &[(&str, Value, &[&str])] = &[
            ("/run/seed", json!(2), &[]),
            ("/run/name", json!("x"), &[]),
            ("/train/steps", json!(20), &[]),
            ("/train/max_time", json!(60), &[]),
            ("/train/log_every", json!(5), &[]),
            ("/train/checkpoint_every", json!(5), &[]),
            ("/optimizer/0/lr", json!(1.0), &[]),
            ("/hooks/0", json!({"kind": "json_log"}), &[]),
            ("/train/grad_clip", json!(2.0), &["train.grad_clip: was 1.0, is 2.0"]),
            ("/train/grad_clip_value", json!(2.0), &["train.grad_clip_value: was not set, is 2.0"]),
            ("/model/kind", json!("llama"), &["model.kind: was \"gpt\", is \"llama\""]),
            ("/data/train/0/batch", json!(4), &["data.train[0].batch: was 8, is 4"]),
            ("/data/val", json!([{"kind": "text"}]), &["data.val[0].kind: was not set, is \"text\""]),
            (
                "/optimizer/0/betas",
                json!([0.9, 0.95]),
                &["optimizer[0].betas: was [0.9,0.99], is [0.9,0.95]"],
            ),
            ("/hooks/1/patience", json!(4), &["hooks.early_stopping.patience: was 3, is 4"]),
            ("/hooks/3/patience", json!(4), &["hooks.second.patience: was 5, is 4"]),
            (
                "/hooks/2",
                json!({"kind": "progress"}),
                &["hooks.ema.decay: was 0.99, is not set", "hooks.ema.kind: was \"ema\", is not set"],
            ),
            ("/schedule", json!({"kind": "cosine"}), &["schedule.kind: was not set, is \"cosine\""]),
        ];
        for (pointer, value, expected) in cases {
            let mut changed = config();
            match changed.pointer_mut(pointer) {
                Some(place) => *place = value.clone(),
                None => {
                    let (parent, key) = pointer.rsplit_once('/').unwrap();
                    changed.pointer_mut(parent).unwrap()[key] = value.clone();
                }
            }
            assert_eq!(resume_differences(&config(), &changed), *expected, "{pointer}");
        }
    }

    #[test]
    fn the_order_of_hooks_matters_but_not_that_of_logging_ones() {
        let mut changed = config();
        changed["hooks"].as_array_mut().unwrap().rotate_left(1);
        assert_eq!(resume_differences(&config(), &changed), Vec::<String>::new());
        changed["hooks"].as_array_mut().unwrap().swap(0, 1);
        assert_eq!(
            resume_differences(&config(), &changed),
            ["hooks: the order was early_stopping, ema, second, is ema, early_stopping, second"]
        );
    }
}
