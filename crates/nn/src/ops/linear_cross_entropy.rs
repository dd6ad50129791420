//! The vocabulary projection and the loss in one: the logits of some rows at a time, never all of them.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, WithDType};
use std::sync::Mutex;

use super::cpu::{self, dispatch};
use super::cross_entropy::{RowSum, Targets, cross_entropy, scalar};
use super::grad_buffer::deliver_owned;
use super::linear::{LinearGrads, WeightLayout, linear};
use super::product::{Mat, MatMut, Product};
use super::real::Real;
use crate::parallel::{self, Chunks};

/// `cross_entropy(linear(x, weight), targets)` without all of the `[.., vocab]` logits in memory, with the same bits: the loss and
/// the gradients.
///
/// The gradients are computed along with the loss, where anything is tracked, for the case that the loss's own gradient is
/// `expected_gradient` (mostly 1): with any other one the backward computes everything once more. `grads.weight` is used as in
/// [`linear`], `grads.bias` is not.
pub fn linear_cross_entropy(
    x: &Tensor,
    weight: &Tensor,
    layout: WeightLayout,
    targets: &Tensor,
    ignore_index: Option<i64>,
    expected_gradient: f64,
    grads: &LinearGrads,
) -> Result<Tensor> {
    let (inputs, vocab) = layout.sizes(weight.shape())?;
    let Some((_, leading)) = x.dims().split_last().filter(|&(&last, _)| last == inputs) else {
        candle_core::bail!(
            "linear cross entropy: the last axis of {:?} is not the {inputs} inputs of the weight",
            x.shape()
        );
    };
    if !cpu::fused(x) {
        return cross_entropy(&linear(x, weight, None, layout, grads)?, targets, ignore_index);
    }
    let targets = Targets::read(targets, leading, vocab, ignore_index)?;
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    dispatch!(x.dtype(), T => {
        let op = LinearCrossEntropyOp::<T> {
            layout,
            targets,
            grads: grads.clone(),
            of_x: x.track_op(),
            of_weight: weight.track_op(),
            // As it will arrive: rounded to the number type.
            expected_gradient: WithDType::to_f64(T::of(expected_gradient)),
            computed: Mutex::new(None),
        };
        x.apply_op2(&weight, op)
    })
}

/// How many of the sums that products cut go into one chunk of rows. More would take more memory; with one, the weight and its gradient would be
/// read and written again too often.
const SUMS: usize = 2;

struct LinearCrossEntropyOp<T> {
    layout: WeightLayout,
    targets: Targets,
    grads: LinearGrads,
    of_x: bool,
    of_weight: bool,
    expected_gradient: f64,
    /// What the forward computed for the backward.
    computed: Mutex<Option<Gradients<T>>>,
}

/// Empty where nothing is tracked.
struct Gradients<T> {
    x: Vec<T>,
    weight: Vec<T>,
}

impl<T: Real> LinearCrossEntropyOp<T> {
    /// The loss, and the gradients for a loss whose own gradient is `gradient`.
    fn compute(&self, x: &[T], weight: &[T], inputs: usize, gradient: f64) -> (T, Gradients<T>) {
        let (targets, vocab) = (&self.targets.values, weight.len() / inputs);
        let factor = gradient / self.targets.count as f64;
        // The weight's gradient is a sum over rows: cut where the products cut it themselves, it keeps its bits.
        let chunk = Product::<T>::sums_of().map_or(targets.len(), |sum| SUMS * sum).min(targets.len());
        let w = self.layout.in_out(weight, inputs, vocab);
        let room = |wanted: bool, len: usize| {
            // SAFETY: where a gradient is wanted, the products write every element of it.
            unsafe { cpu::uninit::<T>(if wanted { len } else { 0 }) }
        };
        let (mut dx, mut dw) = (room(self.of_x, x.len()), room(self.of_weight, weight.len()));
        let mut logits = room(true, chunk * vocab);
        let mut total = 0.0;
        for (i, targets) in targets.chunks(chunk).enumerate() {
            let rows = targets.len();
            let logits = &mut logits[..rows * vocab];
            let span = i * chunk * inputs..(i * chunk + rows) * inputs;
            let x = Mat::new(&x[span.clone()], rows, inputs);
            Product::of(x, w).write(MatMut::new(logits, rows, vocab));
            let each = Chunks::of(logits, vocab);
            // SAFETY: every row is asked for once.
            let losses = parallel::map(rows, |i| self.row(unsafe { each.get(i) }, targets[i], factor));
            // One after the other, as over all rows at once.
            total = losses.iter().fold(total, |total, loss| total + loss);
            let g = Mat::new(logits, rows, vocab);
            if self.of_x {
                Product::of(g, w.t()).write(MatMut::new(&mut dx[span], rows, inputs));
            }
            if self.of_weight {
                self.layout.weight_grad(&mut dw, i > 0, (inputs, vocab), x, g);
            }
        }
        (T::of(total / self.targets.count as f64), Gradients { x: dx, weight: dw })
    }

