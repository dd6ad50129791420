//! Gradient descent with momentum and coupled weight decay, as `torch.optim.SGD` computes it (no dampening).

use candle_core::{Result, Tensor};

use super::kernel::{Real, Rule};

/// The numbers of one step, computed on the host in f64.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sgd {
    pub(super) lr: f64,
    pub(super) weight_decay: f64,
    pub(super) momentum: f64,
    pub(super) nesterov: bool,
}

impl Sgd {
    /// The names of what is kept per parameter, if there is momentum.
    pub(super) const STATE: [&'static str; 1] = ["momentum_buffer"];

    /// As [`AdamW::bound`](super::adamw::AdamW::bound).
    pub(super) fn bound(&self, weight: f64, grad: f64, state: &[f64]) -> (f64, Vec<f64>) {
        let grad = grad + self.weight_decay * weight;
        let buffer = state.first().map(|buffer| self.momentum * buffer + grad);
        // Nesterov adds the gradient once more; whether it does is not worth a case.
        let change = grad + buffer.unwrap_or(0.0);
        (f64::largest(&[change, self.lr, weight + self.lr.abs() * change]), buffer.into_iter().collect())
    }

    /// The new weight and state, for devices without a pass of our own.
    pub(super) fn composed(
        &self,
        weight: &Tensor,
        grad: &Tensor,
        state: &[Tensor],
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let grad = (grad + (weight * self.weight_decay)?)?;
        let buffer = match state.first() {
            Some(buffer) => Some(((buffer * self.momentum)? + &grad)?),
            None => None,
        };
        let change = match &buffer {
            Some(buffer) if self.nesterov => (grad + (buffer * self.momentum)?)?,
            Some(buffer) => buffer.clone(),
            None => grad,
        };
        Ok(((weight - (change * self.lr)?)?, buffer.into_iter().collect()))
    }

    /// The same numbers in the parameter's type.
    pub(super) fn rule<T: Real>(&self) -> SgdRule<T> {
        let of = T::from_f64;
        SgdRule {
            lr: of(self.lr),
            weight_decay: of(self.weight_decay),
            momentum: of(self.momentum),
            nesterov: self.nesterov,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct SgdRule<T> {
    lr: T,
    weight_decay: T,
    momentum: T,
    nesterov: bool,
}

impl<T: Real> Rule<T, 0> for SgdRule<T> {
    #[inline(always)]
    fn next(&self, weight: T, grad: T, _: [T; 0]) -> (T, [T; 0]) {
        let grad = grad + self.weight_decay * weight;
        (weight - self.lr * grad, [])
    }
}

impl<T: Real> Rule<T, 1> for SgdRule<T> {
    #[inline(always)]
    fn next(&self, weight: T, grad: T, [buffer]: [T; 1]) -> (T, [T; 1]) {
        let grad = grad + self.weight_decay * weight;
        // A buffer starts at zero, so that the first one is the gradient itself, as in torch.
        let buffer = buffer * self.momentum + grad;
        let change = if self.nesterov { grad + self.momentum * buffer } else { buffer };
        (weight - self.lr * change, [buffer])
    }
}
