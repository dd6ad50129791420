//! Softmax over the last axis, with its backward.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, D, Layout, Result, Shape, Tensor, WithDType};

use super::cpu::{self, dispatch};
use super::real::{LANES, Real, lane_sum};

/// Softmax over the last axis.
///
/// An entry of minus infinity becomes exactly 0, and a row of nothing else becomes zeros rather than NaN: a query
/// that sees no key attends to nothing. NaN stays NaN.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use tenterhook_nn::ops::softmax;
///
/// let scores = Tensor::new(&[[0f32, 0.0, f32::NEG_INFINITY]], &Device::Cpu)?;
/// assert_eq!(softmax(&scores)?.to_vec2::<f32>()?, [[0.5, 0.5, 0.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    if x.elem_count() == 0 {
        return Ok(x.clone());
    }
    if cpu::fused(x) { x.contiguous()?.apply_op1(Softmax { width }) } else { composed(x) }
}

struct Softmax {
    width: usize,
}

impl CustomOp1 for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        dispatch!(x.dtype(), T => {
            let x = cpu::slice::<T>(x, layout)?;
            // SAFETY: every element is copied.
            let mut y = unsafe { cpu::uninit::<T>(x.len()) };
            cpu::for_chunks(&mut y, cpu::chunk_rows(self.width) * self.width, |start, rows| {
                rows.copy_from_slice(&x[start..start + rows.len()]);
                // A loop: `for_each` would not be inlined, and so not be compiled for wide vectors.
                cpu::wide(#[inline(always)] || for row in rows.chunks_exact_mut(self.width) { softmax_row(row) });
            });
            Ok((T::to_cpu_storage_owned(y), layout.shape().clone()))
        })
    }

    fn bwd(&self, _: &Tensor, y: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        dispatch!(y.dtype(), T => {
            let mut dx = cpu::with_slice(gradient, |g: &[T]| Ok(g.to_vec()))?;
            cpu::with_slice(y, |y: &[T]| {
                cpu::for_chunks(&mut dx, cpu::chunk_rows(self.width) * self.width, |start, dx| {
                    let y = &y[start..start + dx.len()];
                    cpu::wide(#[inline(always)] || {
                        for (dx, y) in dx.chunks_exact_mut(self.width).zip(y.chunks_exact(self.width)) {
                            softmax_row_backward(y, dx);
                        }
                    });
                });
                Ok(())
            })?;
            cpu::tensor(dx, y.shape()).map(Some)
        })
    }
}

/// Softmax of one row, in place. Exact zeros before or behind the row would change no bit, as long as its first
/// element stays at a multiple of `LANES`: fused attention relies on that.
#[inline(always)]
pub(crate) fn softmax_row<T: Real>(row: &mut [T]) {
    let max = row_max(row);
    let shift = if max == T::neg_infinity() { T::zero() } else { max };
    for x in row.iter_mut() {
        *x = (*x - shift).fast_exp();
    }
    // SAFETY: `lane_sum` asks for indexes below the length it was given.
    let sum = lane_sum(row.len(), |i| unsafe { *row.get_unchecked(i) });
    let inverse = T::one() / sum;
    for x in row.iter_mut() {
        // Not `x * inverse` throughout: the sum may be 0 or NaN, and what is masked must stay 0.
        *x = if *x == T::zero() { T::zero() } else { *x * inverse };
    }
}

/// Turns the gradient of a row of probabilities `p` into that of the scores, in place.
#[inline(always)]
pub(crate) fn softmax_row_backward<T: Real>(p: &[T], gradient: &mut [T]) {
    let gradient = &mut gradient[..p.len()];
    // SAFETY: `lane_sum` asks for indexes below the length it was given, which both slices have.
    let dot = lane_sum(p.len(), |i| unsafe { *p.get_unchecked(i) * *gradient.get_unchecked(i) });
    for (g, p) in gradient.iter_mut().zip(p) {
        *g = *p * (*g - dot);
    }
}

