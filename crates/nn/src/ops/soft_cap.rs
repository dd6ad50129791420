//! A bound on values that keeps small ones as they are.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, WithDType};

use super::cpu::{self, CHUNK, dispatch, for_chunks, slice, tensor, with_slice};
use super::real::Real;

/// `cap * tanh(x / cap)`, in one pass forward and one pass back.
pub fn soft_cap(x: &Tensor, cap: f64) -> Result<Tensor> {
    match cpu::fused(x) {
        true => x.contiguous()?.apply_op1(SoftCap(cap)),
        false => (x / cap)?.tanh()? * cap,
    }
}

struct SoftCap(f64);

impl CustomOp1 for SoftCap {
    fn name(&self) -> &'static str {
        "soft-cap"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        dispatch!(storage.dtype(), T => {
            let (x, cap) = (slice::<T>(storage, layout)?, T::of(self.0));
            let mut y = vec![T::of(0.0); x.len()];
            for_chunks(&mut y, CHUNK, |start, y| {
                for (y, x) in y.iter_mut().zip(&x[start..]) {
                    *y = cap * (*x / cap).fast_tanh();
                }
            });
            Ok((T::to_cpu_storage_owned(y), layout.shape().clone()))
        })
    }

    /// The slope is `1 - (y / cap)^2`.
    fn bwd(&self, _: &Tensor, result: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        dispatch!(result.dtype(), T => with_slice::<T, _>(result, |y| {
            let cap = T::of(self.0);
            with_slice::<T, _>(gradient, |g| {
                let mut dx = vec![T::of(0.0); y.len()];
                for_chunks(&mut dx, CHUNK, |start, dx| {
                    for ((dx, y), g) in dx.iter_mut().zip(&y[start..]).zip(&g[start..]) {
                        let t = *y / cap;
                        *dx = *g * (T::of(1.0) - t * t);
                    }
                });
                tensor(dx, result.shape()).map(Some)
            })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::check::{check_gradients, max_difference, random};
    use crate::ops::composed_only;
    use candle_core::DType;

    #[test]
    fn gradients_and_the_composed_path_agree() -> Result<()> {
        let x = (random((3, 37), 1, DType::F64) * 8.0)?;
        check_gradients("soft cap", std::slice::from_ref(&x), |x| soft_cap(x[0].as_tensor(), 3.0));
        check_gradients("soft cap, strided", std::slice::from_ref(&x), |x| soft_cap(&x[0].t()?, 3.0));
        let x = x.to_dtype(DType::F32)?;
        let composed = composed_only(|| soft_cap(&x, 3.0))?;
        assert!(max_difference(&soft_cap(&x, 3.0)?, &composed) < 2e-6);
        Ok(())
    }
}
