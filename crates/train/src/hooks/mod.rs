//! The built-in hooks. Each is one file: its options, its code, its documentation and its tests.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use tenterhook_hooks::{AttachError, Hook, HookRegistry};

mod activation_stats;
mod checkpoint_names;
mod console;
mod console_log;
mod csv_log;
mod early_stopping;
mod ema;
mod freeze;
mod grad_coverage;
mod gradient_monitor;
mod identity_update;
mod json_log;
mod log_file;
mod lr_monitor;
mod max_time;
mod model_checkpoint;
mod model_summary;
mod monitored;
mod progress;
mod reduce_lr_on_plateau;
mod template;
mod tensorboard;
#[cfg(test)]
mod test_support;
mod throughput;
mod webhook;

pub use activation_stats::{ActivationStat, ActivationStats, ActivationStatsOptions};
pub use console_log::{ConsoleLog, ConsoleLogOptions};
pub use csv_log::{CsvLog, CsvLogOptions};
pub use early_stopping::{EarlyStopping, EarlyStoppingOptions};
pub use ema::{Ema, EmaOptions};
pub use freeze::{Freeze, FreezeOptions};
pub use grad_coverage::{GradCoverage, GradCoverageOptions, OnZero};
pub use gradient_monitor::{GradientMonitor, GradientMonitorOptions};
pub use identity_update::{IdentityUpdate, IdentityUpdateOptions};
pub use json_log::{JsonLog, JsonLogOptions};
pub use lr_monitor::{LrMonitor, LrMonitorOptions};
pub use max_time::{MaxTime, MaxTimeOptions, Time};
pub use model_checkpoint::{BestModel, ModelCheckpoint, ModelCheckpointOptions};
pub use model_summary::{ModelSummary, ModelSummaryOptions};
pub use monitored::Goal;
pub use progress::{Progress, ProgressOptions};
pub use reduce_lr_on_plateau::{ReduceLrOnPlateau, ReduceLrOnPlateauOptions, ThresholdMode};
pub use tensorboard::{Tensorboard, TensorboardOptions};
pub use throughput::{Throughput, ThroughputOptions};
pub use webhook::{Notice, SecretUrl, Webhook, WebhookOptions};

/// Adds every kind of this crate to a registry. A name that is taken is an error.
pub fn register_all(registry: &mut HookRegistry) -> Result<(), AttachError> {
    let r = registry;
    add(r, ConsoleLog::KIND, "prints the numbers of the run, a line at a time", ConsoleLog::new)?;
    add(r, CsvLog::KIND, "writes chosen numbers of the run into a CSV file", CsvLog::new)?;
    add(r, ActivationStats::KIND, "logs mean and spread of activations", ActivationStats::new)?;
    add(r, EarlyStopping::KIND, "ends the run when a metric no longer improves", EarlyStopping::new)?;
    add(r, Ema::KIND, "averages the weights and validates with the average", Ema::new)?;
    add(r, Freeze::KIND, "keeps parameters from training, for good or until an epoch", Freeze::new)?;
    add(r, GradCoverage::KIND, "ends a run in which a parameter gets no gradient", GradCoverage::new)?;
    add(r, GradientMonitor::KIND, "names gradients that vanish or explode", GradientMonitor::new)?;
    add(r, IdentityUpdate::KIND, "leaves gradients as they are and counts", IdentityUpdate::new)?;
    add(r, JsonLog::KIND, "writes the numbers of the run into a file of JSON lines", JsonLog::new)?;
    add(r, ModelSummary::KIND, "prints a table of the model's parameters", ModelSummary::new)?;
    add(r, Progress::KIND, "shows a progress bar, or lines where there is no terminal", Progress::new)?;
    add(r, Tensorboard::KIND, "writes numbers and histograms of the run for TensorBoard", Tensorboard::new)?;
    add(r, Throughput::KIND, "measures tokens, batches and steps per time", Throughput::new)?;
    add(r, LrMonitor::KIND, "logs learning rates", LrMonitor::new)?;
    add(r, MaxTime::KIND, "ends the run after a given time", MaxTime::new)?;
    add(r, ModelCheckpoint::KIND, "keeps the best checkpoints", ModelCheckpoint::new)?;
    add(r, Webhook::KIND, "sends messages to a chat: the end, a better model, a failure", Webhook::new)?;
    add(r, ReduceLrOnPlateau::KIND, "lowers learning rates on a plateau", ReduceLrOnPlateau::new)?;
    Ok(())
}

