//! The step of one parameter: which rule, in which number type, on which device.
//!
//! Nothing non-finite may reach a weight, and a refused step must leave every bit as it was. A copy of all weights
//! and moments would make that easy and the step twice as dear. Instead a first look reads the weights and the gradients
//! (not the moments, whose bounds are known from the steps before) for their largest magnitudes. If these cannot
//! possibly overflow, which is so in every healthy step, the pass goes ahead in place. If they could, the step of this
//! parameter is computed on copies and looked at. Only when all parameters of all optimizers are ready is anything written.

use candle_core::{DType, Result, Tensor};

use super::StepScale;
use super::adamw::AdamW;
use super::error::OptimError;
use super::group::Group;
use super::kernel::{self, Real, Scaling};
use super::sgd::Sgd;
use super::slot::Slot;

/// One step of one parameter.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    AdamW(AdamW),
    Sgd(Sgd),
}

/// A step that will succeed.
pub(super) enum Ready {
    /// Still to be computed, in place.
    InPlace { grad: Tensor },
    /// Computed beside the old values.
    Beside { weight: Tensor, state: Vec<Tensor> },
}

impl Rule {
    pub(super) fn new(group: &Group, step: u64) -> Self {
        let &Group { lr, weight_decay, momentum, nesterov, betas, eps, .. } = group;
        match group.kind {
            super::Kind::AdamW => Rule::AdamW(AdamW::new(lr, betas, eps, weight_decay, step)),
            super::Kind::Sgd => Rule::Sgd(Sgd { lr, weight_decay, momentum, nesterov }),
        }
    }

    /// Makes a step ready, or says why it must not be made. The bounds are those of the state after it.
    pub(super) fn prepare(
        &self,
        slot: &Slot,
        weight: &Tensor,
        grad: &Tensor,
        scale: StepScale,
        in_place: bool,
    ) -> std::result::Result<(Ready, Vec<f64>), OptimError> {
        if !in_place || !weight.device().is_cpu() {
            return self.prepare_composed(slot, weight, grad, scale);
        }
        match weight.dtype() {
            DType::F64 => self.prepare_typed::<f64>(slot, weight, grad, scale),
            _ => self.prepare_typed::<f32>(slot, weight, grad, scale),
        }
    }

    fn prepare_typed<T: Real>(
        &self,
        slot: &Slot,
        weight: &Tensor,
        grad: &Tensor,
        scale: StepScale,
    ) -> std::result::Result<(Ready, Vec<f64>), OptimError> {
        let largest_grad = kernel::largest::<T>(grad)?;
        if !largest_grad.is_finite() {
            return Err(OptimError::NonFiniteGradient { param: slot.name.clone() });
        }
        let scaled = (largest_grad * scale.scale.abs()).min(scale.clamp.unwrap_or(f64::INFINITY));
        let (bound, state_bounds) = self.bound(kernel::largest::<T>(weight)?, scaled, &slot.bounds);
        let unclamped = largest_grad * scale.scale.abs().max(1.0);
        if bound < T::SAFE && unclamped < T::SAFE {
            // A hook may have put the weight itself in as its gradient.
            let grad = if kernel::share_memory(weight, grad) { grad.copy()? } else { grad.clone() };
            return Ok((Ready::InPlace { grad }, state_bounds));
        }
        let weight = weight.copy()?;
        let state = slot.state.iter().map(Tensor::copy).collect::<Result<Vec<_>>>()?;
        self.update::<T>(&weight, grad, &state, scale)?;
        let mut bounds = Vec::new();
        for (i, tensor) in std::iter::once(&weight).chain(&state).enumerate() {
            let largest = kernel::largest::<T>(tensor)?;
            if !largest.is_finite() {
                return Err(slot.non_finite(i));
            }
            bounds.push(largest);
        }
        bounds.remove(0);
        Ok((Ready::Beside { weight, state }, bounds))
    }

    fn prepare_composed(
        &self,
        slot: &Slot,
        weight: &Tensor,
        grad: &Tensor,
        scale: StepScale,
    ) -> std::result::Result<(Ready, Vec<f64>), OptimError> {
        // A number times 0 is 0, unless it is NaN or infinite.
        let finite = |tensor: &Tensor| -> Result<bool> {
            let zero = (tensor * 0.0)?.sum_all()?.to_dtype(DType::F32)?.to_scalar::<f32>()?;
            Ok(zero == 0.0)
        };
        if !finite(grad)? {
            return Err(OptimError::NonFiniteGradient { param: slot.name.clone() });
        }
        let grad = (grad * scale.scale)?;
        let grad = match scale.clamp {
            Some(clamp) => grad.clamp(-clamp, clamp)?,
            None => grad,
        };
        let (weight, state) = match self {
            Rule::AdamW(rule) => rule.composed(weight, &grad, &slot.state)?,
            Rule::Sgd(rule) => rule.composed(weight, &grad, &slot.state)?,
        };
        for (i, tensor) in std::iter::once(&weight).chain(&state).enumerate() {
            if !finite(tensor)? {
                return Err(slot.non_finite(i));
            }
        }
        // The next step is looked at in the same way, without bounds.
        Ok((Ready::Beside { weight, state }, vec![f64::INFINITY; slot.state.len()]))
    }

    /// The step in place, in the weight's type.
    pub(super) fn apply(&self, slot: &Slot, weight: &Tensor, grad: &Tensor, scale: StepScale) -> Result<()> {
        match weight.dtype() {
            DType::F64 => self.update::<f64>(weight, grad, &slot.state, scale),
            _ => self.update::<f32>(weight, grad, &slot.state, scale),
        }
    }

    fn update<T: Real>(
        &self,
        weight: &Tensor,
        grad: &Tensor,
        state: &[Tensor],
        scale: StepScale,
    ) -> Result<()> {
        let scaling = Scaling {
            scale: T::from_f64(scale.scale),
            clamp: T::from_f64(scale.clamp.unwrap_or(f64::INFINITY)),
        };
        match self {
            Rule::AdamW(rule) => kernel::update::<T, 2>(&rule.rule(), scaling, weight, grad, state),
            Rule::Sgd(rule) if state.is_empty() => {
                kernel::update::<T, 0>(&rule.rule(), scaling, weight, grad, state)
            }
            Rule::Sgd(rule) => kernel::update::<T, 1>(&rule.rule(), scaling, weight, grad, state),
        }
    }

    fn bound(&self, weight: f64, grad: f64, state: &[f64]) -> (f64, Vec<f64>) {
        match self {
            Rule::AdamW(rule) => rule.bound(weight, grad, state),
            Rule::Sgd(rule) => rule.bound(weight, grad, state),
        }
    }
}
