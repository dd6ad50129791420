//! Validation on the model's weights, or on those a hook keeps for it.

use std::collections::BTreeMap;

use candle_core::Tensor;
use tenterhook_hooks::{BatchInfo, Event, Metrics, MetricsRow, Mode, PassSetup};

use super::Trainer;
use super::ranks::Evaluated;
use crate::config::ValidateEvery;
use crate::data::Loader;
use crate::error::TrainError;
use crate::watchdog::Phase;
use tenterhook_record::metrics::Number;

impl Trainer {
    pub(super) fn validation_is_due(&mut self, epoch_over: bool) -> bool {
        let asked = std::mem::take(self.validation_asked());
        if self.validation.is_empty() {
            return false;
        }
        let due = match self.settings.validate_every {
            Some(ValidateEvery::Steps(n)) => self.progress.step.is_multiple_of(n),
            Some(ValidateEvery::Epoch) => epoch_over,
            None => self.steps_are_done(),
        };
        (asked || due) && self.progress.validated_at != Some(self.progress.step)
    }

    /// Validates, and goes on where the run stood. Cut short by an interrupt it leaves everything as it was before: it is done again
    /// when the run goes on.
    pub(super) fn validate(&mut self) -> Result<(), TrainError> {
        self.before_validation = if self.run.is_some() { Some(self.moment()?) } else { None };
        let Some(metrics) = self.evaluate_all()? else { return Ok(()) };
        self.before_validation = None;
        tracing::debug!(step = self.progress.step, "validated: {metrics:?}");
        self.progress.validated_at = Some(self.progress.step);
        self.progress.stage = self.progress.after_validation;
        metrics.iter().for_each(|(name, value)| self.events.log(name, *value));
        self.remember(&metrics);
        self.fire(Event::ValidationEnd(&metrics))?;
        self.log_rest()
    }

    /// Validation and nothing else: the metrics of all sets, and a row of the log when there is a record.
    pub fn evaluate(&mut self) -> Result<Metrics, TrainError> {
        self.begin_events();
        let Some(metrics) = self.evaluate_all()? else { return Ok(Metrics::new()) };
        metrics.iter().for_each(|(name, value)| self.events.log(name, *value));
        self.remember(&metrics);
        self.fire(Event::ValidationEnd(&metrics))?;
        let row = MetricsRow {
            step: self.progress.step,
            epoch: self.progress.cursor.epoch,
            values: self.events.take_published().metrics,
            histograms: BTreeMap::new(),
        };
        self.fire(Event::Metrics(&row))?;
        Ok(row.values)
    }

    /// `None` when it was interrupted.
    fn evaluate_all(&mut self) -> Result<Option<Metrics>, TrainError> {
        self.fire(Event::ValidationStart(self.progress.cursor.epoch))?;
        let averaged = self.hooks.validation_weights();
        let kept = averaged.as_ref().map(|(_, weights)| self.swap_in(weights)).transpose()?;
        let result = self.evaluate_sets();
        if let Some(kept) = kept {
            self.swap_in(&kept)?;
        }
        result
    }

    /// Puts other weights into the model and returns those that were there.
    pub(super) fn swap_in(&self, weights: &[(String, Tensor)]) -> Result<Vec<(String, Tensor)>, TrainError> {
        let mut kept = Vec::with_capacity(weights.len());
        for (name, value) in weights {
            if let Some(param) = self.model.params().get(name) {
                kept.push((name.clone(), param.value().copy()?));
                param.var().set(value)?;
            }
        }
        Ok(kept)
    }

    fn evaluate_sets(&mut self) -> Result<Option<Metrics>, TrainError> {
        let mut metrics = Metrics::new();
        for i in 0..self.validation.len() {
            let set = self.validation[i].clone();
            let Some(means) = self.evaluate_set(i, &set)? else { return Ok(None) };
            let prefix = if i == 0 { "val".to_string() } else { format!("val/{}", set.name) };
            metrics.extend(means.into_iter().map(|(name, mean)| (format!("{prefix}/{name}"), mean)));
        }
        Ok(Some(metrics))
    }

    fn evaluate_set(&mut self, index: usize, set: &Loader) -> Result<Option<Metrics>, TrainError> {
        let (mut found, mut interrupted, share) = (Vec::new(), false, self.world.share());
        let batches = set.batches_per_epoch().min(self.settings.validate_batches.unwrap_or(u64::MAX));
        let model = self.model.clone();
        for batch_idx in (0..batches).filter(|batch_idx| share.has(*batch_idx)) {
            if self.interrupt.is_raised() {
                interrupted = true;
                break;
            }
            self.enter(Phase::Validation)?;
            let batch = set.batch(0, batch_idx, &self.device)?;
            let none = Metrics::new();
            let info = BatchInfo {
                batch: &batch,
                batch_idx,
                dataloader_idx: index,
                dataloader_name: &set.name,
                metrics: &none,
                completes_step: false,
            };
            self.fire(Event::ValidationBatchStart(&info))?;
            let setup = PassSetup {
                seed: self.settings.seed,
                clock: self.clock(0),
                mode: Mode::Validate,
                ..PassSetup::default()
            };
            let pass = self.hooks.pass(setup);
            let output = model.forward(&batch, &pass);
            self.absorb(&pass)?;
            let evaluation = model.evaluate(&output?, &batch)?;
            let values: Metrics = evaluation.values.into_iter().collect();
            self.fire(Event::ValidationBatchEnd(&BatchInfo { metrics: &values, ..info }))?;
            let values = values.into_iter().map(|(name, value)| (name, Number(value))).collect();
            found.push(Evaluated { batch: batch_idx, weight: Number(evaluation.weight), values });
        }
        let Some(found) = self.evaluations_of_all(found, interrupted)? else { return Ok(None) };
        // In the order of the batches, whoever did them.
        let (mut sums, mut weight) = (Metrics::new(), 0.0);
        for Evaluated { weight: Number(own), values, .. } in found {
            weight += own;
            for (name, Number(value)) in values {
                *sums.entry(name).or_default() += value * own;
            }
        }
        Ok(Some(sums.into_iter().map(|(name, sum)| (name, sum / weight)).collect()))
    }
}
