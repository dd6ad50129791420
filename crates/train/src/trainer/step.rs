//! One optimizer step.

use std::sync::Arc;

use candle_core::Tensor;
use tenterhook_hooks::{Batch, BatchInfo, ClipInfo, Event, Metrics, NamedGrads, PassSetup};
use tenterhook_nn::{LossShare, backward};

use super::Trainer;
use crate::config::UpdateHooks;
use crate::data::Next;
use crate::error::TrainError;
use crate::model::scalar;
use crate::optim::{Norms, OptimError, Optimizer, grad_norms};
use crate::progress::Progress;
use crate::watchdog::Phase;

/// What a step came to.
#[derive(Clone, Debug, Default)]
pub struct StepOutcome {
    /// The mean loss of its batches.
    pub loss: f64,
    /// The global norm of the gradients before clipping.
    pub grad_norm: Option<f64>,
    /// Why the step was not taken, when something was not finite and the run is told to go on.
    pub skipped: Option<String>,
    pub(super) seconds: f64,
    pub(super) lr: Option<f64>,
}

/// A batch and where it comes from.
pub(super) struct Loaded {
    pub(super) batch: Batch,
    /// Which example of the whole batch is the first of this rank's.
    pub(super) first_row: usize,
    /// Whether these examples are this rank's, or another's for want of one: then they are not computed.
    pub(super) counts: bool,
    pub(super) batch_idx: u64,
    pub(super) loader_idx: usize,
    pub(super) loader_name: String,
}

impl Loaded {
    fn info<'a>(&'a self, metrics: &'a Metrics, completes_step: bool) -> BatchInfo<'a> {
        BatchInfo {
            batch: &self.batch,
            batch_idx: self.batch_idx,
            dataloader_idx: self.loader_idx,
            dataloader_name: &self.loader_name,
            metrics,
            completes_step,
        }
    }

    pub(super) fn named(&self) -> String {
        self.info(&Metrics::new(), false).to_string()
    }
}

impl Trainer {
    /// One step on a batch of the caller's, with the same events as in [`train`](Trainer::train).
    pub fn training_step(&mut self, batch: Batch) -> Result<StepOutcome, TrainError> {
        // These batches are of no epoch: they are counted through.
        let batch_idx = self.progress.step;
        let loader_name = "training_step".to_string();
        let loaded = Loaded { batch, first_row: 0, counts: true, batch_idx, loader_idx: 0, loader_name };
        self.take_step(&[loaded], self.progress.clone())
    }

    /// A step and its row in the log. When the run ends because something is not finite, all is as it was `before` and saved, and the
    /// log has what was found.
    pub(super) fn take_step(
        &mut self,
        batches: &[Loaded],
        before: Progress,
    ) -> Result<StepOutcome, TrainError> {
        let mut outcome = StepOutcome::default();
        match self.step_on(batches, &mut outcome) {
            Err(error @ TrainError::NonFinite(_)) => {
                let metrics = std::mem::take(&mut self.progress.metrics);
                self.progress = Progress { degraded: self.progress.degraded, metrics, ..before };
                self.save_before_failure()?;
                if let Err(also) = self.log_failed_step(&outcome) {
                    tracing::warn!("the step that failed could not be logged: {also}");
                }
                Err(error)
            }
            Err(error) => Err(error),
            Ok(()) => self.log_step(&outcome).map(|()| outcome),
        }
    }

    /// The batches of the next step: as many as are accumulated, fewer at the end of an epoch.
    pub(super) fn load_batches(&mut self) -> Result<Vec<Loaded>, TrainError> {
        self.enter(Phase::Data)?;
        let mut batches = Vec::new();
        while (batches.len() as u64) < self.settings.grad_accumulation {
            let batch_idx = self.progress.cursor.batch;
            let share = self.world.share();
            let Some(next) = self.data.next_part(&mut self.progress.cursor, share, &self.device)? else {
                break;
            };
            let Next { loader_idx, batch, first_row, counts, .. } = next;
            let loader_name = self.data.loaders()[loader_idx].name.clone();
            batches.push(Loaded { batch, first_row, counts, batch_idx, loader_idx, loader_name });
        }
        Ok(batches)
    }

