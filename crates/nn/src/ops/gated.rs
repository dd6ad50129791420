//! The gated activation of Llama-like MLPs in one pass.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Storage, Tensor, WithDType};

use super::activation::{Activation, composed, with_curve};
use super::cpu::{self, dispatch};
use super::real::Real;
use crate::parallel::Chunks;

/// `act(gate) * up`. Both may be halves of one `[.., 2d]` tensor: rows with a stride are read in place.
pub fn gated(gate: &Tensor, up: &Tensor, act: Activation) -> Result<Tensor> {
    if gate.dims() != up.dims() {
        candle_core::bail!("gated: the gate is {:?} and the value {:?}", gate.shape(), up.shape());
    }
    match cpu::fused(gate) {
        true => with_rows_in_step(gate)?.apply_op2(&with_rows_in_step(up)?, GatedOp(act)),
        false => composed(gate, act)? * up,
    }
}

/// The tensor itself when its rows are contiguous and evenly spaced, else a copy.
fn with_rows_in_step(x: &Tensor) -> Result<Tensor> {
    match row_stride(x.layout()) {
        Some(_) => Ok(x.clone()),
        None => x.contiguous(),
    }
}

/// The distance between the rows (along the last axis) of a layout whose rows are contiguous and evenly spaced.
fn row_stride(layout: &Layout) -> Option<usize> {
    let (&width, leading) = layout.dims().split_last()?;
    let (&last, strides) = layout.stride().split_last()?;
    if last != 1 && width > 1 {
        return None;
    }
    let mut axes = leading.iter().zip(strides).rev().filter(|&(&size, _)| size != 1);
    let Some((&size, &row)) = axes.next() else { return Some(width) };
    let mut expected = row * size;
    for (&size, &stride) in axes {
        if stride != expected {
            return None;
        }
        expected *= size;
    }
    Some(row)
}

/// The rows of a matrix inside a longer slice.
struct Rows<'a, T> {
    data: &'a [T],
    width: usize,
    stride: usize,
}

impl<'a, T: Real> Rows<'a, T> {
    fn new(storage: &'a CpuStorage, layout: &Layout) -> Result<Self> {
        let Some(stride) = row_stride(layout) else {
            candle_core::bail!("gated: rows are not evenly spaced")
        };
        let width = layout.dims().last().copied().unwrap_or(1);
        Ok(Self { data: &storage.as_slice::<T>()?[layout.start_offset()..], width, stride })
    }

    #[inline(always)]
    fn row(&self, row: usize) -> &'a [T] {
        &self.data[row * self.stride..][..self.width]
    }
}

struct GatedOp(Activation);

fn values<T: Real>(gate: &Rows<T>, up: &Rows<T>, count: usize, f: impl Fn(T) -> (T, T) + Sync) -> Vec<T> {
    let width = gate.width;
    // SAFETY: every row is written.
    let mut y = unsafe { cpu::uninit::<T>(count) };
    cpu::for_chunks(&mut y, cpu::chunk_rows(width) * width.max(1), |start, y| {
        for (i, y) in y.chunks_exact_mut(width.max(1)).enumerate() {
            let row = start / width + i;
            let (gate, up) = (gate.row(row), up.row(row));
            cpu::wide(
                #[inline(always)]
                || {
                    for ((y, &gate), &up) in y.iter_mut().zip(gate).zip(up) {
                        *y = f(gate).0 * up;
                    }
                },
            );
        }
    });
    y
}

