//! Seeing a gradient pass by.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, MetalStorage, Result, Shape, Tensor};

use super::cpu::{dispatch, slice};

/// `x` itself; `seen` is called with its gradient in the backward pass. The gradient passes on unchanged, to the bit.
pub fn watch_gradient<F>(x: &Tensor, seen: F) -> Result<Tensor>
where
    F: Fn(&Tensor) -> Result<()> + Send + Sync + 'static,
{
    // Other devices copy whole storages, so a view into a larger one is copied out first.
    let x = if x.device().is_cpu() { x.contiguous()? } else { x.force_contiguous()? };
    x.apply_op1(Watch(seen))
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

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        Ok((storage.try_clone(layout)?, layout.shape().clone()))
    }

    fn metal_fwd(&self, storage: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, Shape)> {
        Ok((storage.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        (self.0)(gradient)?;
        Ok(Some(gradient.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use candle_core::{Device, Var};

    #[test]
    fn the_gradient_is_seen_and_passes_on() -> Result<()> {
        let x = Var::from_slice(&[1f64, 2.0, 3.0], 3, &Device::Cpu)?;
        let seen: Arc<Mutex<Vec<f64>>> = Arc::default();
        let keep = seen.clone();
        let y = watch_gradient(x.as_tensor(), move |gradient| {
            keep.lock().unwrap().extend(gradient.to_vec1::<f64>()?);
            Ok(())
        })?;
        let grads = y.sqr()?.sum_all()?.backward()?;
        let at_x: Vec<f64> = grads.get(&x).unwrap().to_vec1()?;
        assert_eq!(at_x, [2.0, 4.0, 6.0]);
        assert_eq!(*seen.lock().unwrap(), at_x);
        Ok(())
    }
}
