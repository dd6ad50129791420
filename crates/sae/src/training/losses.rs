//! What an autoencoder is trained for.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use tenterhook_hooks::Pass;
use tenterhook_nn::ops::sparse::{row_norms, step, weighted_sum};
use tenterhook_nn::ops::{Activation, activate};

use super::options::{SaeTraining, SparsityLoss, is_top_k};
use crate::config::SaeConfig;
use crate::layer::{Bias, Encoded, SaeLayer, Step};

/// The terms of a loss, each a scalar that is a mean over the batch.
pub(crate) struct Terms {
    pub(crate) mse: Tensor,
    pub(crate) sparsity: Tensor,
    pub(crate) aux: Tensor,
    pub(crate) pre_act: Tensor,
}

/// What was put in and what came of it.
pub(crate) struct Forward<'a> {
    pub(crate) layer: &'a SaeLayer,
    pub(crate) options: &'a SaeTraining,
    pub(crate) pass: &'a Pass,
    pub(crate) x: &'a Tensor,
    pub(crate) step: &'a Step,
    /// Which latents are dead, if any are.
    pub(crate) dead: Option<Arc<Vec<bool>>>,
}

impl Forward<'_> {
    /// All terms, as SAELens has them.
    pub(crate) fn terms(&self) -> Result<Terms> {
        let none = Tensor::zeros((), self.x.dtype(), self.x.device())?;
        let mse = self.mean_of_squares(&(&self.step.output - self.x)?)?;
        let mut terms = Terms { mse, sparsity: none.clone(), aux: none.clone(), pre_act: none };
        match (&self.layer.bias, &self.step.encoded) {
            (Bias::Gated { .. }, Some(encoded)) => self.gated(encoded, &mut terms)?,
            (Bias::Jump { threshold, .. }, Some(encoded)) => {
                self.jump(encoded, threshold.at(self.pass), &mut terms)?
            }
            (Bias::Plain(_), Some(encoded)) if !is_top_k(self.layer.config().architecture) => {
                terms.sparsity = self.l1(&encoded.acts)?;
            }
            _ => self.dead_latents(&mut terms)?,
        }
        Ok(terms)
    }

    fn rows(&self) -> f64 {
        self.x.dims()[0] as f64
    }

    fn number(&self) -> u64 {
        self.pass.setup().clock.step
    }

    fn mean_of_squares(&self, difference: &Tensor) -> Result<Tensor> {
        difference.sqr()?.sum_all()? / self.rows()
    }

    fn norms(&self) -> Result<Tensor> {
        row_norms(self.layer.w_dec.at(self.pass))
    }

    /// What activations cost, each times the norm of its decoder row.
    fn l1(&self, acts: &Tensor) -> Result<Tensor> {
        let SaeTraining { l1_coefficient, l1_warm_up_steps, .. } = *self.options;
        let coefficient = SaeTraining::warmed_up(l1_coefficient, l1_warm_up_steps, self.number());
        weighted_sum(acts, &self.norms()?)? * (coefficient / self.rows())
    }

    /// The gate pays for what it lets through, and has to reconstruct the input by itself.
    fn gated(&self, encoded: &Encoded, terms: &mut Terms) -> Result<()> {
        let Some(gate) = &encoded.gate else { return Ok(()) };
        let open = activate(gate, Activation::Relu)?;
        terms.sparsity = self.l1(&open)?;
        let recons = encoded.undo.apply(self.layer.recons(&open, self.pass, true)?)?;
        terms.aux = self.mean_of_squares(&(recons - self.x)?)?;
        Ok(())
    }

    fn jump(&self, encoded: &Encoded, threshold: &Tensor, terms: &mut Terms) -> Result<()> {
        let SaeTraining { l0_coefficient, l0_warm_up_steps, .. } = *self.options;
        let coefficient =
            SaeTraining::warmed_up(l0_coefficient, l0_warm_up_steps, self.number()) / self.rows();
        let active = || step(&encoded.pre, threshold, self.layer.jump);
        terms.sparsity = match self.options.jumprelu_sparsity_loss_mode {
            SparsityLoss::Step => (active()?.sum_all()? * coefficient)?,
            SparsityLoss::Quadratic => {
                let target = self.options.target_l0.unwrap_or(1.0);
                let distance = (active()?.sum(1)? - target)?;
                (distance.sqr()?.sum_all()? * (2.0 / target * coefficient))?
            }
            SparsityLoss::Tanh => {
                let scaled = encoded.acts.broadcast_mul(&self.norms()?)?;
                let tanh = (scaled * self.options.jumprelu_tanh_scale)?.tanh()?;
                (tanh.sum_all()? * coefficient)?
            }
        };
        if let (Some(coefficient), Some(dead)) = (self.options.pre_act_loss_coefficient, &self.dead) {
            let dead: Vec<f32> = dead.iter().map(|dead| f32::from(u8::from(*dead))).collect();
            let dead = Tensor::new(dead, self.x.device())?.to_dtype(self.x.dtype())?;
            let missing = activate(&(encoded.pre.neg()?.broadcast_add(threshold))?, Activation::Relu)?;
            terms.pre_act =
                (weighted_sum(&missing, &(self.norms()? * dead)?)? * (coefficient / self.rows()))?;
        }
        Ok(())
    }

    /// Dead latents learn to reconstruct what the others miss. Fewer of them than are asked for count less.
    fn dead_latents(&self, terms: &mut Terms) -> Result<()> {
        let (Some(recons), Some(dead)) = (&self.step.also, &self.dead) else { return Ok(()) };
        let missed = (self.x - &self.step.output)?.detach();
        let count = dead.iter().filter(|dead| **dead).count() as f64;
        let most = most_dead(self.layer.config()) as f64;
        let scale = self.options.aux_loss_coefficient * (count / most).min(1.0);
        terms.aux = (self.mean_of_squares(&(recons - missed)?)? * scale)?;
        Ok(())
    }
}

/// How many dead latents of a top-k autoencoder learn from an input: half as many as it is wide, as in the paper.
fn most_dead(config: &SaeConfig) -> usize {
    (config.d_in / 2).max(1)
}

/// Which dead latents a step decodes by themselves, and how many of them.
pub(crate) fn decoded_dead(
    config: &SaeConfig,
    options: &SaeTraining,
    dead: Option<&Arc<Vec<bool>>>,
) -> Option<(Arc<Vec<bool>>, usize)> {
    let dead = dead.filter(|_| is_top_k(config.architecture) && options.aux_loss_coefficient > 0.0)?;
    let count = dead.iter().filter(|dead| **dead).count();
    Some((dead.clone(), most_dead(config).min(count)))
}
