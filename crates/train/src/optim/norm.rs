//! Norms of gradients, and clipping.

use candle_core::{DType, Device, Error, Result, Tensor};
use tenterhook_hooks::NamedGrads;
use tenterhook_nn::ops::wide;
use tenterhook_nn::parallel;

use super::StepScale;
use super::kernel::{self, CHUNK, Real};

/// The Euclidean norms of gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct Norms {
    /// Of all gradients together.
    pub total: f64,
    /// Of every parameter's gradient, by name.
    pub per_param: Vec<(String, f64)>,
}

/// The norm of every gradient and of all together, in f64. The same bits for any number of threads. NaN and infinity show in their
/// parameter's norm.
pub fn grad_norms(grads: &NamedGrads) -> Result<Norms> {
    let mut per_param = Vec::with_capacity(grads.len());
    let mut total = 0.0;
    for (name, grad) in grads.iter() {
        let squares = sum_of_squares(name, grad)?;
        total += squares;
        per_param.push((name.to_string(), squares.sqrt()));
    }
    Ok(Norms { total: total.sqrt(), per_param })
}

/// The sum of the squares of a named gradient's elements, in f64 and in fixed chunks that are added in order.
pub(crate) fn sum_of_squares(name: &str, grad: &Tensor) -> Result<f64> {
    match grad.dtype() {
        DType::F32 => squares::<f32>(grad),
        DType::F64 => squares::<f64>(grad),
        other => Err(Error::msg(format!("the gradient of `{name}` is {other:?}: norms are of f32 and f64"))),
    }
}

fn squares<T: Real>(grad: &Tensor) -> Result<f64> {
    // Other devices' gradients come over: summing there would give other bits.
    kernel::read(&grad.to_device(&Device::Cpu)?, |values: &[T]| {
        Ok(parallel::map_chunks(values, CHUNK, |_, part| chunk_squares(part)).iter().sum())
    })
}

/// In lanes, so that the sums can be vectors: the compiler makes them of arrays that nobody else sees, and of nothing else.
fn chunk_squares<T: Real>(values: &[T]) -> f64 {
    const LANES: usize = 8;
    let (rows, rest) = values.as_chunks::<LANES>();
    let mut lanes = wide(
        #[inline(always)]
        || {
            let mut lanes = [0.0; LANES];
            for row in rows {
                let squares = row.map(|x| x.to_f64() * x.to_f64());
                lanes = std::array::from_fn(|lane| lanes[lane] + squares[lane]);
            }
            lanes
        },
    );
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += x.to_f64() * x.to_f64();
    }
    lanes.iter().sum()
}

/// The first element of a gradient that is NaN or infinite.
#[derive(Clone, Debug)]
pub struct NonFinite {
    /// The parameter.
    pub param: String,
    /// The element's place in row-major order.
    pub index: usize,
    /// The element.
    pub value: f64,
    /// How many of this gradient's elements are NaN or infinite.
    pub count: usize,
}

/// The first gradient, by name, with NaN or infinity.
pub fn first_non_finite(grads: &NamedGrads) -> Result<Option<NonFinite>> {
    for (name, grad) in grads.iter() {
        let grad = grad.to_device(&Device::Cpu)?;
        let found = match grad.dtype() {
            DType::F64 => non_finite::<f64>(&grad),
            _ => non_finite::<f32>(&grad.to_dtype(DType::F32)?),
        }?;
        if let Some((index, value, count)) = found {
            return Ok(Some(NonFinite { param: name.to_string(), index, value, count }));
        }
    }
    Ok(None)
}

fn non_finite<T: Real>(grad: &Tensor) -> Result<Option<(usize, f64, usize)>> {
    if kernel::largest::<T>(grad)?.is_finite() {
        return Ok(None);
    }
    kernel::read(grad, |values: &[T]| {
        let mut bad = values.iter().map(|x| x.to_f64()).enumerate().filter(|(_, x)| !x.is_finite());
        Ok(bad.next().map(|(index, value)| (index, value, 1 + bad.count())))
    })
}

/// How gradients are clipped.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Clip {
    /// Not at all.
    #[default]
    None,
    /// All scaled together so that their norm is at most this.
    Norm(f64),
    /// Every element held between minus this and this.
    Value(f64),
}

impl Clip {
    /// What a step does to gradients of this norm.
    pub fn step_scale(self, total_norm: f64) -> StepScale {
        match self {
            Clip::None => StepScale::default(),
            Clip::Norm(max) => StepScale { scale: clip_scale(total_norm, max), clamp: None },
            Clip::Value(max) => StepScale { scale: 1.0, clamp: Some(max) },
        }
    }
}

impl Clip {
    /// The norm that gradients with these norms have after clipping; `None` when nothing is ever clipped.
    pub fn norm_after(self, norms: &Norms, grads: &NamedGrads) -> Result<Option<f64>> {
        match self {
            Clip::None => Ok(None),
            Clip::Norm(max) => Ok(Some(norms.total * clip_scale(norms.total, max))),
            Clip::Value(max) => {
                let clamped = grads.iter().map(|(name, grad)| Ok((name.to_string(), grad.clamp(-max, max)?)));
                let clamped: Vec<(String, Tensor)> = clamped.collect::<Result<_>>()?;
                Ok(Some(grad_norms(&clamped.into_iter().collect())?.total))
            }
        }
    }
}

/// What gradients are multiplied with so that their norm is at most `max_norm`, as `torch.nn.utils.clip_grad_norm_` has it. NaN stays
/// NaN.
pub fn clip_scale(total: f64, max_norm: f64) -> f64 {
    let scale = max_norm / (total + 1e-6);
    if scale > 1.0 { 1.0 } else { scale }
}