    /// The loss of one row of logits, which become their gradient when anything is tracked.
    fn row(&self, row: &mut [T], target: Option<usize>, factor: f64) -> f64 {
        let of_target = target.map(|target| row[target]);
        if !(self.of_x || self.of_weight) {
            return RowSum::of(row).loss(of_target);
        }
        let sum = RowSum::of_exps(row);
        sum.gradient_of_exps(row, target, factor);
        sum.loss(of_target)
    }
}

impl<T: Real> CustomOp2 for LinearCrossEntropyOp<T> {
    fn name(&self) -> &'static str {
        "linear cross entropy"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (inputs, _) = self.layout.sizes(wl.shape())?;
        let (loss, gradients) =
            self.compute(cpu::slice(x, xl)?, cpu::slice(w, wl)?, inputs, self.expected_gradient);
        if let Ok(mut computed) = self.computed.lock() {
            *computed = Some(gradients);
        }
        Ok((T::to_cpu_storage_owned(vec![loss]), Shape::from(())))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _loss: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradient = scalar(g)?;
        let computed = self.computed.lock().ok().and_then(|mut computed| computed.take());
        let gradients = match computed.filter(|_| gradient == self.expected_gradient) {
            Some(gradients) => gradients,
            None => {
                let (inputs, _) = self.layout.sizes(weight.shape())?;
                cpu::with_slice::<T, _>(x, |x| {
                    cpu::with_slice::<T, _>(weight, |w| Ok(self.compute(x, w, inputs, gradient).1))
                })?
            }
        };
        let dx = self.of_x.then(|| cpu::tensor(gradients.x, x.shape())).transpose()?;
        let dw = match self.of_weight {
            true => deliver_owned(weight, self.grads.weight.as_ref(), gradients.weight)?,
            false => None,
        };
        Ok((dx, dw))
    }
}

#[cfg(test)]
mod tests {
    use super::super::GradBuffer;
    use super::super::check::{assert_same_bits, check_gradients, gradients, random, values};
    use super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::*;
    use candle_core::{DType, Device, Var};
    use std::sync::Arc;

    const LAYOUTS: [WeightLayout; 2] = [WeightLayout::OutIn, WeightLayout::InOut];

    fn targets(rows: usize, vocab: i64) -> Result<Tensor> {
        let target = |i: usize| if i % 5 == 3 { -100 } else { (i as i64 * 7919) % vocab };
        Tensor::from_vec((0..rows).map(target).collect::<Vec<_>>(), (rows / 3, 3), &Device::Cpu)
    }

    fn weight(layout: WeightLayout, inputs: usize, vocab: usize, dtype: DType) -> Tensor {
        match layout {
            WeightLayout::OutIn => random((vocab, inputs), 2, dtype),
            WeightLayout::InOut => random((inputs, vocab), 2, dtype),
        }
    }

    /// Several chunks, the last one not whole.
    fn large(layout: WeightLayout) -> [Tensor; 2] {
        [random((301, 3, 24), 1, DType::F32), weight(layout, 24, 77, DType::F32)]
    }

