//! The built-in hooks. Each is one file: its options, its code, its documentation and its tests.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use tenterhook_hooks::{AttachError, Hook, HookRegistry};

mod activation_stats;
mod checkpoint_names;
mod console;
mod early_stopping;
mod ema;
mod freeze;
mod grad_coverage;
mod gradient_monitor;
mod identity_update;
mod lr_monitor;
mod max_time;
mod model_checkpoint;
mod monitored;
mod reduce_lr_on_plateau;
mod template;
#[cfg(test)]
mod test_support;

pub use activation_stats::{ActivationStat, ActivationStats, ActivationStatsOptions};
pub use early_stopping::{EarlyStopping, EarlyStoppingOptions};
pub use ema::{Ema, EmaOptions};
pub use freeze::{Freeze, FreezeOptions};
pub use grad_coverage::{GradCoverage, GradCoverageOptions, OnZero};
pub use gradient_monitor::{GradientMonitor, GradientMonitorOptions};
pub use identity_update::{IdentityUpdate, IdentityUpdateOptions};
pub use lr_monitor::{LrMonitor, LrMonitorOptions};
pub use max_time::{MaxTime, MaxTimeOptions, Time};
pub use model_checkpoint::{BestModel, ModelCheckpoint, ModelCheckpointOptions};
pub use monitored::Goal;
pub use reduce_lr_on_plateau::{ReduceLrOnPlateau, ReduceLrOnPlateauOptions, ThresholdMode};

/// Adds every kind of this crate to a registry. A name that is taken is an error.
pub fn register_all(registry: &mut HookRegistry) -> Result<(), AttachError> {
    let r = registry;
    add(r, ActivationStats::KIND, "logs mean and spread of activations", ActivationStats::new)?;
    add(r, EarlyStopping::KIND, "ends the run when a metric no longer improves", EarlyStopping::new)?;
    add(r, Ema::KIND, "averages the weights and validates with the average", Ema::new)?;
    add(r, Freeze::KIND, "keeps parameters from training, for good or until an epoch", Freeze::new)?;
    add(r, GradCoverage::KIND, "ends a run in which a parameter gets no gradient", GradCoverage::new)?;
    add(r, GradientMonitor::KIND, "names gradients that vanish or explode", GradientMonitor::new)?;
    add(r, IdentityUpdate::KIND, "leaves gradients as they are and counts", IdentityUpdate::new)?;
    add(r, LrMonitor::KIND, "logs learning rates", LrMonitor::new)?;
    add(r, MaxTime::KIND, "ends the run after a given time", MaxTime::new)?;
    add(r, ModelCheckpoint::KIND, "keeps the best checkpoints", ModelCheckpoint::new)?;
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

/// An error that lists every problem, when there is one.
fn none_of(problems: Vec<String>, kind: &str) -> Result<(), AttachError> {
    match problems.is_empty() {
        true => Ok(()),
        false => Err(AttachError::BadOptions { kind: kind.to_string(), problems }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
            let spec = match kind.name.as_str() {
                "freeze" => json!({"kind": "freeze", "params": ["*"]}),
                "max_time" => json!({"kind": "max_time", "duration": "1h"}),
                name => json!({ "kind": name }),
            };
            let (hook, _) = registry.build(&spec).unwrap();
            assert_eq!(hook.kind(), kind.name);
        }
        assert!(register_all(&mut registry).is_err(), "a name that is taken");
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