    /// Forward and backward of every batch, then the step. When something is not finite the weights stay as they are; `outcome` says how
    /// far it got.
    fn step_on(&mut self, batches: &[Loaded], outcome: &mut StepOutcome) -> Result<(), TrainError> {
        let began = std::time::Instant::now();
        let shares = self.bring(batches)?;
        self.begin_events();
        self.apply_schedule()?;
        outcome.lr = self.first_lr();
        let (mut sums, mut losses): (Option<NamedGrads>, Vec<f64>) = (None, Vec::new());
        for (i, loaded) in batches.iter().enumerate() {
            let mut clock = self.clock(i as u64);
            clock.batch = loaded.batch_idx;
            self.events.set_clock(clock);
            let last = i + 1 == batches.len();
            self.fire(Event::TrainBatchStart(&loaded.info(&Metrics::new(), last)))?;
            let loss = match shares[i].share {
                0.0 => 0.0, // there is nothing of this batch that counts here
                share => self.backward_of(loaded, last, share / batches.len() as f64, &mut sums)?,
            };
            losses.push(loss);
            if self.world.is_alone() {
                self.progress.tokens_seen += shares[i].tokens;
            }
            if loss.is_finite() && !last {
                self.end_batch(loaded, loss, last)?;
                continue;
            }
            let trouble = (!loss.is_finite()).then(|| self.look_into_loss(loaded, loss));
            let (all, trouble) = self.losses_of_all(&losses, &shares, trouble)?;
            if !self.world.is_alone() {
                self.progress.tokens_seen +=
                    shares[..all.len()].iter().map(|share| share.tokens).sum::<u64>();
            }
            outcome.loss = match (&trouble, all.last()) {
                (None, _) => all.iter().map(|loss| loss / batches.len() as f64).sum(),
                (Some(_), loss) => loss.copied().unwrap_or(f64::NAN),
            };
            let loss = all.last().copied().unwrap_or(loss);
            match trouble {
                Some(trouble) => outcome.skipped = Some(self.judge(trouble)?),
                None => {
                    let grads = sums.take().unwrap_or_default();
                    self.update_and_step(loaded, grads, outcome)?;
                }
            }
            self.end_batch(loaded, loss, last)?;
            break;
        }
        self.progress.step += 1;
        outcome.seconds = began.elapsed().as_secs_f64();
        self.count_skipped(outcome)
    }

    fn first_lr(&self) -> Option<f64> {
        self.optimizers.first()?.groups().first().map(|group| group.lr)
    }

    fn end_batch(&mut self, loaded: &Loaded, loss: f64, last: bool) -> Result<(), TrainError> {
        self.events.log("loss", loss);
        let metrics = self.events.metrics();
        self.fire(Event::TrainBatchEnd(&loaded.info(&metrics, last)))
    }

    /// Adds the gradients of one batch to the sums, and returns its loss. A loss that is not finite has no backward. `share` is what part of
    /// the step's loss it is.
    fn backward_of(
        &mut self,
        loaded: &Loaded,
        last: bool,
        share: f64,
        sums: &mut Option<NamedGrads>,
    ) -> Result<f64, TrainError> {
        self.enter(Phase::Forward)?;
        let setup = PassSetup {
            seed: self.settings.seed,
            clock: self.events.clock(),
            first_row: loaded.first_row,
            ..PassSetup::train(0)
        };
        let pass = self.hooks.pass(setup.with(self.buffers.clone()).with(Arc::new(LossShare(share))));
        let model = self.model.clone();
        let output = model.train_forward(&loaded.batch, &pass);
        self.absorb(&pass)?; // a hook's own error says more than the engine's
        let output = output?;
        self.fire(Event::AfterForward(&loaded.info(&self.events.metrics(), last)))?;
        let loss = model.train_loss(&output, &loaded.batch, &pass)?;
        drop(output);
        let value = scalar(&loss)?;
        self.fire(Event::BeforeBackward(value))?;
        if !value.is_finite() {
            return Ok(value);
        }
        self.enter(Phase::Backward)?;
        let loss = if share == 1.0 { loss } else { (loss * share)? };
        let grads = backward(&loss, model.params(), Some(&self.buffers));
        self.absorb(&pass)?;
        let mut grads = grads?;
        grads.retain(|name| !self.progress.frozen.contains(name));
        let grads = match sums.take() {
            None => grads,
            Some(before) => add(&before, &grads)?,
        };
        // The last one is told when the gradients are those of all ranks.
        if self.world.is_alone() || !last {
            self.fire(Event::AfterBackward(&grads))?;
        }
        *sums = Some(grads);
        Ok(value)
    }

