//! Smaller learning rates when a metric stands still.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{AttachError, Cx, Hook, HookResult, Metrics, Request};

use crate::hooks::console::Console;
use crate::hooks::monitored::{Exact, Goal, absent, after_validation};
use crate::hooks::none_of;

/// How `threshold` is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThresholdMode {
    /// As a share of the best value.
    #[default]
    Rel,
    /// As it is.
    Abs,
}

/// When a [`ReduceLrOnPlateau`] reduces, and by how much. The meanings are PyTorch's, without its `eps`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReduceLrOnPlateauOptions {
    /// The metric.
    pub monitor: String,
    /// Whether small ("min") or large ("max") values are better.
    pub mode: Goal,
    /// What the learning rates are multiplied by.
    pub factor: f64,
    /// So many validations without improvement are put up with; the next one reduces.
    pub patience: u64,
    /// An improvement is better than the best by more than this.
    #[serde(alias = "min_delta")]
    #[schemars(extend("aliases" = ["min_delta"]))]
    pub threshold: f64,
    /// Whether `threshold` is a share of the best value ("rel") or an amount ("abs").
    pub threshold_mode: ThresholdMode,
    /// So many validations after a reduction are not counted.
    pub cooldown: u64,
    /// No learning rate is made smaller than this.
    pub min_lr: f64,
}

impl Default for ReduceLrOnPlateauOptions {
    fn default() -> Self {
        Self {
            monitor: "val/loss".to_string(),
            mode: Goal::Min,
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            threshold_mode: ThresholdMode::Rel,
            cooldown: 0,
            min_lr: 0.0,
        }
    }
}

/// Multiplies the learning rates of all groups of all optimizers when a metric has not improved for too many validations.
///
/// NaN is no improvement. Publishes `<id>/reductions`. A metric that is not there is an error.
pub struct ReduceLrOnPlateau {
    options: ReduceLrOnPlateauOptions,
    state: State,
    console: Console,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    best: Option<Exact>,
    bad: u64,
    cooling: u64,
    reductions: u64,
}

impl ReduceLrOnPlateau {
    /// The kind's name.
    pub const KIND: &'static str = "reduce_lr_on_plateau";

    /// Options that make no sense are an error.
    pub fn new(options: ReduceLrOnPlateauOptions) -> Result<Self, AttachError> {
        let mut problems = Vec::new();
        if !(options.factor > 0.0 && options.factor < 1.0) {
            problems.push(format!("`factor` is {}, it must be between 0 and 1", options.factor));
        }
        for (name, value) in [("threshold", options.threshold), ("min_lr", options.min_lr)] {
            if !(value >= 0.0 && value.is_finite()) {
                problems.push(format!("`{name}` is {value}, it must not be negative"));
            }
        }
        if options.threshold_mode == ThresholdMode::Rel && options.threshold >= 1.0 {
            problems.push(format!("`threshold` is {}, as a share it must be below 1", options.threshold));
        }
        if options.monitor.is_empty() {
            problems.push("`monitor` is empty, it must name a metric".to_string());
        }
        none_of(problems, Self::KIND)?;
        Ok(Self { options, state: State::default(), console: Console::default() })
    }

    fn improves(&self, value: f64) -> bool {
        let ReduceLrOnPlateauOptions { mode, threshold, threshold_mode, .. } = self.options;
        // As in PyTorch, whose first best value is infinitely bad: only a number that is no infinity of the bad sort beats it.
        let worst = if mode == Goal::Min { f64::INFINITY } else { f64::NEG_INFINITY };
        let best = self.state.best.map_or(worst, |best| best.0);
        match (threshold_mode, mode) {
            (ThresholdMode::Abs, _) => mode.is_better(value, best, threshold),
            (ThresholdMode::Rel, Goal::Min) => value < best * (1.0 - threshold),
            (ThresholdMode::Rel, Goal::Max) => value > best * (1.0 + threshold),
        }
    }

