//! The mean negative log likelihood of targets under logits.

use candle_core::{CpuStorage, CustomOp1, D, DType, Layout, Result, Shape, Tensor};
use std::sync::OnceLock;

use super::cpu::{self, dispatch};
use super::indices;
use super::real::{LANES, Real, lane_sum};
use crate::parallel;

/// The mean over all targets that are not `ignore_index` of `-log softmax(logits)[target]`, a scalar.
///
/// `logits` is `[.., vocab]`, `targets` (u32 or i64) has the same shape without the last axis. A target outside the
/// vocabulary is an error, and so is a batch without any target.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, ignore_index: Option<i64>) -> Result<Tensor> {
    let Some((&vocab, leading)) = logits.dims().split_last() else {
        candle_core::bail!("cross entropy: the logits are a scalar");
    };
    let targets = Targets::read(targets, leading, vocab, ignore_index)?;
    match cpu::fused(logits) {
        true => dispatch!(logits.dtype(), T => {
            logits.contiguous()?.apply_op1(CrossEntropyOp::<T> { targets, rows: OnceLock::new() })
        }),
        false => composed(&logits.reshape(((), vocab))?, &targets),
    }
}

fn composed(logits: &Tensor, targets: &Targets) -> Result<Tensor> {
    let kept = |(row, target): (usize, &Option<usize>)| target.map(|target| (row as u32, target as u32));
    let (rows, targets): (Vec<u32>, Vec<u32>) = targets.values.iter().enumerate().filter_map(kept).unzip();
    let device = logits.device();
    let targets = Tensor::new(targets, device)?.unsqueeze(1)?;
    let logits = match rows.len() == logits.dim(0)? {
        true => logits.clone(),
        false => logits.index_select(&Tensor::new(rows, device)?, 0)?,
    };
    let max = logits.max_keepdim(D::Minus1)?.detach();
    let shifted = logits.broadcast_sub(&max)?;
    let log_sum = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    (log_sum - shifted.gather(&targets, D::Minus1)?)?.mean_all()
}

/// The checked targets of a batch; `None` where there is nothing to learn.
pub(crate) struct Targets {
    pub(crate) values: Vec<Option<usize>>,
    /// How many are not ignored, at least 1.
    pub(crate) count: usize,
}

impl Targets {
    pub(crate) fn read(
        targets: &Tensor,
        leading: &[usize],
        vocab: usize,
        ignore_index: Option<i64>,
    ) -> Result<Self> {
        if targets.dims() != leading {
            candle_core::bail!("cross entropy: targets of shape {:?} for rows {leading:?}", targets.shape());
        }
        let check = |(at, target): (usize, i64)| match Some(target) == ignore_index {
            true => Ok(None),
            false => indices::check("target", target, at, vocab).map(Some),
        };
        let values = indices::read("targets", targets)?;
        let values = values.into_iter().enumerate().map(check).collect::<Result<Vec<_>>>()?;
        match values.iter().flatten().count() {
            0 => candle_core::bail!(
                "cross entropy: none of the {} targets counts, so there is no mean (ignore_index is {ignore_index:?})",
                values.len()
            ),
            count => Ok(Self { values, count }),
        }
    }
}

/// Terms added up in the number type itself; the rest of the sum is f64, or a large vocabulary would lose digits.
const PART: usize = 1024;

/// What the softmax of one row needs besides its logits.
#[derive(Clone, Copy)]
pub(crate) struct RowSum<T> {
    max: T,
    sum: f64,
}

impl<T: Real> RowSum<T> {
    pub(crate) fn of(logits: &[T]) -> Self {
        cpu::wide(
            #[inline(always)]
            || {
                let max = lane_max(logits);
                let mut exps = [T::zero(); PART];
                let mut sum = 0.0;
                for part in logits.chunks(PART) {
                    let exps = &mut exps[..part.len()];
                    exps.copy_from_slice(part);
                    sum += to_exps(exps, max);
                }
                Self { max, sum }
            },
        )
    }

    /// The same, and the logits become `exp(logit - max)`, with which their gradient is a multiplication away.
    pub(crate) fn of_exps(logits: &mut [T]) -> Self {
        cpu::wide(
            #[inline(always)]
            || {
                let max = lane_max(logits);
                let mut sum = 0.0;
                for part in logits.chunks_mut(PART) {
                    sum += to_exps(part, max);
                }
                Self { max, sum }
            },
        )
    }

    /// The loss of a row whose target has this logit.
    pub(crate) fn loss(&self, of_target: Option<T>) -> f64 {
        match of_target {
            Some(logit) => self.sum.ln() + (self.max - logit).to_f64(),
            None => 0.0,
        }
    }

    /// Turns a row of logits into its gradient, for a loss that counts `factor` times.
    pub(crate) fn gradient_in_place(&self, logits: &mut [T], target: Option<usize>, factor: f64) {
        self.gradient_by(logits, target, factor, |logit| (logit - self.max).fast_exp());
    }

    /// The same from what [`of_exps`](Self::of_exps) has made of the logits.
    pub(crate) fn gradient_of_exps(&self, exps: &mut [T], target: Option<usize>, factor: f64) {
        self.gradient_by(exps, target, factor, |exp| exp);
    }

    #[inline(always)]
    fn gradient_by(&self, row: &mut [T], target: Option<usize>, factor: f64, exp: impl Fn(T) -> T) {
        let Some(target) = target else { return row.fill(T::zero()) };
        let share = T::of(factor / self.sum);
        cpu::wide(
            #[inline(always)]
            || row.iter_mut().for_each(|value| *value = exp(*value) * share),
        );
        row[target] -= T::of(factor);
    }
}

