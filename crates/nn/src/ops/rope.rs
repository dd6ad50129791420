//! Rotary position embedding in the layout of Llama and NeoX, with its backward.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, D, Layout, Result, Shape, Storage, Tensor, WithDType, bail};

use super::cpu::{self, dispatch};
use super::real::Real;

/// Rotates the pairs `(i, i + rot / 2)` of every head of `x [batch, pos, head, d_head]` by the angle of their
/// position: `cos` and `sin` are `[pos, rot / 2]`, see [`rope_table`](super::rope_table).
///
/// Elements from `rot` on pass through (partial rotary). The tables are constants: no gradient flows to them. A
/// strided view is read in place as long as its last axis is contiguous.
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let (_, positions, _, width) = x.dims4()?;
    let (rows, half) = cos.dims2()?;
    if cos.shape() != sin.shape() || rows != positions || 2 * half > width {
        bail!(
            "rope: tables {:?} and {:?} where [{positions}, at most {}] is needed for {:?}",
            cos.shape(),
            sin.shape(),
            width / 2,
            x.shape()
        );
    }
    if cos.dtype() != x.dtype() || sin.dtype() != x.dtype() {
        bail!("rope: tables of {:?} and {:?} for an input of {:?}", cos.dtype(), sin.dtype(), x.dtype());
    }
    let (cos, sin) = (cos.detach().contiguous()?, sin.detach().contiguous()?);
    if half == 0 || x.elem_count() == 0 {
        return Ok(x.clone());
    }
    if !cpu::fused(x) {
        return composed(x, &cos, &sin);
    }
    let x = if x.stride()[3] == 1 { x.clone() } else { x.contiguous()? };
    x.apply_op1(Rope { cos, sin })
}

struct Rope {
    cos: Tensor,
    sin: Tensor,
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Forward,
    Back,
}

impl CustomOp1 for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        dispatch!(x.dtype(), T => {
            let y = self.rotate(&x.as_slice::<T>()?[layout.start_offset()..], layout, Direction::Forward)?;
            Ok((T::to_cpu_storage_owned(y), layout.shape().clone()))
        })
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let gradient = gradient.contiguous()?;
        let (storage, layout) = gradient.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { bail!("rope: a gradient on another device") };
        dispatch!(x.dtype(), T => {
            let gradient = &storage.as_slice::<T>()?[layout.start_offset()..];
            cpu::tensor(self.rotate(gradient, layout, Direction::Back)?, x.shape()).map(Some)
        })
    }
}

impl Rope {
    fn rotate<T: Real>(&self, x: &[T], layout: &Layout, direction: Direction) -> Result<Vec<T>> {
        let (_, positions, heads, width) = layout.shape().dims4()?;
        let stride = layout.stride();
        let half = self.cos.dim(1)?;
        // SAFETY: every head of every position is written below.
        let mut y = unsafe { cpu::uninit::<T>(layout.shape().elem_count()) };
        cpu::with_slice(&self.cos, |cos: &[T]| {
            cpu::with_slice(&self.sin, |sin: &[T]| {
                let row = heads * width;
                cpu::for_chunks(&mut y, cpu::chunk_rows(row) * row, |start, y| {
                    for (i, y) in (start / row..).zip(y.chunks_exact_mut(row)) {
                        let (batch, position) = (i / positions, i % positions);
                        let x = &x[batch * stride[0] + position * stride[1]..];
                        let angles = position * half..(position + 1) * half;
                        let (cos, sin) = (&cos[angles.clone()], &sin[angles]);
                        cpu::wide(
                            #[inline(always)]
                            || {
                                for (h, y) in y.chunks_exact_mut(width).enumerate() {
                                    rotate_head(y, &x[h * stride[2]..][..width], cos, sin, direction);
                                }
                            },
                        );
                    }
                });
                Ok(())
            })
        })?;
        Ok(y)
    }
}

#[inline(always)]
fn rotate_head<T: Real>(y: &mut [T], x: &[T], cos: &[T], sin: &[T], direction: Direction) {
    let half = cos.len();
    let (x_rotated, x_rest) = x.split_at(2 * half);
    let (y_rotated, y_rest) = y.split_at_mut(2 * half);
    let (x1, x2) = x_rotated.split_at(half);
    let (y1, y2) = y_rotated.split_at_mut(half);
    let sin = &sin[..half];
    let back = direction == Direction::Back;
    for i in 0..half {
        let s = if back { -sin[i] } else { sin[i] };
        y1[i] = x1[i] * cos[i] - x2[i] * s;
        y2[i] = x2[i] * cos[i] + x1[i] * s;
    }
    y_rest.copy_from_slice(x_rest);
}

