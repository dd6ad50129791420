//! What to look for in a tensor.

use std::fmt;
use std::sync::Arc;

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::HookResult;
use crate::hook::At;
use crate::statistics::Hits;

/// What a [`Debug`](struct@super::Debug) hook looks for in a tensor.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// Not a number.
    Nan,
    /// Plus or minus infinity.
    Inf,
    /// Anything above this value.
    Above(f64),
    /// Anything below this value.
    Below(f64),
    /// Another shape than this one; -1 stands for any size.
    Shape(Vec<i64>),
    /// Whatever a closure looks for.
    #[serde(skip)]
    Custom(CustomCondition),
}

impl Condition {
    /// A condition of your own: the closure says what is wrong with the tensor, if anything.
    pub fn custom(
        name: impl Into<String>,
        test: impl Fn(&At, &Tensor) -> HookResult<Option<String>> + Send + Sync + 'static,
    ) -> Self {
        Self::Custom(CustomCondition { name: name.into(), test: Arc::new(test) })
    }

    /// What is wrong, and the first element for which it is.
    pub(super) fn check(&self, at: &At, x: &Tensor) -> HookResult<Option<Trouble>> {
        let hits = match self {
            Condition::Nan => Hits::find(x, f64::is_nan)?,
            Condition::Inf => Hits::find(x, |value| value.is_infinite() && !at.is_mask(value))?,
            Condition::Above(limit) => Hits::find(x, |value| value > *limit)?,
            Condition::Below(limit) => Hits::find(x, |value| value < *limit && !at.is_mask(value))?,
            Condition::Shape(want) => return Ok(wrong_shape(want, x.dims())),
            Condition::Custom(custom) => return Ok((custom.test)(at, x)?.map(Trouble::in_words)),
        };
        Ok(hits.first.map(|(element, value)| {
            let index = index_of(element, x.dims());
            let what = format!(
                "{self} in {} of {} elements, first {value} at {index:?}",
                hits.count,
                x.elem_count()
            );
            Trouble { what, count: hits.count, index: Some(index), value: Some(value) }
        }))
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Nan => f.write_str("NaN"),
            Condition::Inf => f.write_str("infinity"),
            Condition::Above(limit) => write!(f, "above {limit}"),
            Condition::Below(limit) => write!(f, "below {limit}"),
            Condition::Shape(want) => write!(f, "shape other than {want:?}"),
            Condition::Custom(custom) => f.write_str(&custom.name),
        }
    }
}

/// A closure as a [`Condition`]; made by [`Condition::custom`].
#[derive(Clone)]
pub struct CustomCondition {
    name: String,
    test: Arc<Test>,
}

type Test = dyn Fn(&At, &Tensor) -> HookResult<Option<String>> + Send + Sync;

/// What is wrong with a tensor.
pub(super) struct Trouble {
    pub(super) what: String,
    pub(super) count: u64,
    pub(super) index: Option<Vec<usize>>,
    pub(super) value: Option<f64>,
}

impl Trouble {
    fn in_words(what: String) -> Self {
        Self { what, count: 1, index: None, value: None }
    }
}

fn wrong_shape(want: &[i64], dims: &[usize]) -> Option<Trouble> {
    let fits = |(want, size): (&i64, &usize)| *want == -1 || *want == *size as i64;
    let right = want.len() == dims.len() && want.iter().zip(dims).all(fits);
    (!right).then(|| Trouble::in_words(format!("shape {dims:?} where {want:?} was expected")))
}

/// The index of the n-th element in row-major order.
pub(super) fn index_of(mut element: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (i, size) in index.iter_mut().zip(dims).rev() {
        *i = element % size;
        element /= size;
    }
    index
}
