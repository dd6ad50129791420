//! Seeing a gradient pass by.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::cpu::{dispatch, slice};

/// `x` itself; `seen` is called with its gradient in the backward pass. The gradient passes on unchanged, to the bit.
pub fn watch_gradient<F>(x: &Tensor, seen: F) -> Result<Tensor>
where
    F: Fn(&Tensor) -> Result<()> + Send + Sync + 'static,
{
    x.contiguous()?.apply_op1(Watch(seen))
}

struct Watch<F>(F);

impl<F: Fn(&Tensor) -> Result<()>> CustomOp1 for Watch<F> {
    fn name(&self) -> &'static str {
        "watch-gradient"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        dispatch!(storage.dtype(), T => {
            let copy = slice::<T>(storage, layout)?.to_vec();
            Ok((<T as candle_core::WithDType>::to_cpu_storage_owned(copy), layout.shape().clone()))
        })
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        (self.0)(gradient)?;
        Ok(Some(gradient.clone()))
    }
}
