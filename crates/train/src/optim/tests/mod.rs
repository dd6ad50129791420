//! Tests of the optimizers as a whole.

mod assignment;
mod norms;
mod refusal;
mod saved_state;
mod torch;

use candle_core::{DType, Device, Result, Tensor};
use serde_json::Value;
use tenterhook_hooks::NamedGrads;
use tenterhook_nn::{Init, Params, Scope, Weights};

use super::*;

/// Parameters of these names, shapes and values.
fn params(of: &[(&str, &[usize], Vec<f64>)], dtype: DType) -> Params {
    struct Given<'a>(&'a [(&'a str, &'a [usize], Vec<f64>)]);
    impl Weights for Given<'_> {
        fn tensor(
            &mut self,
            name: &str,
            shape: &[usize],
            _: Init,
            dtype: DType,
            device: &Device,
        ) -> Result<Tensor> {
            let (_, _, values) = self.0.iter().find(|(given, _, _)| *given == name).unwrap();
            Tensor::from_vec(values.clone(), shape, device)?.to_dtype(dtype)
        }
    }
    let scope = Scope::new(Given(of), dtype, &Device::Cpu);
    for (name, shape, _) in of {
        scope.param(name, shape, Init::Zeros).unwrap();
    }
    scope.finish().1
}

/// Gradients for these parameters, each a function of the element's index.
fn grads(params: &Params, f: impl Fn(&str, usize) -> f64) -> NamedGrads {
    let grad = |param: &tenterhook_nn::Param| {
        let values: Vec<f64> = (0..param.value().elem_count()).map(|i| f(param.name(), i)).collect();
        let grad = Tensor::from_vec(values, param.value().shape(), &Device::Cpu).unwrap();
        (param.name().to_string(), grad.to_dtype(param.value().dtype()).unwrap())
    };
    params.iter().map(grad).collect()
}

/// The elements, widened to f64, which loses nothing.
fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Every bit of all parameters.
fn bits(params: &Params) -> Vec<Vec<u64>> {
    params.iter().map(|param| values(param.value()).into_iter().map(f64::to_bits).collect()).collect()
}

/// Every bit of what optimizers keep, by name.
fn state_bits(optimizers: &[Optimizer]) -> Vec<(String, Vec<u64>)> {
    let mut all = Vec::new();
    for optimizer in optimizers {
        all.push((optimizer.state_json().to_string(), Vec::new()));
        for (name, tensor) in optimizer.state_tensors().unwrap() {
            all.push((name, values(&tensor).into_iter().map(f64::to_bits).collect()));
        }
    }
    all
}

fn config(json: Value) -> OptimizerConfig {
    serde_json::from_value(json).unwrap()
}

fn build(configs: &[Value], params: &Params) -> Vec<Optimizer> {
    let configs: Vec<OptimizerConfig> = configs.iter().cloned().map(config).collect();
    Optimizer::build(&configs, params, false).unwrap()
}

fn never(_: &str) -> bool {
    false
}