/// The largest element that is not NaN.
#[inline(always)]
fn row_max<T: Real>(row: &[T]) -> T {
    let larger = |a: T, b: T| if b > a { b } else { a };
    let mut lanes = [T::neg_infinity(); LANES];
    let chunks = row.chunks_exact(LANES);
    let rest = chunks.remainder().iter().fold(T::neg_infinity(), |max, x| larger(max, *x));
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *x);
        }
    }
    lanes.iter().fold(rest, |max, x| larger(max, *x))
}

fn composed(x: &Tensor) -> Result<Tensor> {
    let max = x.detach().max_keepdim(D::Minus1)?;
    let shift = max.eq(f64::NEG_INFINITY)?.where_cond(&max.zeros_like()?, &max)?;
    let e = x.broadcast_sub(&shift)?.exp()?;
    let sum = e.sum_keepdim(D::Minus1)?;
    let sum = sum.eq(0f64)?.where_cond(&sum.ones_like()?, &sum)?;
    e.broadcast_div(&sum)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ops::check::{assert_same_bits, check_gradients, gradients, max_difference, random};
    use crate::ops::composed_only;
    use candle_core::{DType, Device};

    const INF: f32 = f32::INFINITY;

    #[test]
    fn backward_agrees_with_differences() {
        check_gradients("softmax", &[random((2, 3, 19), 1, DType::F64)], |x| softmax(&x[0]));
        check_gradients("strided softmax", &[random((5, 3), 2, DType::F64)], |x| softmax(&x[0].t()?));
        composed_only(|| check_gradients("composed", &[random((2, 5), 3, DType::F64)], |x| softmax(&x[0])));
    }

    #[test]
    fn fused_and_composed_agree() {
        let x = (random((7, 300), 4, DType::F32) * 20.0).unwrap();
        let fused = gradients(std::slice::from_ref(&x), |x| softmax(&x[0])).unwrap();
        let composed = composed_only(|| gradients(&[x], |x| softmax(&x[0]))).unwrap();
        assert!(max_difference(&fused.0, &composed.0) < 1e-6);
        assert!(max_difference(&fused.1[0], &composed.1[0]) < 1e-6);
    }

    #[test]
    fn masked_and_odd_entries() {
        let row =
            |x: &[f32]| softmax(&Tensor::new(x, &Device::Cpu).unwrap()).unwrap().to_vec1::<f32>().unwrap();
        for run in [false, true] {
            let row = |x: &[f32]| if run { composed_only(|| row(x)) } else { row(x) };
            assert_eq!(row(&[-INF, 3.0, -INF, 3.0]), [0.0, 0.5, 0.0, 0.5]);
            assert_eq!(row(&[-INF, -INF]), [0.0, 0.0]);
            assert!(row(&[1.0, f32::NAN]).iter().all(|p| p.is_nan()));
            assert_eq!(row(&[1e30, 0.0, -1e30]), [1.0, 0.0, 0.0]);
        }
        assert_eq!(row(&[-INF, f32::NAN])[0], 0.0);
    }

    #[test]
    fn a_fully_masked_row_has_no_gradient() {
        let x = Tensor::new(&[[-INF, -INF], [0.0, 1.0]], &Device::Cpu).unwrap();
        for composed in [false, true] {
            let run = || {
                gradients(std::slice::from_ref(&x), |x| softmax(&x[0])).unwrap().1[0]
                    .to_vec2::<f32>()
                    .unwrap()
            };
            let gradient = if composed { composed_only(run) } else { run() };
            assert_eq!(gradient[0], [0.0, 0.0]);
            assert!(gradient[1][0] != 0.0 && gradient[1].iter().all(|g| g.is_finite()));
        }
    }

    #[test]
    fn masked_surroundings_change_no_bit() {
        let row = random(37, 5, DType::F32);
        let pad = Tensor::full(-INF, LANES, &Device::Cpu).unwrap();
        let padded = softmax(&Tensor::cat(&[&pad, &row, &pad], 0).unwrap()).unwrap();
        assert_same_bits("padded", &softmax(&row).unwrap(), &padded.narrow(0, LANES, 37).unwrap());
    }
}
