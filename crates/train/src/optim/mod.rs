//! Optimizers: one pass over the weights, in place, as PyTorch computes it.
//!
//! ```
//! # use candle_core::{DType, Device, Tensor};
//! # use tenterhook_nn::{Init, RandomWeights, Scope};
//! use tenterhook_train::optim::{Clip, Kind, Optimizer, OptimizerConfig, grad_norms};
//!
//! # let scope = Scope::new(RandomWeights { seed: 0 }, DType::F32, &Device::Cpu);
//! # scope.param("weight", &[4, 4], Init::Normal { std: 0.02 })?;
//! # let (_, params) = scope.finish();
//! # let grads = params.iter().map(|p| (p.name().to_string(), p.value().ones_like().unwrap())).collect();
//! let mut optimizers = Optimizer::build(&[OptimizerConfig::new(Kind::AdamW, 1e-3)], &params, false)?;
//! let norms = grad_norms(&grads)?;
//! let frozen = |_name: &str| false;
//! Optimizer::step_all(&mut optimizers, &params, &grads, Clip::Norm(1.0).step_scale(norms.total), &frozen)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adamw;
mod config;
mod error;
mod group;
mod kernel;
mod norm;
mod rule;
mod sgd;
mod slot;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use tenterhook_hooks::NamedGrads;
use tenterhook_nn::Params;

pub use config::{Kind, OptimizerConfig, Patterns};
pub use error::OptimError;
pub use group::Group;
pub(crate) use kernel::{Real, read};
pub(crate) use norm::sum_of_squares;
pub use norm::{Clip, NonFinite, Norms, clip_scale, first_non_finite, grad_norms};
pub use state::ParamState;

use rule::{Ready, Rule};
use slot::Slot;

/// What a step does to gradients on their way in: first the scale, then the clamp.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScale {
    /// What every element is multiplied with.
    pub scale: f64,
    /// The largest magnitude an element keeps.
    pub clamp: Option<f64>,
}

