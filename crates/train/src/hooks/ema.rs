//! Averaged weights.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Storage, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{AttachError, Cx, Hook, HookResult, ParamInfo};
use tenterhook_nn::parallel;

use crate::hooks::none_of;

/// How an [`Ema`] averages.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EmaOptions {
    /// The share of the average that stays at each update.
    pub decay: f64,
    /// The average begins after this many steps, as a copy of the weights.
    pub start_step: u64,
    /// Validation uses the average in place of the weights, and it is saved beside them.
    pub use_for_validation: bool,
}

impl Default for EmaOptions {
    fn default() -> Self {
        Self { decay: 0.999, start_step: 0, use_for_validation: true }
    }
}

/// Keeps an exponential moving average of all weights: `average = decay * average + (1 - decay) * weight` after every step, or after every
/// n-th by the common option `every`. It is f32 whatever the model's type is.
pub struct Ema {
    options: EmaOptions,
    /// By the name of the parameter.
    averages: BTreeMap<String, Average>,
}

struct Average {
    shape: Vec<usize>,
    values: Vec<f32>,
    /// The model's own type and place, for validation; unknown between a restart and the start of training.
    like: Option<(DType, Device)>,
}

/// Elements handled by one parallel task.
const CHUNK: usize = 1 << 16;

impl Ema {
    /// The kind's name.
    pub const KIND: &'static str = "ema";

    /// A decay that is not between 0 and 1 is an error.
    pub fn new(options: EmaOptions) -> Result<Self, AttachError> {
        let mut problems = Vec::new();
        if !(options.decay >= 0.0 && options.decay < 1.0) {
            problems.push(format!("`decay` is {}, it must be at least 0 and below 1", options.decay));
        }
        none_of(problems, Self::KIND)?;
        Ok(Self { options, averages: BTreeMap::new() })
    }

    fn begin(&mut self, params: &[ParamInfo]) -> HookResult {
        for param in params.iter().filter(|param| param.dtype().is_float()) {
            let values = with_f32(&param.value, <[f32]>::to_vec)?;
            let like = Some((param.dtype(), param.value.device().clone()));
            self.averages.insert(param.name.clone(), Average { shape: param.shape().to_vec(), values, like });
        }
        Ok(())
    }

    fn update(&mut self, params: &[ParamInfo]) -> HookResult {
        let params: Vec<&ParamInfo> = params.iter().filter(|param| param.dtype().is_float()).collect();
        let average_of = |param: &&ParamInfo| self.averages.get(&param.name);
        let fits =
            |param: &&ParamInfo| average_of(param).is_some_and(|average| average.shape == param.shape());
        if self.averages.len() != params.len() || !params.iter().all(fits) {
            return Err("the averages are of another model: names or shapes of the parameters differ".into());
        }
        let share = (1.0 - self.options.decay) as f32;
        let step = |averages: &mut [f32], weights: &[f32]| {
            averages
                .iter_mut()
                .zip(weights)
                .for_each(|(average, weight)| *average += share * (weight - *average));
        };
        for param in params {
            let Some(Average { values: averages, .. }) = self.averages.get_mut(&param.name) else { continue };
            with_f32(&param.value, |weights| {
                parallel::for_chunks(averages, CHUNK, |start, averages| step(averages, &weights[start..]));
            })?;
        }
        Ok(())
    }
}

impl Average {
    fn tensor(&self) -> candle_core::Result<Tensor> {
        Tensor::from_slice(&self.values, self.shape.as_slice(), &Device::Cpu)
    }
}

/// Calls `f` with the elements in row-major order, without a copy where they lie like that in memory.
fn with_f32<R>(x: &Tensor, f: impl FnOnce(&[f32]) -> R) -> candle_core::Result<R> {
    let x = x.to_dtype(DType::F32)?.contiguous()?;
    let (storage, layout) = x.storage_and_layout();
    if let (Storage::Cpu(values), Some((start, end))) = (&*storage, layout.contiguous_offsets()) {
        return Ok(f(&values.as_slice::<f32>()?[start..end]));
    }
    drop(storage);
    Ok(f(&x.flatten_all()?.to_vec1()?))
}