    /// Update hooks, clipping, optimizers. Nothing that is not finite gets through.
    fn update_and_step(
        &mut self,
        loaded: &Loaded,
        own: NamedGrads,
        outcome: &mut StepOutcome,
    ) -> Result<(), TrainError> {
        let alone = self.world.is_alone();
        let local_updates = !alone && self.settings.ranks.update_hooks == UpdateHooks::Local;
        let grads = if alone || local_updates { own.clone() } else { self.sum_gradients(&own)? };
        self.enter(Phase::Optimizer)?;
        if !alone {
            self.fire(Event::AfterBackward(&grads))?;
        }
        // What is a rank's own is looked at when it has been summed.
        let given = (!local_updates).then(|| grad_norms(&grads)).transpose()?;
        if let Some(given) = given.as_ref().filter(|given| !given.total.is_finite()) {
            outcome.grad_norm = Some(given.total);
            outcome.skipped = Some(self.non_finite_gradient(loaded, &own, &grads, "backward")?);
            return Ok(());
        }
        self.refresh_state();
        let before: Vec<_> = grads.iter().map(|(_, grad)| grad.id()).collect();
        let updated = self.events.update(&self.state, grads);
        self.serve()?;
        let mut grads = updated?;
        let unchanged = grads.iter().map(|(_, grad)| grad.id()).eq(before);
        let own = if local_updates { std::mem::take(&mut grads) } else { own };
        if local_updates {
            grads = self.sum_gradients(&own)?;
        }
        let norms = match given {
            Some(given) if unchanged => given,
            _ => grad_norms(&grads)?,
        };
        outcome.grad_norm = Some(norms.total);
        if !norms.total.is_finite() {
            let whence = if local_updates { "backward" } else { "an update hook" };
            outcome.skipped = Some(self.non_finite_gradient(loaded, &own, &grads, whence)?);
            return Ok(());
        }
        drop(own);
        self.clip_and_step(loaded, &grads, &norms, outcome)
    }

    fn clip_and_step(
        &mut self,
        loaded: &Loaded,
        grads: &NamedGrads,
        norms: &Norms,
        outcome: &mut StepOutcome,
    ) -> Result<(), TrainError> {
        let scale = self.settings.clip.step_scale(norms.total);
        if let Some(after) = self.settings.clip.norm_after(norms, grads)? {
            self.fire(Event::GradientClip(ClipInfo { before: norms.total, after }))?;
        }
        // All of them before any moves, so that a step is taken by all or by none.
        for i in 0..self.optimizers.len() {
            self.fire(Event::BeforeOptimizerStep(i))?;
        }
        outcome.lr = self.first_lr(); // hooks may have changed it
        let frozen = &self.progress.frozen;
        let is_frozen = |name: &str| frozen.contains(name);
        let stepped =
            Optimizer::step_all(&mut self.optimizers, self.model.params(), grads, scale, &is_frozen);
        match stepped {
            Ok(_) => {}
            Err(error @ (OptimError::NonFinite { .. } | OptimError::NonFiniteSetting { .. })) => {
                outcome.skipped = Some(self.non_finite_update(loaded, &error)?);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        for i in 0..self.optimizers.len() {
            self.fire(Event::AfterOptimizerStep(i))?;
        }
        Ok(())
    }
}

fn add(before: &NamedGrads, grads: &NamedGrads) -> candle_core::Result<NamedGrads> {
    let sum = |(name, grad): (&str, &Tensor)| match before.get(name) {
        Some(before) => Ok((name.to_string(), (before + grad)?)),
        None => Ok((name.to_string(), grad.clone())),
    };
    let missing = before.iter().filter(|(name, _)| grads.get(name).is_none());
    let missing: Vec<_> = missing.map(|(name, grad)| (name.to_string(), grad.clone())).collect();
    let sums = grads.iter().map(sum).collect::<candle_core::Result<Vec<_>>>()?;
    Ok(sums.into_iter().chain(missing).collect())
}
