//! Adding noise.

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::random::Stream;
use tenterhook_hooks::{At, AttachError, Chosen, Cx, HookResult, Mode, Places, Selector};

use super::{Controller, Edit, Effect, Scene};

/// Where a [`Noise`] works, and how loud it is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NoiseOptions {
    /// Where, and how much of it.
    #[serde(flatten)]
    pub scene: Scene,
    /// The standard deviation.
    #[schemars(extend("examples" = [0.1]))]
    pub std: f64,
    /// Another seed, other noise.
    #[serde(default)]
    pub seed: u64,
}

/// Adds normally distributed noise. It is a function of the seed, the hook's id, the point, the sequence and the position; in training also
/// of the step. So a token that is generated with a cache gets the same noise as one that is computed again.
pub struct Noise {
    std: f64,
    seed: u64,
}

impl Effect for Noise {
    const KIND: &'static str = "noise";

    fn apply(&mut self, at: &At, x: &Tensor, _: &mut Chosen, cx: &mut Cx) -> HookResult<Edit> {
        let stream = match cx.mode() {
            Mode::Prefill | Mode::Decode => cx.random_of_hook(),
            _ => cx.random(),
        };
        let stream = stream.named(at.name()).at(self.seed);
        let noise = match Places::of(at, x, cx) {
            Ok(places) => by_position(x, &places, stream, cx.first_row())?,
            Err(_) => values(stream, x.dims())?,
        };
        Ok(Edit::Add((noise * self.std)?))
    }
}

/// Every position of every sequence has a stream of its own.
fn by_position(x: &Tensor, places: &Places, stream: Stream, first_row: usize) -> candle_core::Result<Tensor> {
    let mut shape = x.dims().to_vec();
    let columns = shape.remove(places.axis);
    shape.remove(0);
    let mut rows = Vec::with_capacity(places.rows.len());
    for row in 0..places.rows.len() {
        let column = |column: usize| {
            let position = places.position(row, column).unwrap_or(usize::MAX);
            values(stream.at((first_row + row) as u64).at(position as u64), &shape)
        };
        let all = (0..columns).map(column).collect::<candle_core::Result<Vec<_>>>()?;
        rows.push(Tensor::stack(&all, places.axis - 1)?);
    }
    Tensor::stack(&rows, 0)
}

/// Counted so that the length of the last axis does not matter: at attention scores it grows with every token.
fn values(stream: Stream, shape: &[usize]) -> candle_core::Result<Tensor> {
    let width = shape.last().copied().unwrap_or(1).max(1);
    let counter = |i: usize| ((i / width) as u64) << 32 | (i % width) as u64;
    let values: Vec<f32> = (0..shape.iter().product()).map(|i| stream.normal(counter(i)) as f32).collect();
    Tensor::from_vec(values, shape, &candle_core::Device::Cpu)
}

impl Noise {
    /// From the options of a configuration.
    pub fn from_options(options: NoiseOptions) -> Result<Controller<Self>, AttachError> {
        if !(options.std.is_finite() && options.std >= 0.0) {
            let problems = vec![format!("`std` is {}, it must be 0 or more", options.std)];
            return Err(AttachError::BadOptions { kind: Self::KIND.to_string(), problems });
        }
        Controller::new(options.scene, Self { std: options.std, seed: options.seed })
    }
}

/// Adds normally distributed noise of this standard deviation at these points.
pub fn noise(points: impl Into<Selector>, std: f64, seed: u64) -> Controller<Noise> {
    Controller::at(points, Noise { std, seed })
}
