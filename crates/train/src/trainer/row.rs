//! What is logged, and the state that hooks read.

use serde_json::{Value, json};
use tenterhook_hooks::{
    Debug, Event, GradientFlow, GroupInfo, HookInfo, Metrics, MetricsRow, Monitor, OptimizerInfo, Published,
    RunStatus,
};

use super::{StepOutcome, Trainer};
use crate::error::TrainError;
use tenterhook_record::metrics::Number;

impl Trainer {
    /// Logs a step: the trainer's numbers and everything that hooks published.
    pub(super) fn log_step(&mut self, outcome: &StepOutcome) -> Result<(), TrainError> {
        self.progress.latest_loss = Some(Number(outcome.loss));
        if outcome.skipped.is_none() {
            self.progress.loss_sum.0 += outcome.loss;
            self.progress.loss_count += 1;
        }
        let due = self.progress.step.is_multiple_of(self.settings.log_every);
        if !due {
            self.events.take_published();
            return Ok(());
        }
        self.publish(outcome);
        self.publish_cost_of_ranks();
        self.log_rest()
    }

    /// Logs the step that ends the run: what is not finite stands in every log as it is. A run that goes on drops this row.
    pub(super) fn log_failed_step(&mut self, outcome: &StepOutcome) -> Result<(), TrainError> {
        self.publish(outcome);
        let published = self.events.take_published(); // ranks have no more to say to each other
        self.write_row(self.progress.step + 1, published)
    }

    fn publish(&mut self, outcome: &StepOutcome) {
        let average = self.progress.avg_loss().unwrap_or(outcome.loss);
        let own = [
            ("loss", Some(outcome.loss)),
            ("train/loss", Some(average)),
            ("grad_norm", outcome.grad_norm),
            ("lr", outcome.lr),
            ("skipped_steps", (self.progress.skipped > 0).then_some(self.progress.skipped as f64)),
            ("time/step_s", Some(outcome.seconds)),
        ];
        for (name, value) in own {
            value.into_iter().for_each(|value| self.events.log(name, value));
        }
    }

    /// Logs what was published since the last row, if anything was.
    pub(super) fn log_rest(&mut self) -> Result<(), TrainError> {
        self.log_row(self.progress.step)
    }

    fn log_row(&mut self, step: u64) -> Result<(), TrainError> {
        let mut published = self.events.take_published();
        published.metrics = self.metrics_of_all(published.metrics)?;
        self.write_row(step, published)
    }

    fn write_row(&mut self, step: u64, published: Published) -> Result<(), TrainError> {
        if published.metrics.is_empty() && published.histograms.is_empty() {
            return Ok(());
        }
        let row = MetricsRow {
            step,
            epoch: self.events.clock().epoch,
            values: published.metrics,
            histograms: published.histograms,
        };
        self.remember(&row.values);
        if let Some(Err(error)) = self.run.as_mut().map(|run| run.log(&row)) {
            self.on_failed_write("metrics", row.step, error)?;
        }
        self.fire(Event::Metrics(&row))
    }

    /// Writes down which hooks there are, in the order in which they run.
    pub(super) fn record_hooks(&mut self) -> Result<(), TrainError> {
        let hooks = self.hooks.list_hooks();
        let on_or_off = |hook: &HookInfo| format!("{} {}", hook.id, if hook.enabled { "on" } else { "off" });
        let status = hooks.iter().map(on_or_off).collect::<Vec<_>>().join(", ");
        let Some(run) = &mut self.run else {
            tracing::info!(hooks = status, "training starts");
            return Ok(());
        };
        let record = run.record();
        let (run_id, commit, config_hash) = (run.id(), &record.commit, &record.config_hash);
        tracing::info!(run_id, commit, config_hash, hooks = status, "training starts");
        let describe = |hook: HookInfo| {
            json!({
                "id": hook.id,
                "kind": hook.kind,
                "enabled": hook.enabled,
                "matched": hook.matched,
                "options": self.hook_options.get(&hook.id),
            })
        };
        run.set_hooks(hooks.into_iter().map(describe).collect())
    }

    /// Writes how the run ended, and what every hook did.
    pub(super) fn close_record(
        &mut self,
        status: RunStatus,
        reason: Option<String>,
    ) -> Result<(), TrainError> {
        let receipts: Value = self.hooks.list_hooks().iter().map(|hook| self.receipt(hook)).collect();
        match &mut self.run {
            Some(run) => run.close(status, reason, self.progress.step, &receipts),
            None => Ok(()),
        }
    }

    /// What a hook did, and what it has found out where it is of a kind that gathers.
    fn receipt(&self, hook: &HookInfo) -> Value {
        let mut receipt = self.with_share(hook);
        let gathered = match hook.kind.as_str() {
            Debug::KIND => ("findings", self.hooks.findings(&hook.id).map(|found| json!(found))),
            GradientFlow::KIND => ("layers", self.hooks.gradient_flow(&hook.id).map(|flow| json!(flow))),
            Monitor::KIND => ("layers", self.hooks.monitoring(&hook.id).map(|stats| json!(stats))),
            _ => return receipt,
        };
        // A user's hook may call itself the same, and then it has nothing of the sort.
        if let (key, Ok(gathered)) = gathered {
            receipt[key] = gathered;
        }
        receipt
    }

    pub(super) fn remember(&mut self, metrics: &Metrics) {
        let exact = metrics.iter().filter(|(name, _)| !name.starts_with("time/"));
        self.progress.metrics.extend(exact.map(|(name, value)| (name.clone(), Number(*value))));
        self.state.metrics.extend(metrics.clone());
    }

    /// Brings what hooks read up to date.
    pub(super) fn refresh_state(&mut self) {
        let progress = &self.progress;
        let state = &mut self.state;
        state.step = progress.step;
        state.current_epoch = self.events.clock().epoch;
        state.current_batch_idx = self.events.clock().batch;
        state.tokens_seen = progress.tokens_seen;
        state.latest_loss = progress.latest_loss.map(|loss| loss.0);
        state.avg_loss = progress.avg_loss();
        if !state.frozen.iter().eq(&progress.frozen) {
            state.frozen = progress.frozen.iter().cloned().collect();
        }
        for (info, optimizer) in state.optimizers.iter_mut().zip(&self.optimizers) {
            for (info, group) in info.groups.iter_mut().zip(optimizer.groups()) {
                info.lr = group.lr;
            }
        }
    }

    pub(super) fn describe_optimizers(&self) -> Vec<OptimizerInfo> {
        let groups = |optimizer: &crate::optim::Optimizer| {
            let info = |group: &crate::optim::Group| GroupInfo {
                name: group.name.clone(),
                lr: group.lr,
                weight_decay: group.weight_decay,
                momentum: group.momentum,
                params: group.params.clone(),
            };
            optimizer.groups().iter().map(info).collect()
        };
        // Without a name of its own an optimizer is called by its kind and its place.
        let describe = |(place, optimizer): (usize, &crate::optim::Optimizer)| {
            let name = optimizer.name();
            let kind = name.strip_suffix(&format!(".{place}")).unwrap_or(name).to_string();
            OptimizerInfo { kind, groups: groups(optimizer) }
        };
        self.optimizers.iter().enumerate().map(describe).collect()
    }
}
