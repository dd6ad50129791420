//! A norm in pieces, for who wants to edit a value inside it. The remaining steps are candle's own:
//! `centered.broadcast_div(&scale)`, `broadcast_mul(gain)`, `broadcast_add(bias)`.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, D, Layout, Result, Shape, Tensor, WithDType};

use super::cpu::{self, dispatch};
use super::linear::with_last;
use super::real::{Real, lane_sum};

#[inline(always)]
pub(crate) fn row_mean<T: Real>(x: &[T]) -> T {
    lane_sum(x.len(), |i| x[i]) / T::of(x.len() as f64)
}

#[inline(always)]
pub(crate) fn row_scale<T: Real>(centered: &[T], eps: T) -> T {
    (lane_sum(centered.len(), |i| centered[i] * centered[i]) / T::of(centered.len() as f64) + eps).sqrt()
}

/// `x` minus its mean over the last axis: the first piece of a layer norm.
pub fn center(x: &Tensor) -> Result<Tensor> {
    match cpu::fused(x) && width(x.dims()) > 0 {
        true => x.contiguous()?.apply_op1(Center),
        false => x.broadcast_sub(&x.mean_keepdim(D::Minus1)?),
    }
}

/// `sqrt(mean(centered^2) + eps)` over the last axis, `[.., 1]`: the divisor of a norm.
pub fn norm_scale(centered: &Tensor, eps: f64) -> Result<Tensor> {
    match cpu::fused(centered) && width(centered.dims()) > 0 {
        true => centered.contiguous()?.apply_op1(Scale { eps }),
        false => (centered.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt(),
    }
}

fn width(dims: &[usize]) -> usize {
    dims.last().copied().unwrap_or(0)
}

struct Center;

impl Center {
    fn run<T: Real>(x: &[T], width: usize) -> Vec<T> {
        // SAFETY: every row is written.
        let mut y = unsafe { cpu::uninit::<T>(x.len()) };
        cpu::for_chunks(&mut y, cpu::chunk_rows(width) * width, |start, y| {
            for (y, x) in y.chunks_exact_mut(width).zip(x[start..].chunks_exact(width)) {
                let mean = row_mean(x);
                y.iter_mut().zip(x).for_each(|(y, &x)| *y = x - mean);
            }
        });
        y
    }
}

impl CustomOp1 for Center {
    fn name(&self) -> &'static str {
        "center"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        dispatch!(x.dtype(), T => {
            let y = Self::run::<T>(cpu::slice(x, layout)?, width(layout.dims()));
            Ok((T::to_cpu_storage_owned(y), layout.shape().clone()))
        })
    }

    // The projection onto vectors of mean zero is its own transpose.
    fn bwd(&self, x: &Tensor, _y: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        dispatch!(x.dtype(), T => {
            let dx = cpu::with_slice::<T, _>(g, |g| Ok(Self::run(g, width(x.dims()))))?;
            cpu::tensor(dx, x.shape()).map(Some)
        })
    }
}

struct Scale {
    eps: f64,
}

impl Scale {
    fn run<T: Real>(&self, x: &[T], width: usize) -> Vec<T> {
        let mut y = vec![T::zero(); x.len() / width];
        cpu::for_chunks(&mut y, cpu::chunk_rows(width), |start, y| {
            for (y, x) in y.iter_mut().zip(x[start * width..].chunks_exact(width)) {
                *y = row_scale(x, T::of(self.eps));
            }
        });
        y
    }
}

impl CustomOp1 for Scale {
    fn name(&self) -> &'static str {
        "norm scale"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        dispatch!(x.dtype(), T => {
            let y = self.run::<T>(cpu::slice(x, layout)?, width(layout.dims()));
            Ok((T::to_cpu_storage_owned(y), with_last(layout.dims(), 1)))
        })
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        // d scale / d x = x / (width * scale)
        let per_row = (g.div(y)? / width(x.dims()) as f64)?;
        x.detach().broadcast_mul(&per_row.detach()).map(Some)
    }
}