impl Hook for Ema {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
        let params = cx.state().map(|state| state.params.clone()).unwrap_or_default();
        for param in params.iter() {
            if let Some(average) = self.averages.get_mut(&param.name) {
                average.like = Some((param.dtype(), param.value.device().clone()));
            }
        }
        Ok(())
    }

    fn on_after_optimizer_step(&mut self, optimizer_idx: usize, cx: &mut Cx) -> HookResult {
        let state = cx.state().ok_or("there is no run with weights")?;
        // Once per step: after the last optimizer, when all weights are those of the step.
        if optimizer_idx + 1 < state.optimizers.len() || cx.clock().step < self.options.start_step {
            return Ok(());
        }
        let params = state.params.clone();
        if self.averages.is_empty() { self.begin(&params) } else { self.update(&params) }
    }

    fn validation_weights(&self) -> Option<Vec<(String, Tensor)>> {
        if !self.options.use_for_validation || self.averages.is_empty() {
            return None;
        }
        let weight = |(name, average): (&String, &Average)| {
            let (dtype, device) = average.like.clone().unwrap_or((DType::F32, Device::Cpu));
            let tensor = average.tensor()?.to_dtype(dtype)?.to_device(&device)?;
            Ok((name.clone(), tensor))
        };
        let weights: candle_core::Result<Vec<_>> = self.averages.iter().map(weight).collect();
        weights.inspect_err(|error| tracing::warn!("averaged weights cannot be used: {error}")).ok()
    }

    fn save_tensors(&self) -> HookResult<Vec<(String, Tensor)>> {
        self.averages.iter().map(|(name, average)| Ok((name.clone(), average.tensor()?))).collect()
    }

    fn load_tensors(&mut self, tensors: Vec<(String, Tensor)>) -> HookResult {
        let average = |(name, tensor): (String, Tensor)| {
            let values = with_f32(&tensor, <[f32]>::to_vec)?;
            Ok((name, Average { shape: tensor.dims().to_vec(), values, like: None }))
        };
        self.averages = tensors.into_iter().map(average).collect::<HookResult<_>>()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::test_support::{acts, assert_resumes, options};
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::sync::Arc;
    use tenterhook_hooks::{Every, HookOptions, MockTrainer};

    fn param(name: &str, value: Tensor) -> ParamInfo {
        ParamInfo { name: name.to_string(), value }
    }

    /// The averages of a scalar weight that takes these values, one step each.
    fn averages(json: Value, each: HookOptions, weights: &[f32]) -> Vec<Option<f32>> {
        let mut trainer = MockTrainer::new();
        trainer.attach_with(Ema::new(options(json)).unwrap(), each).unwrap();
        let after = |weight: &f32| {
            trainer.state.params = Arc::from([param("w", Tensor::new(*weight, &Device::Cpu).unwrap())]);
            trainer.step(1.0).unwrap();
            let (_, weights) = trainer.hooks().validation_weights()?;
            Some(weights[0].1.to_scalar::<f32>().unwrap())
        };
        weights.iter().map(after).collect()
    }

    #[test]
    fn averages_are_those_of_the_definition() {
        let some = |values: &[f32]| values.iter().map(|x| Some(*x)).collect::<Vec<_>>();
        let usual = HookOptions::default;
        let weights = [1.0, 2.0, 4.0, 0.0];
        assert_eq!(averages(json!({"decay": 0.5}), usual(), &weights), some(&[1.0, 1.5, 2.75, 1.375]));
        assert_eq!(averages(json!({"decay": 0.75}), usual(), &weights), some(&[1.0, 1.25, 1.9375, 1.453125]));
        assert_eq!(averages(json!({"decay": 0.0}), usual(), &weights), some(&weights));
        let late = averages(json!({"decay": 0.5, "start_step": 2}), usual(), &weights);
        assert_eq!(late, [None, None, Some(4.0), Some(2.0)]);
        let rare = HookOptions { every: Every::Steps(2), ..usual() };
        assert_eq!(averages(json!({"decay": 0.5}), rare, &weights), some(&[1.0, 1.0, 2.5, 2.5]));
        assert_eq!(averages(json!({"use_for_validation": false}), usual(), &weights), [None; 4]);
        let by_default = averages(json!({}), usual(), &[1.0, 2.0]);
        assert!((by_default[1].unwrap() - 1.001).abs() < 1e-6);
    }

    #[test]
    fn large_and_transposed_and_half_weights_are_averaged_elementwise() -> HookResult {
        let mut ema = Ema::new(options(json!({"decay": 0.5})))?;
        let n = 3 * CHUNK + 7;
        let at = |k: usize| {
            let values: Vec<f32> = (0..n).map(|i| ((i * 31 + k * 17) % 64) as f32).collect();
            let flat = Tensor::from_vec(values, n, &Device::Cpu)?;
            let view = flat.narrow(0, 0, 6)?.reshape((2, 3))?.t()?;
            let half = view.to_dtype(DType::BF16)?;
            let ids = view.to_dtype(DType::U32)?;
            HookResult::Ok([param("flat", flat), param("half", half), param("ids", ids), param("view", view)])
        };
        ema.begin(&at(0)?)?;
        ema.update(&at(1)?)?;
        for (a, b) in at(0)?.iter().zip(at(1)?).filter(|(a, _)| a.name != "ids") {
            let mean = ((a.value.to_dtype(DType::F32)? + b.value.to_dtype(DType::F32)?)? / 2.0)?;
            assert_eq!(ema.averages[&a.name].values, mean.flatten_all()?.to_vec1::<f32>()?, "{}", a.name);
        }
        assert_eq!(ema.averages.len(), 3);
        let types: Vec<DType> = ema.validation_weights().unwrap().iter().map(|(_, x)| x.dtype()).collect();
        assert_eq!(types, [DType::F32, DType::BF16, DType::F32]);

        let other = [param("flat", Tensor::new(1f32, &Device::Cpu)?)];
        assert!(ema.update(&other).is_err_and(|error| error.to_string().contains("another model")));
        Ok(())
    }

    #[test]
    fn only_the_last_optimizer_counts() -> HookResult {
        let mut trainer = MockTrainer::new();
        trainer.attach(Ema::new(EmaOptions::default())?)?;
        trainer.state.optimizers.push(trainer.state.optimizers[0].clone());
        trainer.step(1.0)?; // only optimizer 0 of two steps
        assert!(trainer.hooks().validation_weights().is_none());
        trainer.fire(tenterhook_hooks::Event::AfterOptimizerStep(1))?;
        assert!(trainer.hooks().validation_weights().is_some());
        Ok(())
    }

    #[test]
    fn a_senseless_decay_is_refused() {
        for decay in [-0.1, 1.0, 2.0] {
            assert!(Ema::new(options(json!({"decay": decay}))).is_err(), "{decay}");
        }
    }

    proptest! {
        #[test]
        fn p05_averages_survive_a_restart(acts in acts(), cut in 0..40usize, start_step in 0..5u64) {
            let options = json!({"decay": 0.9, "start_step": start_step});
            assert_resumes(|| Box::new(Ema::new(options_of(&options)).unwrap()), &acts, cut);
        }
    }

    fn options_of(json: &Value) -> EmaOptions {
        options(json.clone())
    }
}
