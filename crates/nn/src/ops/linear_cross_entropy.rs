//! The vocabulary projection and the loss in one: the logits of a few rows at a time, never all of them.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use rayon::prelude::*;
use std::sync::OnceLock;

use super::cpu::{self, CHUNK, dispatch};
use super::cross_entropy::{RowSum, Targets, cross_entropy, scalar};
use super::grad_buffer::deliver;
use super::linear::{LinearGrads, WeightLayout, linear};
use super::matmul::{Mat, MatMut, Threads, matmul};
use super::real::Real;

/// Logits that exist at a time. Fewer would make the products with the large weight slower; tests want several chunks.
const LOGITS: usize = if cfg!(test) { 1 << 12 } else { 1 << 24 };

/// `cross_entropy(soft_cap(linear(x, weight)), targets)` without the `[.., vocab]` logits in memory.
///
/// `x` is `[.., d]`; with a `soft_cap` every logit becomes `cap * tanh(logit / cap)`. The gradients are computed
/// along with the loss, when tracked; `grads.weight` is used as in [`linear`], `grads.bias` is not.
pub fn linear_cross_entropy(
    x: &Tensor,
    weight: &Tensor,
    layout: WeightLayout,
    targets: &Tensor,
    ignore_index: Option<i64>,
    soft_cap: Option<f64>,
    grads: &LinearGrads,
) -> Result<Tensor> {
    let (inputs, vocab) = layout.sizes(weight.shape())?;
    let Some((_, leading)) = x.dims().split_last().filter(|&(&last, _)| last == inputs) else {
        candle_core::bail!(
            "linear cross entropy: the last axis of {:?} is not the {inputs} inputs of the weight",
            x.shape()
        );
    };
    if let Some(cap) = soft_cap.filter(|cap| !(*cap > 0.0 && cap.is_finite())) {
        candle_core::bail!("linear cross entropy: the soft cap must be positive, not {cap}");
    }
    if !cpu::fused(x) {
        let logits = linear(x, weight, None, layout, grads)?;
        let logits = match soft_cap {
            Some(cap) => ((logits / cap)?.tanh()? * cap)?,
            None => logits,
        };
        return cross_entropy(&logits, targets, ignore_index);
    }
    let targets = Targets::read(targets, leading, vocab, ignore_index)?;
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    dispatch!(x.dtype(), T => {
        let op = LinearCrossEntropyOp::<T> {
            layout,
            targets,
            soft_cap,
            grads: grads.clone(),
            of_x: x.track_op(),
            of_weight: weight.track_op(),
            saved: OnceLock::new(),
        };
        x.apply_op2(&weight, op)
    })
}

struct LinearCrossEntropyOp<T> {
    layout: WeightLayout,
    targets: Targets,
    soft_cap: Option<f64>,
    grads: LinearGrads,
    of_x: bool,
    of_weight: bool,
    saved: OnceLock<Gradients<T>>,
}

/// Gradients of the loss itself, to be multiplied by the one that arrives; empty where nothing is tracked.
struct Gradients<T> {
    x: Vec<T>,
    weight: Vec<T>,
}

impl<T: Real> LinearCrossEntropyOp<T> {
    fn forward(&self, x: &[T], weight: &[T], inputs: usize, vocab: usize) -> (f64, Gradients<T>) {
        let targets = &self.targets.values;
        let chunk = (LOGITS / vocab).clamp(1, targets.len());
        let w = self.layout.in_out(weight, inputs, vocab);
        let zeros = |wanted: bool, len: usize| vec![T::zero(); if wanted { len } else { 0 }];
        let mut dx = zeros(self.of_x, x.len());
        let mut dw = zeros(self.of_weight, weight.len());
        let mut logits = vec![T::zero(); chunk * vocab];
        let mut total = 0.0;
        for (i, targets) in targets.chunks(chunk).enumerate() {
            let rows = targets.len();
            let logits = &mut logits[..rows * vocab];
            let span = i * chunk * inputs..(i * chunk + rows) * inputs;
            let x = Mat::new(&x[span.clone()], rows, inputs);
            matmul(MatMut::new(logits, rows, vocab), false, T::one(), x, w, Threads::All);
            let losses: Vec<f64> = logits
                .par_chunks_exact_mut(vocab)
                .zip(targets)
                .map(|(row, &target)| self.row(row, target))
                .collect();
            total += losses.iter().sum::<f64>();
            let g = Mat::new(logits, rows, vocab);
            if self.of_x {
                matmul(MatMut::new(&mut dx[span], rows, inputs), false, T::one(), g, w.t(), Threads::All);
            }
            if self.of_weight {
                self.layout.weight_grad(&mut dw, i > 0, (inputs, vocab), x, g);
            }
        }
        (total / self.targets.count as f64, Gradients { x: dx, weight: dw })
    }