fn gradients<T: Real>(
    gate: &Rows<T>,
    up: &Rows<T>,
    g: &[T],
    f: impl Fn(T) -> (T, T) + Sync,
) -> (Vec<T>, Vec<T>) {
    let width = gate.width.max(1);
    let rows = cpu::chunk_rows(width);
    // SAFETY: every row of both is written.
    let (mut dgate, mut dup) = unsafe { (cpu::uninit::<T>(g.len()), cpu::uninit::<T>(g.len())) };
    let dups = Chunks::of(&mut dup, rows * width);
    cpu::for_chunks(&mut dgate, rows * width, |start, dgate| {
        let first = start / width;
        // SAFETY: every part is asked for once, together with the same one of the other.
        let dup = unsafe { dups.get(first / rows) };
        cpu::wide(
            #[inline(always)]
            || {
                let outputs = dgate.chunks_exact_mut(width).zip(dup.chunks_exact_mut(width));
                for (row, ((dgate, dup), g)) in (first..).zip(outputs.zip(g[start..].chunks_exact(width))) {
                    let inputs = gate.row(row).iter().zip(up.row(row)).zip(g);
                    for ((dgate, dup), ((&gate, &up), &g)) in dgate.iter_mut().zip(dup).zip(inputs) {
                        let (value, slope) = f(gate);
                        *dgate = g * up * slope;
                        *dup = g * value;
                    }
                }
            },
        )
    });
    (dgate, dup)
}

impl CustomOp2 for GatedOp {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = gate_layout.shape();
        dispatch!(gate.dtype(), T => {
            let (gate, up) = (Rows::<T>::new(gate, gate_layout)?, Rows::<T>::new(up, up_layout)?);
            let y = with_curve!(self.0, f => values(&gate, &up, shape.elem_count(), f));
            Ok((T::to_cpu_storage_owned(y), shape.clone()))
        })
    }

    fn bwd(
        &self,
        gate: &Tensor,
        up: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (gate_storage, gate_layout) = gate.storage_and_layout();
        let (up_storage, up_layout) = up.storage_and_layout();
        let (Storage::Cpu(gate_values), Storage::Cpu(up_values)) = (&*gate_storage, &*up_storage) else {
            candle_core::bail!("gated: the fused op needs tensors on the CPU")
        };
        let (dgate, dup) = dispatch!(gate.dtype(), T => {
            let (gates, ups) = (Rows::<T>::new(gate_values, gate_layout)?, Rows::<T>::new(up_values, up_layout)?);
            cpu::with_slice::<T, _>(g, |g| {
                let (dgate, dup) = with_curve!(self.0, f => gradients(&gates, &ups, g, f));
                Ok((cpu::tensor(dgate, gate.shape())?, cpu::tensor(dup, up.shape())?))
            })
        })?;
        Ok((gate.track_op().then_some(dgate), up.track_op().then_some(dup)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{assert_same_bits, check_gradients, random};
    use super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::*;
    use candle_core::{D, DType, Var};

    fn halves(x: &Tensor, act: Activation) -> Result<Tensor> {
        let width = x.dim(D::Minus1)? / 2;
        gated(&x.narrow(D::Minus1, 0, width)?, &x.narrow(D::Minus1, width, width)?, act)
    }

    #[test]
    fn gradients_are_those_of_finite_differences() -> Result<()> {
        for act in [Activation::Silu, Activation::GeluTanh, Activation::Gelu] {
            check_gradients("halves", &[random((2, 5, 14), 1, DType::F64)], |v| halves(&v[0], act));
            let both = [random((3, 2, 5), 1, DType::F64), random((5, 2, 3), 2, DType::F64)];
            check_gradients("transposed", &both, |v| gated(&v[0], &v[1].transpose(0, 2)?, act));
        }
        Ok(())
    }

    #[test]
    fn fused_like_composed_on_any_threads() -> Result<()> {
        let x = [(random((3, 95, 2 * 301), 1, DType::F32) * 4.0)?];
        let f = |v: &[Var]| halves(&v[0], Activation::Silu);
        fused_like_composed("gated", &x, 1e-6, f)?;
        same_on_any_threads("gated", &x, f)
    }

    #[test]
    fn strided_halves_give_the_bits_of_copies() -> Result<()> {
        let x = random((4, 3, 22), 1, DType::F32);
        let (gate, up) = (x.narrow(2, 0, 11)?, x.narrow(2, 11, 11)?);
        assert_eq!(row_stride(gate.layout()), Some(22));
        let copied = gated(&gate.contiguous()?, &up.contiguous()?, Activation::Silu)?;
        assert_same_bits("halves", &gated(&gate, &up, Activation::Silu)?, &copied);
        assert_eq!(row_stride(x.transpose(0, 1)?.layout()), None);
        assert!(gated(&gate, &x, Activation::Silu).is_err());
        Ok(())
    }
}