    fn reduce(&mut self, value: f64, cx: &mut Cx) {
        self.state.reductions += 1;
        let optimizers = cx.state().map(|state| state.optimizers.clone()).unwrap_or_default();
        for (index, optimizer) in optimizers.iter().enumerate() {
            for (number, group) in optimizer.groups.iter().enumerate() {
                let lr = (group.lr * self.options.factor).max(self.options.min_lr);
                // A rate that is at the limit already, or below it, stays; so does one that is zero.
                if lr < group.lr {
                    let factor = lr / group.lr;
                    cx.request(Request::ScaleLr { optimizer: Some(index), group: Some(number), factor });
                }
            }
        }
        if cx.verbose() {
            let best = self.state.best.map_or(f64::NAN, |best| best.0);
            let (id, monitor, factor) = (cx.hook_id(), &self.options.monitor, self.options.factor);
            self.console
                .line(&format!("{id}: `{monitor}` is {value} (best {best}): learning rates x {factor}"));
        }
    }
}

impl Hook for ReduceLrOnPlateau {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn on_validation_end(&mut self, metrics: &Metrics, cx: &mut Cx) -> HookResult {
        let monitor = &self.options.monitor;
        let value = after_validation(monitor, metrics, cx).ok_or_else(|| absent(monitor, metrics, cx))?;
        if self.improves(value) {
            self.state.best = Some(Exact(value));
            self.state.bad = 0;
        } else {
            self.state.bad += 1;
        }
        if self.state.cooling > 0 {
            self.state.cooling -= 1;
            self.state.bad = 0;
        }
        if self.state.bad > self.options.patience {
            self.reduce(value, cx);
            self.state.cooling = self.options.cooldown;
            self.state.bad = 0;
        }
        cx.log(format!("{}/reductions", cx.hook_id()), self.state.reductions as f64);
        Ok(())
    }

    fn save_state(&self) -> HookResult<Option<serde_json::Value>> {
        Ok(Some(serde_json::to_value(&self.state)?))
    }

    fn load_state(&mut self, state: serde_json::Value) -> HookResult {
        self.state = serde_json::from_value(state)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::test_support::{acts, assert_resumes, options};
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tenterhook_hooks::{HookOptions, MockTrainer};

    fn hook(json: Value) -> ReduceLrOnPlateau {
        ReduceLrOnPlateau::new(options(json)).unwrap()
    }

    /// The learning rate after every validation, from 1.
    fn rates(json: Value, losses: &[f64]) -> Vec<f64> {
        let mut trainer = MockTrainer::new();
        trainer.attach(hook(json)).unwrap();
        trainer.state.optimizers[0].groups[0].lr = 1.0;
        let after = |loss: &f64| {
            trainer.validate(&[("val/loss", *loss)]).unwrap();
            trainer.lr()
        };
        losses.iter().map(after).collect()
    }

    /// The expected rates are what `torch.optim.lr_scheduler.ReduceLROnPlateau` gives for the same options and losses.
    #[test]
    fn rates_are_those_of_pytorch() {
        const NAN: f64 = f64::NAN;
        const INF: f64 = f64::INFINITY;
        let table: [(Value, &[f64], &[f64]); 11] = [
            (
                json!({"patience": 1}),
                &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
                &[1.0, 1.0, 0.1, 0.1, 0.010000000000000002, 0.010000000000000002],
            ),
            (
                json!({"patience": 0, "factor": 0.5}),
                &[3.0, 2.0, 2.0, 1.0, 1.0, 1.0],
                &[1.0, 1.0, 0.5, 0.5, 0.25, 0.125],
            ),
            (
                json!({"patience": 0, "factor": 0.5, "cooldown": 2}),
                &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
                &[1.0, 0.5, 0.5, 0.5, 0.25, 0.25],
            ),
            (
                json!({"patience": 1, "factor": 0.5, "mode": "max"}),
                &[1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0],
                &[1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25],
            ),
            (
                json!({"patience": 0, "factor": 0.5, "threshold": 0.25}),
                &[4.0, 3.5, 3.0, 2.5, 2.0],
                &[1.0, 0.5, 0.25, 0.25, 0.125],
            ),
            (
                json!({"patience": 0, "factor": 0.5, "threshold": 0.25, "threshold_mode": "abs"}),
                &[4.0, 3.75, 3.5, 3.0, 2.9],
                &[1.0, 0.5, 0.5, 0.5, 0.25],
            ),
            (
                json!({"patience": 0, "factor": 0.5, "threshold": 0.5, "threshold_mode": "rel", "mode": "max"}),
                &[1.0, 1.4, 1.6, 2.0, 2.5],
                &[1.0, 0.5, 0.5, 0.25, 0.25],
            ),
            (
                json!({"patience": 0, "factor": 0.1, "min_lr": 0.05}),
                &[1.0, 1.0, 1.0, 1.0],
                &[1.0, 0.1, 0.05, 0.05],
            ),
            (
                json!({"patience": 0, "factor": 0.5}),
                &[NAN, 2.0, NAN, 1.0, INF],
                &[0.5, 0.5, 0.25, 0.25, 0.125],
            ),
            (json!({"patience": 0, "factor": 0.5, "threshold": 0.0}), &[1.0, 0.99999, 1.0], &[1.0, 1.0, 0.5]),
            (
                json!({}),
                &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
                &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1, 0.1],
            ),
        ];
        for (options, losses, want) in table {
            let got = rates(options.clone(), losses);
            let same = got.iter().zip(want).all(|(a, b)| (a - b).abs() <= 1e-15);
            assert!(same && got.len() == want.len(), "{options} {losses:?}: {got:?}");
        }
    }