fn composed(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let half = cos.dim(1)?;
    let (cos, sin) = (cos.unsqueeze(1)?, sin.unsqueeze(1)?);
    let x1 = x.narrow(D::Minus1, 0, half)?;
    let x2 = x.narrow(D::Minus1, half, half)?;
    let y1 = (x1.broadcast_mul(&cos)? - x2.broadcast_mul(&sin)?)?;
    let y2 = (x2.broadcast_mul(&cos)? + x1.broadcast_mul(&sin)?)?;
    match x.dim(3)? - 2 * half {
        0 => Tensor::cat(&[y1, y2], 3),
        rest => Tensor::cat(&[y1, y2, x.narrow(3, 2 * half, rest)?], 3),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ops::check::{assert_same_bits, check_gradients, gradients, random};
    use crate::ops::composed_only;
    use candle_core::{DType, Device};

    fn tables(positions: usize, half: usize, dtype: DType) -> (Tensor, Tensor) {
        let angles = (random((positions, half), 7, DType::F64) * 4.0).unwrap();
        let table = |t: Result<Tensor>| t.unwrap().to_dtype(dtype).unwrap();
        (table(angles.cos()), table(angles.sin()))
    }

    #[test]
    fn backward_agrees_with_differences() {
        for half in [1, 2, 3] {
            let (cos, sin) = tables(4, half, DType::F64);
            let inputs = [random((2, 4, 3, 7), 1, DType::F64)];
            check_gradients("rope", &inputs, |x| rope(&x[0], &cos, &sin));
            check_gradients("rope of a view", &inputs, |x| rope(&x[0].narrow(2, 1, 2)?, &cos, &sin));
            let by_head = [random((2, 3, 4, 7), 2, DType::F64)];
            check_gradients("transposed", &by_head, |x| rope(&x[0].transpose(1, 2)?, &cos, &sin));
            let width_first = [random((2, 4, 7, 3), 3, DType::F64)];
            check_gradients("strided width", &width_first, |x| rope(&x[0].transpose(2, 3)?, &cos, &sin));
            composed_only(|| check_gradients("composed", &inputs, |x| rope(&x[0], &cos, &sin)));
        }
    }

    #[test]
    fn fused_and_composed_have_the_same_bits() {
        for (width, half) in [(64, 32), (64, 8), (10, 5)] {
            let (cos, sin) = tables(300, half, DType::F32);
            let x = [random((2, 300, 5, width), 4, DType::F32)];
            let run = || gradients(&x, |x| rope(&x[0].narrow(2, 1, 3)?, &cos, &sin)).unwrap();
            let ((y, dx), (other_y, other_dx)) = (run(), composed_only(run));
            assert_same_bits("y", &y, &other_y);
            assert!(crate::ops::check::max_difference(&dx[0], &other_dx[0]) < 1e-6);
        }
    }

    #[test]
    fn a_quarter_turn_swaps_the_halves() {
        let table = |x: f32| Tensor::full(x, (1, 2), &Device::Cpu).unwrap();
        let x = Tensor::new(&[[[[1f32, 2.0, 3.0, 4.0, 5.0]]]], &Device::Cpu).unwrap();
        let y = rope(&x, &table(0.0), &table(1.0)).unwrap();
        assert_eq!(y.flatten_all().unwrap().to_vec1::<f32>().unwrap(), [-3.0, -4.0, 1.0, 2.0, 5.0]);
    }

    #[test]
    fn wrong_tables_are_named() {
        let x = random((1, 4, 2, 6), 0, DType::F32);
        let (cos, sin) = tables(4, 4, DType::F32);
        assert!(rope(&x, &cos, &sin).unwrap_err().to_string().contains("[4, at most 3] is needed"));
        let (cos, sin) = tables(4, 3, DType::F64);
        assert!(rope(&x, &cos, &sin).unwrap_err().to_string().contains("for an input of F32"));
    }
}