    /// The loss of one row of logits, which become their gradient when anything is tracked.
    fn row(&self, row: &mut [T], target: Option<usize>) -> f64 {
        if let Some(cap) = self.soft_cap {
            let (cap, inverse) = (T::of(cap), T::of(1.0 / cap));
            cpu::wide(
                #[inline(always)]
                || {
                    for logit in row.iter_mut() {
                        *logit = cap * (*logit * inverse).fast_tanh();
                    }
                },
            );
        }
        let sum = RowSum::of(row);
        let loss = sum.loss(row, target);
        if !self.of_x && !self.of_weight {
            return loss;
        }
        let Some(target) = target else {
            row.fill(T::zero());
            return loss;
        };
        let factor = 1.0 / self.targets.count as f64;
        let share = sum.share(factor);
        let mut at_target = T::of(factor);
        match self.soft_cap {
            None => cpu::wide(
                #[inline(always)]
                || {
                    for logit in row.iter_mut() {
                        *logit = sum.exp(*logit) * share;
                    }
                },
            ),
            Some(cap) => {
                let inverse = T::of(1.0 / cap);
                at_target *= cap_slope(row[target], inverse);
                cpu::wide(
                    #[inline(always)]
                    || {
                        for logit in row.iter_mut() {
                            *logit = sum.exp(*logit) * share * cap_slope(*logit, inverse);
                        }
                    },
                );
            }
        }
        row[target] -= at_target;
        loss
    }
}

/// The derivative of `cap * tanh(logit / cap)`, from its value.
#[inline(always)]
fn cap_slope<T: Real>(capped: T, inverse: T) -> T {
    let tanh = capped * inverse;
    T::one() - tanh * tanh
}

