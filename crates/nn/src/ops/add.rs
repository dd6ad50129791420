//! A sum of two tensors of one shape: candle's is on one thread.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, WithDType};

use super::cpu::{self, CHUNK, dispatch};
use super::real::Real;

/// `a + b`.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match cpu::fused(a) && a.dtype() == b.dtype() && a.shape() == b.shape() {
        true => a.contiguous()?.apply_op2(&b.contiguous()?, Add),
        false => a + b,
    }
}

struct Add;

impl CustomOp2 for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        al: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        dispatch!(a.dtype(), T => {
            let y = sum::<T>(cpu::slice(a, al)?, cpu::slice(b, bl)?);
            Ok((T::to_cpu_storage_owned(y), al.shape().clone()))
        })
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((Some(g.clone()), Some(g.clone())))
    }
}

fn sum<T: Real>(a: &[T], b: &[T]) -> Vec<T> {
    // SAFETY: every element is written.
    let mut y = unsafe { cpu::uninit::<T>(a.len()) };
    cpu::for_chunks(&mut y, CHUNK, |start, y| {
        cpu::wide(
            #[inline(always)]
            || {
                for ((y, &a), &b) in y.iter_mut().zip(&a[start..]).zip(&b[start..]) {
                    *y = a + b;
                }
            },
        );
    });
    y
}

#[cfg(test)]
mod tests {
    use super::super::check::{assert_same_bits, check_gradients, random};
    use super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::*;
    use candle_core::{DType, Var};

    #[test]
    fn it_is_candles_sum_with_its_gradients() -> Result<()> {
        let inputs = |dtype| [random((70, 300), 1, dtype), random((300, 70), 2, dtype)];
        let f = |v: &[Var]| add(&v[0], &v[1].t()?);
        let small = [random((3, 5), 1, DType::F64), random((5, 3), 2, DType::F64)];
        check_gradients("add", &small, f);
        fused_like_composed("add", &inputs(DType::F32), 1e-7, f)?;
        same_on_any_threads("add", &inputs(DType::F32), f)?;
        let [a, b] = inputs(DType::F32);
        assert_same_bits("sum", &add(&a, &b.t()?)?, &(a + b.t()?)?);
        Ok(())
    }
}
