//! Numbers about a tensor, in one pass over its elements and in f64.
//!
//! Results do not depend on the number of threads: chunks have a fixed size and are combined in order.

use candle_core::{DType, Result, Tensor};
use rayon::prelude::*;

use crate::tensors::with_values;

/// Elements handled by one parallel task.
const CHUNK: usize = 1 << 16;
/// Elements whose mean and squares are taken together while they are in the cache.
const BLOCK: usize = 1024;
const LANES: usize = 8;

/// Count, mean, spread and extremes of the finite elements, and how many are not finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moments {
    pub(crate) finite: u64,
    pub(crate) nan: u64,
    pub(crate) infinite: u64,
    pub(crate) zeros: u64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    mean: f64,
    /// The sum of the squared distances from the mean.
    squares: f64,
}

impl Moments {
    const NONE: Self = Self {
        finite: 0,
        nan: 0,
        infinite: 0,
        zeros: 0,
        min: f64::INFINITY,
        max: f64::NEG_INFINITY,
        mean: 0.0,
        squares: 0.0,
    };

    pub(crate) fn of(x: &Tensor) -> Result<Self> {
        with_reals(x, Self::of_reals)
    }

    fn of_reals(reals: Reals) -> Self {
        match reals {
            Reals::F32(values) => Self::of_slice(values),
            Reals::F64(values) => Self::of_slice(values),
        }
    }

    fn of_slice<T: Copy + Into<f64> + Sync>(values: &[T]) -> Self {
        let of_chunk = |chunk: &[T]| chunk.chunks(BLOCK).map(Self::of_block).fold(Self::NONE, Self::plus);
        if values.len() <= CHUNK {
            return of_chunk(values);
        }
        let chunks: Vec<Self> = values.par_chunks(CHUNK).map(of_chunk).collect();
        chunks.into_iter().fold(Self::NONE, Self::plus)
    }

    fn of_block<T: Copy + Into<f64>>(values: &[T]) -> Self {
        let mut block = [0.0; BLOCK];
        block.iter_mut().zip(values).for_each(|(to, from)| *to = (*from).into());
        let block = &mut block[..values.len()];
        let mut sum = lanes(block, 0.0, |sum, x| sum + x).iter().sum::<f64>();
        let (mut count, mut nan) = (block.len(), 0);
        if !sum.is_finite() {
            // Rare: the finite ones are moved to the front, and the rest is only counted.
            nan = block.iter().filter(|x| x.is_nan()).count();
            count = 0;
            for i in 0..block.len() {
                if block[i].is_finite() {
                    block[count] = block[i];
                    count += 1;
                }
            }
            sum = block[..count].iter().sum();
        }
        let infinite = block.len() - count - nan;
        let finite = &block[..count];
        let mean = if count == 0 { 0.0 } else { sum / count as f64 };
        Self {
            finite: count as u64,
            nan: nan as u64,
            infinite: infinite as u64,
            zeros: finite.iter().filter(|x| **x == 0.0).count() as u64,
            min: lanes(finite, f64::INFINITY, f64::min).into_iter().fold(f64::INFINITY, f64::min),
            max: lanes(finite, f64::NEG_INFINITY, f64::max).into_iter().fold(f64::NEG_INFINITY, f64::max),
            mean,
            squares: lanes(finite, 0.0, |sum, x| sum + (x - mean) * (x - mean)).iter().sum(),
        }
    }

    /// The moments of both together (Chan, Golub and LeVeque 1979): no cancellation, as the sum of squares would have.
    fn plus(self, other: Self) -> Self {
        let finite = self.finite + other.finite;
        let apart = other.mean - self.mean;
        let share = if finite == 0 { 0.0 } else { other.finite as f64 / finite as f64 };
        Self {
            finite,
            nan: self.nan + other.nan,
            infinite: self.infinite + other.infinite,
            zeros: self.zeros + other.zeros,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            mean: self.mean + apart * share,
            squares: self.squares + other.squares + apart * apart * share * self.finite as f64,
        }
    }

    pub(crate) fn elements(&self) -> u64 {
        self.finite + self.non_finite()
    }

    pub(crate) fn non_finite(&self) -> u64 {
        self.nan + self.infinite
    }

    /// NaN when there is no finite element.
    pub(crate) fn mean(&self) -> f64 {
        if self.finite == 0 { f64::NAN } else { self.mean }
    }

    /// Of the population: divided by n.
    pub(crate) fn std(&self) -> f64 {
        (self.squares / self.finite as f64).sqrt()
    }

    /// The Euclidean norm.
    pub(crate) fn norm(&self) -> f64 {
        (self.squares + self.mean * self.mean * self.finite as f64).sqrt()
    }
}

/// A fold in eight independent lanes, which the compiler can vectorise.
fn lanes(values: &[f64], start: f64, step: impl Fn(f64, f64) -> f64) -> [f64; LANES] {
    let mut result = [start; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, x) in result.iter_mut().zip(chunk) {
            *lane = step(*lane, *x);
        }
    }
    for (lane, x) in result.iter_mut().zip(rest) {
        *lane = step(*lane, *x);
    }
    result
}