/// `to = from * factor` when fresh, else `to += from * factor`.
fn add_scaled<T: Real>(to: &mut [T], from: &[T], factor: T, fresh: bool) {
    cpu::for_chunks(to, CHUNK, |start, to| {
        let pairs = to.iter_mut().zip(&from[start..]);
        match fresh {
            true => pairs.for_each(|(to, &from)| *to = from * factor),
            false => pairs.for_each(|(to, &from)| *to += from * factor),
        }
    });
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
        let (inputs, vocab) = self.layout.sizes(wl.shape())?;
        let (loss, gradients) = self.forward(cpu::slice(x, xl)?, cpu::slice(w, wl)?, inputs, vocab);
        match self.saved.set(gradients) {
            Ok(()) => Ok((T::to_cpu_storage_owned(vec![T::of(loss)]), Shape::from(()))),
            Err(_) => candle_core::bail!("linear cross entropy: one op object runs one forward"),
        }
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _loss: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let Some(saved) = self.saved.get() else {
            candle_core::bail!("linear cross entropy: the forward did not run")
        };
        let factor = T::of(scalar(g)?);
        let dx = deliver::<T>(x, None, |dx, fresh| add_scaled(dx, &saved.x, factor, fresh))?;
        let dw = deliver::<T>(weight, self.grads.weight.as_ref(), |dw, fresh| {
            add_scaled(dw, &saved.weight, factor, fresh);
        })?;
        Ok((dx, dw))
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{assert_same_bits, check_gradients, random, values};
    use super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::super::{GradBuffer, composed_only};
    use super::*;
    use candle_core::{DType, Device, Var};
    use std::sync::Arc;

    fn targets(rows: usize, vocab: i64) -> Result<Tensor> {
        let target = |i: usize| if i % 5 == 3 { -100 } else { (i as i64 * 7919) % vocab };
        Tensor::from_vec((0..rows).map(target).collect::<Vec<_>>(), (rows / 3, 3), &Device::Cpu)
    }

    const CASES: [(WeightLayout, Option<f64>); 3] =
        [(WeightLayout::OutIn, None), (WeightLayout::InOut, Some(2.5)), (WeightLayout::OutIn, Some(2.5))];

    fn weight(layout: WeightLayout, inputs: usize, vocab: usize, dtype: DType) -> Tensor {
        match layout {
            WeightLayout::OutIn => random((vocab, inputs), 2, dtype),
            WeightLayout::InOut => random((inputs, vocab), 2, dtype),
        }
    }

    #[test]
    fn gradients_are_those_of_finite_differences() -> Result<()> {
        let targets = targets(15, 11)?;
        for (layout, cap) in CASES {
            let inputs = [random((3, 5, 7), 1, DType::F64), weight(layout, 7, 11, DType::F64)];
            check_gradients("linear cross entropy", &inputs, |v| {
                let x = v[0].transpose(0, 1)?;
                linear_cross_entropy(&x, &v[1], layout, &targets, Some(-100), cap, &LinearGrads::default())
            });
        }
        Ok(())
    }

    #[test]
    fn chunks_give_the_loss_and_gradients_of_the_separate_ops() -> Result<()> {
        let (rows, vocab) = (33, 501);
        assert!(rows * vocab > 2 * LOGITS);
        let targets = targets(rows, vocab as i64)?;
        for (layout, cap) in CASES {
            let inputs = [random((rows / 3, 3, 5), 1, DType::F32), weight(layout, 5, vocab, DType::F32)];
            let f = |v: &[Var]| {
                let none = LinearGrads::default();
                linear_cross_entropy(&v[0], &v[1], layout, &targets, Some(-100), cap, &none)
            };
            fused_like_composed("linear cross entropy", &inputs, 2e-6, f)?;
            let vars = inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
            let (fused, composed) = (scalar(&f(&vars)?)?, scalar(&composed_only(|| f(&vars))?)?);
            assert!((fused - composed).abs() < 1e-6 * composed, "{fused} and {composed}");
        }
        Ok(())
    }

    #[test]
    fn the_number_of_threads_changes_no_bit() -> Result<()> {
        let targets = targets(303, 501)?;
        let inputs = [random((101, 3, 64), 1, DType::F32), weight(WeightLayout::OutIn, 64, 501, DType::F32)];
        same_on_any_threads("linear cross entropy", &inputs, |v| {
            let none = LinearGrads::default();
            linear_cross_entropy(&v[0], &v[1], WeightLayout::OutIn, &targets, Some(-100), Some(4.0), &none)
        })
    }

    #[test]
    fn the_buffer_holds_the_gradient_of_the_tape_and_adds_up() -> Result<()> {
        let targets = targets(15, 11)?;
        let x = random((5, 3, 7), 1, DType::F32);
        let w = Var::from_tensor(&weight(WeightLayout::OutIn, 7, 11, DType::F32))?;
        let step = |grads: &LinearGrads| {
            let loss = linear_cross_entropy(&x, &w, WeightLayout::OutIn, &targets, Some(-100), None, grads)?;
            (loss * 3.0)?.backward()
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
    fn a_validation_loss_is_the_same_and_tracks_nothing() -> Result<()> {
        let targets = targets(15, 11)?;
        let x = random((5, 3, 7), 1, DType::F32);
        let w = Var::from_tensor(&weight(WeightLayout::OutIn, 7, 11, DType::F32))?;
        let none = LinearGrads::default();
        let loss =
            |w: &Tensor| linear_cross_entropy(&x, w, WeightLayout::OutIn, &targets, Some(-100), None, &none);
        let untracked = loss(&w.as_detached_tensor())?;
        assert!(!untracked.track_op());
        assert_same_bits("loss", &untracked, &loss(&w)?);
        let out = linear_cross_entropy(&x, &w, WeightLayout::OutIn, &targets, Some(-1), None, &none);
        assert!(out.is_err_and(|error| error.to_string().contains("target -100")));
        Ok(())
    }
}
