//! Adam with decoupled weight decay, as `torch.optim.AdamW` computes it.

use candle_core::{Result, Tensor};

use super::kernel::{Real, Rule};

/// The numbers of one step of one parameter, computed on the host in f64.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdamW {
    /// What the weight is multiplied with: one minus rate times decay.
    keep: f64,
    /// One minus the first beta.
    weight1: f64,
    beta2: f64,
    /// The rate over the first bias correction.
    step_size: f64,
    /// The root of the second bias correction.
    correction2: f64,
    eps: f64,
}

impl AdamW {
    /// The names of what is kept per parameter.
    pub(super) const STATE: [&'static str; 2] = ["exp_avg", "exp_avg_sq"];

    /// For a parameter's `step`-th step, which counts from 1.
    pub(super) fn new(lr: f64, betas: [f64; 2], eps: f64, weight_decay: f64, step: u64) -> Self {
        let correction = |beta: f64| 1.0 - beta.powf(step as f64);
        Self {
            keep: 1.0 - lr * weight_decay,
            weight1: 1.0 - betas[0],
            beta2: betas[1],
            step_size: lr / correction(betas[0]),
            correction2: correction(betas[1]).sqrt(),
            eps,
        }
    }

    /// No number of the step is larger than the first result; the others bound the new state. From the largest
    /// magnitudes of the weight, of the scaled gradient and of the state.
    pub(super) fn bound(&self, weight: f64, grad: f64, state: &[f64]) -> (f64, Vec<f64>) {
        // Both moments are averages of what was there and what comes.
        let mean = grad.max(state[0]);
        let square = (grad * grad).max(state[1]);
        // An eps that vanishes in f32 bounds nothing.
        let eps = if self.eps as f32 >= f32::MIN_POSITIVE { self.eps } else { 0.0 };
        let change = self.step_size.abs() * (mean + f64::MIN_POSITIVE) / eps;
        let root = square.sqrt() / self.correction2;
        let numbers = [2.0 * mean, square, root, self.step_size, weight * self.keep.abs() + change];
        (f64::largest(&numbers), vec![mean, square])
    }

    /// The new weight and state, for devices without a pass of our own.
    pub(super) fn composed(
        &self,
        weight: &Tensor,
        grad: &Tensor,
        state: &[Tensor],
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let mean = (&state[0] + ((grad - &state[0])? * self.weight1)?)?;
        let square = ((&state[1] * self.beta2)? + (grad.sqr()? * (1.0 - self.beta2))?)?;
        let denominator = ((square.sqrt()? / self.correction2)? + self.eps)?;
        let weight = ((weight * self.keep)? - ((&mean * self.step_size)? / denominator)?)?;
        Ok((weight, vec![mean, square]))
    }

    /// The same numbers in the parameter's type.
    pub(super) fn rule<T: Real>(&self) -> AdamWRule<T> {
        let of = T::from_f64;
        AdamWRule {
            keep: of(self.keep),
            weight1: of(self.weight1),
            beta1: of(1.0) - of(self.weight1),
            beta2: of(self.beta2),
            weight2: of(1.0 - self.beta2),
            step_size: of(self.step_size),
            correction2: of(self.correction2),
            eps: of(self.eps),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct AdamWRule<T> {
    keep: T,
    weight1: T,
    beta1: T,
    beta2: T,
    weight2: T,
    step_size: T,
    correction2: T,
    eps: T,
}

impl<T: Real> Rule<T, 2> for AdamWRule<T> {
    #[inline(always)]
    fn next(&self, weight: T, grad: T, [mean, square]: [T; 2]) -> (T, [T; 2]) {
        // torch's `lerp` measures from the nearer end.
        let (from_mean, from_grad) = (mean + self.weight1 * (grad - mean), grad - (grad - mean) * self.beta1);
        let mean = if self.weight1 < T::from_f64(0.5) { from_mean } else { from_grad };
        let square = square * self.beta2 + self.weight2 * grad * grad;
        let denominator = square.sqrt() / self.correction2 + self.eps;
        (weight * self.keep - self.step_size * mean / denominator, [mean, square])
    }
}