fn add<Options: DeserializeOwned + JsonSchema + 'static, Kind: Hook>(
    registry: &mut HookRegistry,
    kind: &str,
    doc: &str,
    new: fn(Options) -> Result<Kind, AttachError>,
) -> Result<(), AttachError> {
    registry.register_builtin::<Options>(kind, doc, move |options| Ok(Box::new(new(options)?)))
}

/// The kinds of this crate and those of the spine.
pub fn registry() -> HookRegistry {
    let mut registry = HookRegistry::standard();
    if let Err(error) = register_all(&mut registry) {
        // Two kinds of the same name are a mistake in this file; every test that uses the registry finds it.
        tracing::error!("{error}");
    }
    registry
}

/// An error that lists every problem, when there is one.
fn none_of(problems: Vec<String>, kind: &str) -> Result<(), AttachError> {
    match problems.is_empty() {
        true => Ok(()),
        false => Err(AttachError::BadOptions { kind: kind.to_string(), problems }),
    }
}

#[cfg(test)]
mod tests {
    use super::test_support::{acts, assert_resumes};
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// A kind with what it cannot do without.
    fn spec(kind: &str) -> Value {
        match kind {
            "freeze" => json!({"kind": "freeze", "params": ["*"]}),
            "max_time" => json!({"kind": "max_time", "duration": "1h"}),
            "webhook" => json!({"kind": "webhook", "url": "https://a.example/"}),
            // A run that was aborted is over.
            "debug" => json!({"kind": "debug", "break_on_nan": false}),
            "activation_stats" | "capture" | "gradient_flow" | "monitor" => {
                json!({"kind": kind, "points": "*"})
            }
            name => json!({ "kind": name }),
        }
    }

    #[test]
    fn every_kind_is_made_from_its_defaults_and_explains_its_options() {
        let mut registry = HookRegistry::standard();
        register_all(&mut registry).unwrap();
        let standard = HookRegistry::standard();
        let ours: Vec<_> = registry.kinds().filter(|kind| standard.kind(&kind.name).is_err()).collect();
        assert!(ours.len() >= 11);
        for kind in ours {
            assert!(kind.builtin && !kind.doc.is_empty(), "{}", kind.name);
            for option in &kind.options {
                assert!(!option.doc.is_empty(), "{}.{}", kind.name, option.name);
            }
            let (hook, _) = registry.build(&spec(&kind.name)).unwrap();
            assert_eq!(hook.kind(), kind.name);
        }
        assert!(register_all(&mut registry).is_err(), "a name that is taken");
    }

    /// These write files, send messages or go by the clock, and have tests of their own for it; or they only print.
    const ELSEWHERE: [&str; 8] = [
        "console_log",
        "csv_log",
        "json_log",
        "max_time",
        "model_summary",
        "progress",
        "tensorboard",
        "webhook",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn p05_every_kind_decides_the_same_after_a_restart(acts in acts(), cut in 0..40usize) {
            let registry = registry();
            for kind in registry.kinds().filter(|kind| !ELSEWHERE.contains(&kind.name.as_str())) {
                assert_resumes(|| registry.build(&spec(&kind.name)).unwrap().0, &acts, cut);
            }
        }
    }

    #[test]
    fn a_wrong_option_is_named_with_the_right_one() {
        let mut registry = HookRegistry::new();
        register_all(&mut registry).unwrap();
        let wrong = json!({"kind": "early_stopping", "patient": 3, "mode": "least", "min_delta": "x"});
        let error = registry.build(&wrong).err().unwrap().to_string();
        for part in ["unknown option `patient`; nearest: `patience`", "`mode`", "`min_delta`"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
