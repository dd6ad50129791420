//! A tensor at a glance.

use std::fmt;

use candle_core::{DType, Tensor};
use serde::Serialize;

use crate::statistics::Moments;

/// What a tensor looks like at a glance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorSummary {
    /// The sizes of its axes.
    pub shape: Vec<usize>,
    /// The type of its elements.
    pub dtype: &'static str,
    /// The mean of the finite elements; NaN when there are none, as for the next three.
    pub mean: f64,
    /// Their standard deviation (of the population).
    pub std: f64,
    /// The smallest of them.
    pub min: f64,
    /// The largest of them.
    pub max: f64,
    /// How many are NaN.
    pub nan: u64,
    /// How many are infinite.
    pub infinite: u64,
    /// The first elements, at most eight.
    pub first: Vec<f64>,
}

/// Looks at a tensor.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, f32::NAN], [3.0, 2.0]], &Device::Cpu)?;
/// let summary = tenterhook_hooks::inspect(&x)?;
/// assert_eq!(summary.to_string(), "[2, 2] f32, mean 2, std 0.8165, min 1, max 3, 1 NaN, 0 infinite: 1 NaN 3 2");
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn inspect(x: &Tensor) -> candle_core::Result<TensorSummary> {
    let moments = Moments::of(x)?;
    let known = |value: f64| if moments.finite == 0 { f64::NAN } else { value };
    let flat = x.flatten_all()?;
    Ok(TensorSummary {
        shape: x.dims().to_vec(),
        dtype: x.dtype().as_str(),
        mean: moments.mean(),
        std: moments.std(),
        min: known(moments.min),
        max: known(moments.max),
        nan: moments.nan,
        infinite: moments.infinite,
        first: flat.narrow(0, 0, flat.elem_count().min(8))?.to_dtype(DType::F64)?.to_vec1()?,
    })
}

impl fmt::Display for TensorSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |value: f64| format!("{}", (value * 1e4).round() / 1e4);
        let [mean, std, min, max] = [self.mean, self.std, self.min, self.max].map(short);
        write!(f, "{:?} {}, mean {mean}, std {std}, min {min}, max {max}, ", self.shape, self.dtype)?;
        write!(f, "{} NaN, {} infinite:", self.nan, self.infinite)?;
        self.first.iter().try_for_each(|value| write!(f, " {}", short(*value)))
    }
}