impl Default for StepScale {
    fn default() -> Self {
        Self { scale: 1.0, clamp: None }
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepStats {
    /// Parameters that were updated.
    pub updated: usize,
    /// Parameters that were skipped, being frozen.
    pub skipped: usize,
}

/// An optimizer, its parameters in groups, and what it keeps for each of them.
pub struct Optimizer {
    name: String,
    groups: Vec<Group>,
    slots: BTreeMap<String, Slot>,
    /// Off only in tests that compare with the path of other devices.
    in_place: bool,
}

impl Optimizer {
    /// The optimizers of a model. Every parameter goes to the first one whose `params` match it; parameters that none matches are an
    /// error unless `allow_unassigned`.
    pub fn build(
        configs: &[OptimizerConfig],
        params: &Params,
        allow_unassigned: bool,
    ) -> Result<Vec<Self>, OptimError> {
        let names = group::names(configs)?;
        let groups = group::assign(configs, &names, params, allow_unassigned)?;
        Ok(names.into_iter().zip(groups).map(|(name, groups)| Self::new(name, groups, params)).collect())
    }

    fn new(name: String, groups: Vec<Group>, params: &Params) -> Self {
        let mut slots = BTreeMap::new();
        for group in &groups {
            for param in group.params.iter().filter_map(|name| params.get(name)) {
                let slot = Slot::new(param.name(), param.value(), group.state_names());
                slots.insert(param.name().to_string(), slot);
            }
        }
        Self { name, groups, slots, in_place: true }
    }

    /// The name under which its state is saved.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its groups.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Sets the learning rate of one group, or of all.
    pub fn set_lr(&mut self, group: Option<usize>, lr: f64) -> Result<(), OptimError> {
        let groups = self.groups.len();
        let chosen = match group {
            None => &mut self.groups[..],
            Some(index) => self.groups.get_mut(index..=index).ok_or_else(|| OptimError::NoGroup {
                optimizer: self.name.clone(),
                index,
                groups,
            })?,
        };
        chosen.iter_mut().for_each(|group| group.lr = lr);
        Ok(())
    }

    /// Sets the learning rate of every group to a share of its own base: what a schedule does.
    pub fn scale_lr(&mut self, factor: f64) {
        self.groups.iter_mut().for_each(|group| group.lr = group.base_lr * factor);
    }

    /// Sets what every group's learning rate is a share of.
    pub(crate) fn set_base_lrs(&mut self, rates: &[f64]) {
        self.groups.iter_mut().zip(rates).for_each(|(group, rate)| group.base_lr = *rate);
    }

    /// One step: every parameter that is not frozen moves, or an error says why none did.
    pub fn step(
        &mut self,
        params: &Params,
        grads: &NamedGrads,
        scale: StepScale,
        frozen: &dyn Fn(&str) -> bool,
    ) -> Result<StepStats, OptimError> {
        Self::step_all(std::slice::from_mut(self), params, grads, scale, frozen)
    }

    /// One step of several optimizers: all of them, or an error and none.
    pub fn step_all(
        optimizers: &mut [Self],
        params: &Params,
        grads: &NamedGrads,
        scale: StepScale,
        frozen: &dyn Fn(&str) -> bool,
    ) -> Result<StepStats, OptimError> {
        check_finite("scale of the gradients", scale.scale)?;
        check_finite("clamp of the gradients", scale.clamp.unwrap_or(0.0))?;
        let mut stats = StepStats::default();
        let mut plans = Vec::new();
        for optimizer in optimizers.iter_mut() {
            let plan = optimizer.prepare(params, grads, scale, frozen)?;
            stats.updated += plan.len();
            stats.skipped += optimizer.slots.len() - plan.len();
            plans.push(plan);
        }
        // Everything was looked at: from here on nothing can be refused.
        for (optimizer, plan) in optimizers.iter_mut().zip(plans) {
            optimizer.commit(params, plan, scale)?;
        }
        Ok(stats)
    }

    fn prepare(
        &mut self,
        params: &Params,
        grads: &NamedGrads,
        scale: StepScale,
        frozen: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<Planned>, OptimError> {
        let (mut plan, mut without) = (Vec::new(), Vec::new());
        for group in &self.groups {
            check_finite(&format!("learning rate of `{}`, group `{}`,", self.name, group.name), group.lr)?;
            for name in group.params.iter().filter(|name| !frozen(name)) {
                let no_param = || OptimError::NoParam { optimizer: self.name.clone(), param: name.clone() };
                let weight = params.get(name).ok_or_else(no_param)?.value();
                let slot = self.slots.get_mut(name).ok_or_else(no_param)?;
                let Some(grad) = grads.get(name) else {
                    without.push(name.clone());
                    continue;
                };
                slot.check_fits(weight)?;
                slot.check_fits(grad)?;
                slot.allocate()?;
                let rule = Rule::new(group, slot.steps + 1);
                let (ready, bounds) = rule.prepare(slot, weight, grad, scale, self.in_place)?;
                plan.push(Planned { param: name.clone(), rule, ready, bounds });
            }
        }
        if without.is_empty() { Ok(plan) } else { Err(OptimError::NoGradient(without)) }
    }

    fn commit(&mut self, params: &Params, plan: Vec<Planned>, scale: StepScale) -> Result<(), OptimError> {
        for Planned { param, rule, ready, bounds } in plan {
            let (Some(param), Some(slot)) = (params.get(&param), self.slots.get_mut(&param)) else {
                continue;
            };
            match ready {
                Ready::InPlace { grad } => rule.apply(slot, param.value(), &grad, scale)?,
                Ready::Beside { weight, state } => {
                    param.var().set(&weight)?;
                    slot.state = state;
                }
            }
            slot.steps += 1;
            slot.bounds = bounds;
        }
        Ok(())
    }
}

/// A step of one parameter that will succeed.
struct Planned {
    param: String,
    rule: Rule,
    ready: Ready,
    bounds: Vec<f64>,
}

fn check_finite(what: &str, value: f64) -> Result<(), OptimError> {
    match value.is_finite() {
        true => Ok(()),
        false => Err(OptimError::NonFiniteSetting { what: what.to_string(), value }),
    }
}
