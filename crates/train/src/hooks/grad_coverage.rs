//! Does every parameter get a gradient?

use candle_core::{DType, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{AttachError, BatchInfo, Cx, Hook, HookResult, NamedGrads};

/// What happens when a gradient is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnZero {
    /// A warning names the parameters.
    #[default]
    Warn,
    /// The run fails and names them.
    Stop,
    /// Nothing.
    Ignore,
}

/// How a [`GradCoverage`] looks.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GradCoverageOptions {
    /// What happens when a gradient is there and all zeros, as in a dead branch: "warn", "stop" or "ignore".
    pub zero: OnZero,
    /// Looks at every step, and publishes the number of zero gradients as `<id>/zero`; otherwise only at the first one after each start.
    pub every_step: bool,
}

/// Looks after the first backward whether every parameter that trains has a gradient. One that has none means an operation without a
/// backward, or a part of the model that is not used: the run ends before any weight changes, and names them.
pub struct GradCoverage {
    options: GradCoverageOptions,
    /// Whether a step follows the backward: with accumulation, a part of the model may have its turn in a later batch.
    completes_step: bool,
    /// Of this start of the run; a restart looks again.
    done: bool,
    /// The parameters whose gradients were zero when last looked at.
    zeros: Vec<String>,
}

/// Names in a message; the rest is counted.
const NAMED: usize = 20;

impl GradCoverage {
    /// The kind's name.
    pub const KIND: &'static str = "grad_coverage";

    /// It cannot fail; every kind is made alike.
    pub fn new(options: GradCoverageOptions) -> Result<Self, AttachError> {
        Ok(Self { options, completes_step: true, done: false, zeros: Vec::new() })
    }
}

impl Hook for GradCoverage {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn on_train_batch_start(&mut self, batch: &BatchInfo, _cx: &mut Cx) -> HookResult {
        self.completes_step = batch.completes_step;
        Ok(())
    }

    // Here and not in `update`: what hooks make of the gradients is their own business.
    fn on_after_backward(&mut self, grads: &NamedGrads, cx: &mut Cx) -> HookResult {
        if !self.completes_step || self.done && !self.options.every_step {
            return Ok(());
        }
        self.done = true;
        let state = cx.state().ok_or("there is no run with parameters")?;
        let trains = |name: &str| state.frozen.binary_search_by(|other| other.as_str().cmp(name)).is_err();
        let (mut missing, mut zeros) = (Vec::new(), Vec::new());
        for param in state.params.iter().filter(|param| param.dtype().is_float() && trains(&param.name)) {
            match grads.get(&param.name) {
                None => missing.push(param.name.clone()),
                Some(grad) if self.options.zero != OnZero::Ignore && is_zero(grad)? => {
                    zeros.push(param.name.clone())
                }
                Some(_) => {}
            }
        }
        if !missing.is_empty() {
            cx.abort(format!(
                "no gradient arrives at {}: an operation on the way has no backward, or they are not used; \
                 fix the model, or freeze them",
                listed(&missing)
            ));
        } else if !zeros.is_empty() && self.options.zero == OnZero::Stop {
            cx.abort(format!("the gradient is all zeros at {} (`zero = \"warn\"` goes on)", listed(&zeros)));
        } else if !zeros.is_empty() && zeros != self.zeros {
            tracing::warn!(hook = cx.hook_id(), "the gradient is all zeros at {}", listed(&zeros));
        }
        if self.options.every_step {
            cx.log(format!("{}/zero", cx.hook_id()), zeros.len() as f64);
        }
        self.zeros = zeros;
        Ok(())
    }
}

fn is_zero(grad: &Tensor) -> HookResult<bool> {
    // NaN is not zero.
    let values = grad.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    Ok(values.iter().all(|x| *x == 0.0))
}

