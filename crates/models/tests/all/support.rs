//! Reading the reference data, and comparing with it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use tenterhook_hooks::{HookManager, Pass, PassSetup, Retention, hook_fn};
use tenterhook_models::Transformer;
use tenterhook_nn::{Params, backward};

/// Every family in `tests/data`.
pub(crate) fn families() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(data())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("reference.safetensors").is_file())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 16, "reference data is missing: {names:?}");
    names
}

/// One small model of each structure, for tests that take longer.
pub(crate) const STRUCTURES: [&str; 7] =
    ["gpt2", "neox", "neox_sequential", "llama", "qwen3", "gemma2", "phi3"];

pub(crate) fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// A reference model with what PyTorch computed for it.
pub(crate) struct Reference {
    pub(crate) name: String,
    pub(crate) model: Transformer,
    pub(crate) ids: Tensor,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

impl Reference {
    pub(crate) fn load(name: &str) -> Self {
        let dir = data().join(name);
        let model = Transformer::load(&dir, DType::F32, &Device::Cpu)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let tensors: BTreeMap<String, Tensor> =
            candle_core::safetensors::load(dir.join("reference.safetensors"), &Device::Cpu)
                .unwrap()
                .into_iter()
                .collect();
        let ids = tensors["input_ids"].to_dtype(DType::U32).unwrap();
        Self { name: name.to_string(), model, ids, tensors }
    }

    pub(crate) fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
        self.tensors.iter().filter_map(move |(name, tensor)| Some((name.strip_prefix(prefix)?, tensor)))
    }
}

pub(crate) fn values(x: &Tensor) -> Vec<f32> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

pub(crate) fn bits(x: &Tensor) -> Vec<u32> {
    values(x).into_iter().map(f32::to_bits).collect()
}

/// Fails unless every element agrees to `tolerance`, absolutely or relatively. Equal infinities agree.
pub(crate) fn assert_close(what: &str, got: &Tensor, want: &Tensor, tolerance: f32) {
    assert_eq!(got.dims(), want.dims(), "{what}: shape");
    for (i, (a, b)) in values(got).into_iter().zip(values(want)).enumerate() {
        let close = a == b || (a - b).abs() <= tolerance * b.abs().max(1.0);
        assert!(close, "{what}: element {i} is {a}, expected {b}");
    }
}

/// Fails unless every element agrees to `tolerance` times the largest entry.
pub(crate) fn assert_close_to_largest(what: &str, got: &Tensor, want: &Tensor, tolerance: f32) {
    assert_eq!(got.dims(), want.dims(), "{what}: shape");
    let (got, want) = (values(got), values(want));
    let largest = want.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    for (i, (a, b)) in got.into_iter().zip(want).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * largest + 1e-12,
            "{what}: element {i} is {a}, expected {b}, largest {largest}"
        );
    }
}

/// Captures values (and gradients, when the pass has some) at these points.
pub(crate) fn capture(hooks: &HookManager, points: &[&str]) {
    hooks
        .register(hook_fn::observe(points.to_vec(), |at, x, cx| cx.keep(at, x, Retention::All, None)))
        .unwrap();
}

pub(crate) fn captured(hooks: &HookManager, id: &str) -> BTreeMap<String, Tensor> {
    let states = hooks.get_captured_states(id).unwrap();
    states.into_iter().map(|state| (state.point, state.tensor)).collect()
}

pub(crate) fn eval() -> PassSetup {
    PassSetup::eval(0)
}

/// The gradient of a few elements of every parameter in f64, against central differences.
pub(crate) fn check_gradients(params: &Params, loss: impl Fn(&Pass) -> Tensor) {
    let grads = backward(&loss(&Pass::silent(PassSetup::train(0))), params, None).unwrap();
    for param in params.iter() {
        let start: Vec<f64> = param.value().flatten_all().unwrap().to_vec1().unwrap();
        let grad: Vec<f64> = grads.get(param.name()).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let largest = grad.iter().fold(1e-3f64, |largest, g| largest.max(g.abs()));
        let shape = param.value().shape().clone();
        let loss_with = |at: usize, value: f64| {
            let mut moved = start.clone();
            moved[at] = value;
            param.var().set(&Tensor::from_vec(moved, shape.clone(), &Device::Cpu).unwrap()).unwrap();
            loss(&Pass::default()).to_scalar::<f64>().unwrap()
        };
        // A few elements spread over the parameter.
        for at in (0..start.len()).step_by(start.len().div_ceil(5)) {
            let step = 1e-4;
            let difference =
                |k: f64| loss_with(at, start[at] + k * step) - loss_with(at, start[at] - k * step);
            let slope = (8.0 * difference(1.0) - difference(2.0)) / (12.0 * step);
            assert!(
                (slope - grad[at]).abs() <= 1e-6 * largest,
                "{} [{at}]: {} against {slope}",
                param.name(),
                grad[at]
            );
        }
        param.var().set(&Tensor::from_vec(start, shape, &Device::Cpu).unwrap()).unwrap();
    }
}
