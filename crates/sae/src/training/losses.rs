//! What an autoencoder is trained for.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use tenterhook_hooks::Pass;
use tenterhook_nn::ops::sparse::{Keep, TopKSpec, row_norms, step, top_k, weighted_sum};
use tenterhook_nn::ops::{Activation, activate};

use super::options::{SaeTraining, SparsityLoss, is_top_k};
use crate::layer::{Bias, Encoded, SaeLayer};

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
    pub(crate) encoded: &'a Encoded,
    pub(crate) output: &'a Tensor,
    /// Which latents are dead, if any are.
    pub(crate) dead: Option<Arc<Vec<bool>>>,
}

impl Forward<'_> {
    /// All terms, as SAELens has them.
    pub(crate) fn terms(&self) -> Result<Terms> {
        let none = Tensor::zeros((), self.x.dtype(), self.x.device())?;
        let mse = self.mean_of_squares(&(self.output - self.x)?)?;
        let mut terms = Terms { mse, sparsity: none.clone(), aux: none.clone(), pre_act: none };
        match &self.layer.bias {
            Bias::Gated { .. } => self.gated(&mut terms)?,
            Bias::Jump { threshold, .. } => self.jump(threshold.at(self.pass), &mut terms)?,
            Bias::Plain(_) if is_top_k(self.layer.config().architecture) => self.dead_latents(&mut terms)?,
            Bias::Plain(_) => terms.sparsity = self.l1(&self.encoded.acts)?,
        }
        Ok(terms)
    }

    fn rows(&self) -> f64 {
        self.x.dims()[0] as f64
    }

    fn step(&self) -> u64 {
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
        let coefficient = SaeTraining::warmed_up(l1_coefficient, l1_warm_up_steps, self.step());
        weighted_sum(acts, &self.norms()?)? * (coefficient / self.rows())
    }

    /// The gate pays for what it lets through, and has to reconstruct the input by itself.
    fn gated(&self, terms: &mut Terms) -> Result<()> {
        let Some(gate) = &self.encoded.gate else { return Ok(()) };
        let open = activate(gate, Activation::Relu)?;
        terms.sparsity = self.l1(&open)?;
        let recons = self.encoded.undo.apply(self.layer.recons(&open, self.pass, true)?)?;
        terms.aux = self.mean_of_squares(&(recons - self.x)?)?;
        Ok(())
    }

    fn jump(&self, threshold: &Tensor, terms: &mut Terms) -> Result<()> {
        let SaeTraining { l0_coefficient, l0_warm_up_steps, .. } = *self.options;
        let coefficient = SaeTraining::warmed_up(l0_coefficient, l0_warm_up_steps, self.step()) / self.rows();
        let active = || step(&self.encoded.pre, threshold, self.layer.jump);
        terms.sparsity = match self.options.jumprelu_sparsity_loss_mode {
            SparsityLoss::Step => (active()?.sum_all()? * coefficient)?,
            SparsityLoss::Quadratic => {
                let target = self.options.target_l0.unwrap_or(1.0);
                let distance = (active()?.sum(1)? - target)?;
                (distance.sqr()?.sum_all()? * (2.0 / target * coefficient))?
            }
            SparsityLoss::Tanh => {
                let scaled = self.encoded.acts.broadcast_mul(&self.norms()?)?;
                let tanh = (scaled * self.options.jumprelu_tanh_scale)?.tanh()?;
                (tanh.sum_all()? * coefficient)?
            }
        };
        if let (Some(coefficient), Some(dead)) = (self.options.pre_act_loss_coefficient, &self.dead) {
            let dead: Vec<f32> = dead.iter().map(|dead| f32::from(u8::from(*dead))).collect();
            let dead = Tensor::new(dead, self.x.device())?.to_dtype(self.x.dtype())?;
            let missing = activate(&(self.encoded.pre.neg()?.broadcast_add(threshold))?, Activation::Relu)?;
            terms.pre_act =
                (weighted_sum(&missing, &(self.norms()? * dead)?)? * (coefficient / self.rows()))?;
        }
        Ok(())
    }

    /// Dead latents learn to reconstruct what the others miss.
    fn dead_latents(&self, terms: &mut Terms) -> Result<()> {
        let (Some(dead), true) = (&self.dead, self.options.aux_loss_coefficient > 0.0) else { return Ok(()) };
        let missed = (self.x - self.output)?.detach();
        let count = dead.iter().filter(|dead| **dead).count();
        // Half the width of the activations, as in the paper; fewer dead ones than that count less.
        let most = (self.layer.config().d_in / 2).max(1);
        let spec = TopKSpec {
            only: Some(dead.clone()),
            relu: false,
            ..self.layer.top_k_spec(Keep::PerRow(most.min(count)), self.pass)?
        };
        let acts = top_k(&self.encoded.pre, &spec)?;
        let recons = self.layer.recons(&acts, self.pass, false)?;
        let scale = self.options.aux_loss_coefficient * (count as f64 / most as f64).min(1.0);
        terms.aux = (self.mean_of_squares(&(recons - missed)?)? * scale)?;
        Ok(())
    }
}