fn listed(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(NAMED).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::test_support::{acts, assert_resumes, options};
    use candle_core::Device;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tenterhook_hooks::{Batch, Ended, Event, HookOptions, Metrics, MockTrainer};

    fn trainer(json: Value) -> MockTrainer {
        let mut trainer = MockTrainer::new();
        let hook = GradCoverage::new(options(json)).unwrap();
        trainer.attach_with(hook, HookOptions::id("c")).unwrap();
        trainer
    }

    fn grads(of: &[(&str, f32)]) -> NamedGrads {
        let grad = |x: f32| Tensor::new(&[0.0, x], &Device::Cpu).unwrap();
        of.iter().map(|(name, x)| (name.to_string(), grad(*x))).collect()
    }

    fn zeros(trainer: &MockTrainer) -> Vec<String> {
        trainer.hooks().with_hook("c", |hook: &mut GradCoverage| hook.zeros.clone()).unwrap()
    }

    #[test]
    fn a_missing_gradient_ends_the_run_before_the_weights_change() -> HookResult {
        let mut severed = trainer(json!({}));
        let ended = severed.step_with(1.0, &grads(&[("layer.bias", 1.0)])).unwrap_err().to_string();
        assert!(ended.contains("no gradient arrives at `layer.weight`"), "{ended}");
        assert_eq!(severed.state.step, 0);

        let mut frozen = trainer(json!({}));
        frozen.state.frozen = vec!["layer.weight".to_string()];
        frozen.step_with(1.0, &grads(&[("layer.bias", 1.0)]))?;
        Ok(())
    }

    #[test]
    fn zeros_warn_or_stop_or_nothing() -> HookResult {
        let half = grads(&[("layer.bias", 0.0), ("layer.weight", f32::NAN)]);
        for (zero, named) in [("warn", vec!["layer.bias"]), ("ignore", vec![])] {
            let mut trainer = trainer(json!({"zero": zero}));
            trainer.step_with(1.0, &half)?;
            assert_eq!(zeros(&trainer), named, "{zero}");
        }
        let ended = trainer(json!({"zero": "stop"})).step_with(1.0, &half).unwrap_err().to_string();
        assert!(ended.contains("all zeros at `layer.bias`"), "{ended}");
        Ok(())
    }

    #[test]
    fn it_looks_once_or_always() -> HookResult {
        let (good, bad) = (grads(&[("layer.bias", 1.0), ("layer.weight", 1.0)]), NamedGrads::default());
        let mut once = trainer(json!({}));
        once.step_with(1.0, &good)?;
        once.step_with(1.0, &bad)?;
        assert_eq!(once.metric("c/zero"), None, "no numbers that a restart would repeat");
        let mut always = trainer(json!({"every_step": true}));
        always.step_with(1.0, &good)?;
        assert_eq!(always.metric("c/zero"), Some(0.0));
        assert!(always.step_with(1.0, &bad).is_err());
        Ok(())
    }

    #[test]
    fn with_accumulation_only_the_sum_of_a_step_counts() -> HookResult {
        let backward = |trainer: &mut MockTrainer, completes_step: bool| -> Result<(), Ended> {
            let (batch, metrics) = (Batch::new(vec![0]), Metrics::new());
            let info = BatchInfo {
                batch: &batch,
                batch_idx: 0,
                dataloader_idx: 0,
                dataloader_name: "train",
                metrics: &metrics,
                completes_step,
            };
            trainer.fire(Event::TrainBatchStart(&info))?;
            trainer.fire(Event::AfterBackward(&NamedGrads::default()))
        };
        let mut trainer = trainer(json!({}));
        backward(&mut trainer, false)?;
        assert!(backward(&mut trainer, true).is_err());
        Ok(())
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..25).map(|i| i.to_string()).collect();
        assert!(listed(&names).ends_with("`19` and 5 more"));
    }

    proptest! {
        #[test]
        fn p05_it_logs_the_same_after_a_restart(acts in acts(), cut in 0..40usize, every_step: bool) {
            let make = || GradCoverage::new(options(json!({"every_step": every_step}))).unwrap();
            assert_resumes(|| Box::new(make()), &acts, cut);
        }
    }
}