/// Turns a part of a row of logits into `exp(logit - max)`, and gives their sum.
#[inline(always)]
fn to_exps<T: Real>(part: &mut [T], max: T) -> f64 {
    for logit in part.iter_mut() {
        *logit = (*logit - max).fast_exp();
    }
    let exps = &*part;
    lane_sum(exps.len(), |i| exps[i]).to_f64()
}

#[inline(always)]
fn lane_max<T: Real>(values: &[T]) -> T {
    let larger = |a: T, b: T| if b > a { b } else { a };
    let mut lanes = [T::neg_infinity(); LANES];
    let mut parts = values.chunks_exact(LANES);
    for part in &mut parts {
        lanes.iter_mut().zip(part).for_each(|(lane, &x)| *lane = larger(*lane, x));
    }
    lanes.into_iter().chain(parts.remainder().iter().copied()).fold(T::neg_infinity(), larger)
}

struct CrossEntropyOp<T> {
    targets: Targets,
    rows: OnceLock<Vec<RowSum<T>>>,
}

impl<T: Real> CustomOp1 for CrossEntropyOp<T> {
    fn name(&self) -> &'static str {
        "cross entropy"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let targets = &self.targets;
        let logits = cpu::slice::<T>(logits, layout)?;
        let vocab = logits.len() / targets.values.len();
        let rows = cpu::map_chunks(logits, vocab, |_, row| RowSum::of(row));
        let losses = rows.iter().zip(logits.chunks_exact(vocab)).zip(&targets.values);
        let total: f64 =
            losses.map(|((row, logits), &target)| row.loss(target.map(|target| logits[target]))).sum();
        match self.rows.set(rows) {
            Ok(()) => {
                Ok((T::to_cpu_storage_owned(vec![T::of(total / targets.count as f64)]), Shape::from(())))
            }
            Err(_) => candle_core::bail!("cross entropy: one op object runs one forward"),
        }
    }

    fn bwd(&self, logits: &Tensor, _loss: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let Some(rows) = self.rows.get() else {
            candle_core::bail!("cross entropy: the forward did not run")
        };
        let factor = scalar(g)? / self.targets.count as f64;
        cpu::with_slice::<T, _>(logits, |values| {
            let vocab = values.len() / rows.len();
            // SAFETY: every row is written.
            let mut dx = unsafe { cpu::uninit::<T>(values.len()) };
            parallel::for_chunks(&mut dx, vocab, |start, dx| {
                dx.copy_from_slice(&values[start..][..vocab]);
                let row = start / vocab;
                rows[row].gradient_in_place(dx, self.targets.values[row], factor);
            });
            cpu::tensor(dx, logits.shape()).map(Some)
        })
    }
}

/// The value of a scalar tensor.
pub(crate) fn scalar(t: &Tensor) -> Result<f64> {
    t.to_dtype(DType::F64)?.to_scalar()
}

#[cfg(test)]
mod tests {
    use super::super::check::{check_gradients, random};
    use super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::*;
    use candle_core::{Device, Var};

    fn targets(rows: usize, vocab: i64) -> Result<Tensor> {
        let target = |i: usize| if i % 5 == 3 { -100 } else { (i as i64 * 7919) % vocab };
        Tensor::from_vec((0..rows).map(target).collect::<Vec<_>>(), rows, &Device::Cpu)
    }

    #[test]
    fn the_loss_is_the_mean_of_the_targets_that_count() -> Result<()> {
        let logits = Tensor::new(&[[[0f64, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]]], &Device::Cpu)?;
        let of = |targets: [i64; 2]| {
            scalar(&cross_entropy(&logits, &Tensor::new(&[targets], &Device::Cpu)?, Some(-100))?)
        };
        let second = (0..4).map(|i| f64::from(i - 3).exp()).sum::<f64>().ln();
        assert!((of([1, 3])? - (4f64.ln() + second) / 2.0).abs() < 1e-12);
        assert!((of([-100, 3])? - second).abs() < 1e-12);
        Ok(())
    }

    #[test]
    fn gradients_are_those_of_finite_differences() -> Result<()> {
        let targets = targets(17, 13)?;
        check_gradients("cross entropy", &[random((13, 17), 1, DType::F64)], |v| {
            cross_entropy(&v[0].t()?, &targets, Some(-100))
        });
        Ok(())
    }

    #[test]
    fn fused_like_composed_on_any_threads() -> Result<()> {
        let targets = targets(203, 517)?;
        let logits = [(random((203, 517), 1, DType::F32) * 20.0)?];
        let f = |v: &[Var]| cross_entropy(&v[0], &targets, Some(-100));
        fused_like_composed("cross entropy", &logits, 1e-6, f)?;
        same_on_any_threads("cross entropy", &logits, f)
    }

    #[test]
    fn impossible_targets_are_errors_that_say_so() -> Result<()> {
        let logits = random((2, 4), 1, DType::F32);
        let error = |targets: &Tensor| match cross_entropy(&logits, targets, Some(-100)) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        let outside = error(&Tensor::new(&[0u32, 4], &Device::Cpu)?);
        assert!(outside.contains("target 4 at index 1 is outside the vocabulary of 4"), "{outside}");
        let nothing = error(&Tensor::new(&[-100i64, -100], &Device::Cpu)?);
        assert!(nothing.contains("none of the 2 targets counts"), "{nothing}");
        assert!(error(&Tensor::new(&[0u32], &Device::Cpu)?).contains("shape"));
        Ok(())
    }
}