/// The finite elements in ascending order.
pub(crate) fn sorted_finite(x: &Tensor) -> Result<Vec<f64>> {
    let mut values: Vec<f64> = with_reals(x, |reals| match reals {
        Reals::F32(values) => values.iter().filter(|x| x.is_finite()).map(|x| f64::from(*x)).collect(),
        Reals::F64(values) => values.iter().filter(|x| x.is_finite()).copied().collect(),
    })?;
    values.par_sort_unstable_by(f64::total_cmp);
    Ok(values)
}

/// The percentile (0 to 100) of sorted values, interpolated between neighbours; NaN when there are none.
pub(crate) fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let position = percent / 100.0 * last as f64;
    let below = (position.floor() as usize).min(last);
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
}

/// How many elements meet a condition, and the first of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Hits {
    pub(crate) count: u64,
    pub(crate) first: Option<(usize, f64)>,
}

impl Hits {
    pub(crate) fn find(x: &Tensor, is_hit: impl Fn(f64) -> bool + Sync) -> Result<Self> {
        with_reals(x, |reals| match reals {
            Reals::F32(values) => Self::in_slice(values, &is_hit),
            Reals::F64(values) => Self::in_slice(values, &is_hit),
        })
    }

    fn in_slice<T: Copy + Into<f64> + Sync>(values: &[T], is_hit: &(impl Fn(f64) -> bool + Sync)) -> Self {
        let count = |chunk: &[T]| chunk.iter().filter(|x| is_hit((**x).into())).count() as u64;
        let count = match values.len() {
            0..=CHUNK => count(values),
            _ => values.par_chunks(CHUNK).map(count).sum(),
        };
        // Looked for only when there is one.
        let hits = values.iter().map(|x| (*x).into()).enumerate().filter(|(_, x)| is_hit(*x));
        Self { count, first: if count == 0 { None } else { hits.take(1).next() } }
    }
}

enum Reals<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
}

fn with_reals<R>(x: &Tensor, f: impl FnOnce(Reals) -> R) -> Result<R> {
    match x.dtype() {
        DType::F32 => with_values(x, |values| f(Reals::F32(values))),
        dtype if dtype.is_float() && dtype != DType::F64 => {
            with_values(&x.to_dtype(DType::F32)?, |values| f(Reals::F32(values)))
        }
        _ => with_values(&x.to_dtype(DType::F64)?, |values| f(Reals::F64(values))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * b.abs().max(1.0)
    }

    #[test]
    fn moments_are_those_of_the_definition() -> Result<()> {
        for n in [1usize, 7, 8, 1023, 1025, 70_000] {
            let values: Vec<f64> = (0..n).map(|i| 1e6 + ((i * 7919) % 101) as f64 / 101.0).collect();
            let mean = values.iter().sum::<f64>() / n as f64;
            let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
            let norm = values.iter().map(|x| x * x).sum::<f64>().sqrt();
            let moments = Moments::of(&Tensor::from_vec(values.clone(), n, &Device::Cpu)?)?;
            assert!(close(moments.mean(), mean), "{n}");
            assert!((moments.std() - variance.sqrt()).abs() < 1e-9, "{n}"); // the sum of squares would be off by 1e-4
            assert!(close(moments.norm(), norm), "{n}");
            assert_eq!(moments.min, values.iter().copied().fold(f64::INFINITY, f64::min));
            assert_eq!(moments.elements(), n as u64);
        }
        Ok(())
    }

    #[test]
    fn what_is_not_finite_is_counted_and_left_out() -> Result<()> {
        let x = Tensor::new(
            &[1f32, f32::NAN, 0.0, f32::INFINITY, 3.0, f32::NEG_INFINITY, f32::NAN],
            &Device::Cpu,
        )?;
        let moments = Moments::of(&x)?;
        assert_eq!((moments.nan, moments.infinite, moments.finite, moments.zeros), (2, 2, 3, 1));
        assert_eq!((moments.min, moments.max), (0.0, 3.0));
        assert!(close(moments.mean(), 4.0 / 3.0));
        assert_eq!(sorted_finite(&x)?, [0.0, 1.0, 3.0]);
        let nothing = Moments::of(&Tensor::new(&[f32::NAN], &Device::Cpu)?)?;
        assert!(nothing.mean().is_nan() && nothing.std().is_nan());
        Ok(())
    }

    #[test]
    fn percentiles_interpolate() {
        let sorted = [1.0, 2.0, 3.0, 4.0];
        for (percent, want) in [(0.0, 1.0), (50.0, 2.5), (100.0, 4.0), (25.0, 1.75)] {
            assert!(close(percentile(&sorted, percent), want));
        }
        assert!(percentile(&[], 50.0).is_nan());
    }

    #[test]
    fn views_and_other_dtypes_are_read_in_order() -> Result<()> {
        let x = Tensor::new(&[[1u32, 2], [3, 4]], &Device::Cpu)?.t()?;
        let hits = Hits::find(&x, |x| x > 1.0)?;
        assert_eq!(hits, Hits { count: 3, first: Some((1, 3.0)) });
        let half = Tensor::new(&[1f32, -2.0], &Device::Cpu)?.to_dtype(DType::BF16)?;
        assert_eq!(Moments::of(&half)?.min, -2.0);
        Ok(())
    }
}