    #[test]
    fn every_group_is_asked_for_and_none_below_the_limit() -> HookResult {
        let mut trainer = MockTrainer::new();
        trainer.attach(hook(json!({"patience": 0, "factor": 0.25, "min_lr": 1.0})))?;
        let groups = &mut trainer.state.optimizers[0].groups;
        groups[0].lr = 8.0;
        groups.push(groups[0].clone());
        groups[1].lr = 2.0;
        let mut second = trainer.state.optimizers[0].clone();
        second.groups[0].lr = 1.0;
        second.groups[1].lr = 0.0;
        trainer.state.optimizers.push(second);
        for loss in [1.0, 1.0] {
            trainer.validate(&[("val/loss", loss)])?;
        }
        let scale = |group, factor| Request::ScaleLr { optimizer: Some(0), group: Some(group), factor };
        assert_eq!(trainer.requests(), [scale(0, 0.25), scale(1, 0.5)]);
        Ok(())
    }

    #[test]
    fn a_metric_that_is_not_there_is_an_error_and_verbose_says_what_happens() -> HookResult {
        let mut trainer = MockTrainer::new();
        let mut hook = hook(json!({"monitor": "val/acc", "patience": 0}));
        let (console, lines) = Console::buffer();
        hook.console = console;
        trainer.attach_with(hook, HookOptions { verbose: true, ..HookOptions::id("r") })?;
        trainer.validate(&[("val/accuracy", 1.0)])?;
        assert!(trainer.errors()[0].to_string().contains("`val/acc`; there are `val/accuracy`"));
        for value in [1.0, 2.0] {
            trainer.validate(&[("val/acc", value)])?;
        }
        assert_eq!(*lines.lock().unwrap(), "r: `val/acc` is 2 (best 1): learning rates x 0.1\n");
        assert_eq!(trainer.metric("r/reductions"), Some(1.0));
        Ok(())
    }

    #[test]
    fn senseless_options_are_all_named() {
        let wrong = json!({"factor": 1.0, "threshold": 1.0, "min_lr": -1.0, "monitor": ""});
        let error = ReduceLrOnPlateau::new(options(wrong));
        let Some(AttachError::BadOptions { problems, .. }) = error.err() else { panic!("accepted") };
        assert_eq!(problems.len(), 4);
    }

    proptest! {
        #[test]
        fn p05_decisions_survive_a_restart(acts in acts(), cut in 0..40usize, patience in 0..3u64, cooldown in 0..3u64) {
            let options = json!({"patience": patience, "cooldown": cooldown, "min_lr": 1e-5});
            assert_resumes(|| Box::new(hook(options.clone())), &acts, cut);
        }
    }
}