    #[test]
    fn gradients_are_those_of_finite_differences() -> Result<()> {
        let targets = targets(15, 11)?;
        for layout in LAYOUTS {
            let inputs = [random((3, 5, 7), 1, DType::F64), weight(layout, 7, 11, DType::F64)];
            check_gradients("linear cross entropy", &inputs, |v| {
                let x = v[0].transpose(0, 1)?;
                linear_cross_entropy(&x, &v[1], layout, &targets, Some(-100), 1.0, &LinearGrads::default())
            });
        }
        Ok(())
    }

    #[test]
    fn the_bits_are_those_of_the_separate_ops() -> Result<()> {
        let targets = targets(903, 77)?;
        let none = LinearGrads::default();
        for layout in LAYOUTS {
            // The loss's own gradient is 1, or a third, expected or not.
            for (share, expected) in [(1.0, 1.0), (1.0 / 3.0, 1.0 / 3.0), (1.0 / 3.0, 1.0)] {
                let (loss, grads) = gradients(&large(layout), |v| {
                    let loss =
                        linear_cross_entropy(&v[0], &v[1], layout, &targets, Some(-100), expected, &none)?;
                    loss * share
                })?;
                let (separate, of_separate) = gradients(&large(layout), |v| {
                    cross_entropy(&linear(&v[0], &v[1], None, layout, &none)?, &targets, Some(-100))? * share
                })?;
                assert_same_bits("loss", &loss, &separate);
                for (grad, separate) in grads.iter().zip(&of_separate) {
                    assert_same_bits(&format!("gradient, {share} of {expected}"), grad, separate);
                }
            }
        }
        Ok(())
    }

    #[test]
    fn fused_like_composed_on_any_threads() -> Result<()> {
        let targets = targets(903, 77)?;
        for layout in LAYOUTS {
            let f = |v: &[Var]| {
                let none = LinearGrads::default();
                linear_cross_entropy(&v[0], &v[1], layout, &targets, Some(-100), 1.0, &none)
            };
            fused_like_composed("linear cross entropy", &large(layout), 2e-6, f)?;
            same_on_any_threads("linear cross entropy", &large(layout), f)?;
        }
        Ok(())
    }

    #[test]
    fn the_buffer_holds_the_gradient_of_the_tape_and_adds_up() -> Result<()> {
        let targets = targets(15, 11)?;
        let x = random((5, 3, 7), 1, DType::F32);
        let w = Var::from_tensor(&weight(WeightLayout::OutIn, 7, 11, DType::F32))?;
        let step = |grads: &LinearGrads| {
            linear_cross_entropy(&x, &w, WeightLayout::OutIn, &targets, Some(-100), 1.0, grads)?.backward()
        };
        let buffer = Arc::new(GradBuffer::new(w.shape()));
        let grads = LinearGrads { weight: Some(buffer.clone()), bias: None };
        assert!(step(&grads)?.get(&w).is_none());
        let (Some(once), tape) = (buffer.take()?, step(&LinearGrads::default())?) else {
            panic!("no gradient")
        };
        let Some(tape) = tape.get(&w) else { panic!("nothing on the tape") };
        assert_same_bits("buffer", &once, tape);
        step(&grads)?;
        step(&grads)?;
        let Some(twice) = buffer.take()? else { panic!("no gradient") };
        assert!(values(&once).iter().zip(values(&twice)).all(|(once, twice)| 2.0 * once == twice));
        Ok(())
    }

    #[test]
    fn a_forward_without_a_backward_leaves_nothing_in_the_buffer() -> Result<()> {
        let targets = targets(15, 11)?;
        let w = Var::from_tensor(&weight(WeightLayout::OutIn, 7, 11, DType::F32))?;
        let buffer = Arc::new(GradBuffer::new(w.shape()));
        let grads = LinearGrads { weight: Some(buffer.clone()), bias: None };
        let x = random((5, 3, 7), 1, DType::F32);
        let loss =
            |w: &Tensor| linear_cross_entropy(&x, w, WeightLayout::OutIn, &targets, Some(-100), 1.0, &grads);
        let tracked = loss(&w)?;
        assert!(buffer.take()?.is_none());
        let untracked = loss(&w.as_detached_tensor())?;
        assert!(!untracked.track_op());
        assert_same_bits("loss", &untracked, &tracked);
        Ok(())
    }
}
