//! `act(x @ W + b)` in one op: the activation is taken while the product is still in the cache.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};
use std::sync::OnceLock;

use super::activation::{Activation, activate, gradients, with_curve};
use super::cpu::{self, dispatch};
use super::linear::{LinearGrads, LinearOp, WeightLayout, linear, with_last};
use super::product::{MatMut, Rows};
use super::real::Real;

/// `activate(linear(x, weight, bias), act)` with the same bits. `grads` are used as in [`linear`].
pub fn linear_activated(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    layout: WeightLayout,
    act: Activation,
    grads: &LinearGrads,
) -> Result<Tensor> {
    if !cpu::fused(x) {
        return activate(&linear(x, weight, bias, layout, grads)?, act);
    }
    let linear = LinearOp::checked(x, weight, bias, layout, grads)?;
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    let tracked = [Some(&x), Some(&weight), bias].into_iter().flatten().any(Tensor::track_op);
    dispatch!(x.dtype(), T => {
        let op = LinearActivatedOp::<T> { linear, act, tracked, before: OnceLock::new() };
        match bias {
            None => x.apply_op2(&weight, op),
            Some(bias) => x.apply_op3(&weight, &bias.contiguous()?, op),
        }
    })
}

struct LinearActivatedOp<T> {
    linear: LinearOp,
    act: Activation,
    tracked: bool,
    /// The product itself, which the backward needs.
    before: OnceLock<Vec<T>>,
}

impl<T: Real> LinearActivatedOp<T> {
    fn forward(
        &self,
        x: (&CpuStorage, &Layout),
        w: (&CpuStorage, &Layout),
        bias: Option<(&CpuStorage, &Layout)>,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, outputs) = self.linear.layout().sizes(w.1.shape())?;
        let shape = with_last(x.1.dims(), outputs);
        let rows = shape.elem_count() / outputs;
        // SAFETY: every element is written: by the product, or from it as its parts are complete.
        let mut y = unsafe { cpu::uninit::<T>(shape.elem_count()) };
        if self.tracked {
            let mut before = unsafe { cpu::uninit::<T>(shape.elem_count()) };
            let to = MatMut::new(&mut y, rows, outputs);
            let to = Rows::of(&to);
            let activate = |row: usize, col: usize, part: &mut [T]| {
                // SAFETY: every part of the product is complete once.
                let to = unsafe { to.part(row, col..col + part.len()) };
                to.copy_from_slice(part);
                self.activate(to);
            };
            self.linear.product(x, w, bias, Some(&activate), &mut before)?;
            if self.before.set(before).is_err() {
                candle_core::bail!("activated linear: one op object runs one forward");
            }
        } else {
            self.linear.product(x, w, bias, Some(&|_, _, part| self.activate(part)), &mut y)?;
        }
        Ok((T::to_cpu_storage_owned(y), shape))
    }

    fn activate(&self, part: &mut [T]) {
        with_curve!(self.act, f => cpu::wide(
            #[inline(always)]
            || part.iter_mut().for_each(|x| *x = f(*x).0),
        ));
    }

    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        g: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let Some(before) = self.before.get() else {
            candle_core::bail!("activated linear: the forward did not run")
        };
        let of_product = cpu::with_slice::<T, _>(g, |values| {
            cpu::tensor(with_curve!(self.act, f => gradients(before, values, f)), g.shape())
        })?;
        self.linear.backward::<T>(x, weight, bias, &of_product)
    }
}

impl<T: Real> CustomOp2 for LinearActivatedOp<T> {
    fn name(&self) -> &'static str {
        "activated linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward((x, xl), (w, wl), None)
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [dx, dw, _] = self.backward(x, weight, None, g)?;
        Ok((dx, dw))
    }
}

impl<T: Real> CustomOp3 for LinearActivatedOp<T> {
    fn name(&self) -> &'static str {
        "activated linear with bias"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward((x, xl), (w, wl), Some((b, bl)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dx, dw, db] = self.backward(x, weight, Some(bias), g)?;
        Ok((dx, dw, db))
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{assert_same_bits, check_gradients, gradients, random};
    use super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::*;
    use candle_core::{DType, Var};

    const LAYOUTS: [WeightLayout; 2] = [WeightLayout::OutIn, WeightLayout::InOut];

    fn inputs(layout: WeightLayout, rows: usize, dtype: DType) -> [Tensor; 3] {
        let weight = match layout {
            WeightLayout::OutIn => (37, 12),
            WeightLayout::InOut => (12, 37),
        };
        [random((rows, 3, 12), 1, dtype), random(weight, 2, dtype), random(37, 3, dtype)]
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let none = LinearGrads::default();
        for layout in LAYOUTS {
            let [x, w, b] = inputs(layout, 3, DType::F64);
            check_gradients("activated linear", &[x.clone(), w.clone(), b], |v| {
                linear_activated(&v[0], &v[1], Some(&v[2]), layout, Activation::GeluTanh, &none)
            });
            check_gradients("no bias", &[x, w], |v| {
                linear_activated(&v[0], &v[1], None, layout, Activation::Silu, &none)
            });
        }
    }

    #[test]
    fn the_bits_are_those_of_the_separate_ops() -> Result<()> {
        let none = LinearGrads::default();
        for layout in LAYOUTS {
            for act in [Activation::GeluTanh, Activation::Gelu, Activation::Relu] {
                let inputs = inputs(layout, 70, DType::F32);
                let one = |v: &[Var]| linear_activated(&v[0], &v[1], Some(&v[2]), layout, act, &none);
                let (y, grads) = gradients(&inputs, one)?;
                let (separate, of_separate) = gradients(&inputs, |v| {
                    activate(&linear(&v[0], &v[1], Some(&v[2]), layout, &none)?, act)
                })?;
                assert_same_bits("output", &y, &separate);
                grads.iter().zip(&of_separate).for_each(|(a, b)| assert_same_bits("gradient", a, b));
                let constant =
                    linear_activated(&inputs[0], &inputs[1], Some(&inputs[2]), layout, act, &none)?;
                assert!(!constant.track_op());
                assert_same_bits("constant", &y, &constant);
                fused_like_composed("activated linear", &inputs, 3e-6, one)?;
                same_on_any_threads("activated linear", &inputs, one)?;
            }
        }
        Ok(())
    }
}
