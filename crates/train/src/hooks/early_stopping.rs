//! Ending a run that no longer improves.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{AttachError, Cx, Hook, HookResult, Metrics};

use crate::hooks::console::Console;
use crate::hooks::monitored::{Exact, Goal, absent, after_validation, latest};
use crate::hooks::none_of;

/// When an [`EarlyStopping`] ends the run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EarlyStoppingOptions {
    /// The metric.
    pub monitor: String,
    /// After so many checks in a row without improvement the run ends.
    pub patience: u64,
    /// Whether small ("min") or large ("max") values are better.
    pub mode: Goal,
    /// An improvement is better than the best by more than this.
    pub min_delta: f64,
    /// Checks at the end of every epoch, with the latest value; otherwise after every validation.
    pub check_on_train_epoch_end: bool,
    /// The run fails when the metric is not there; otherwise that is said once.
    pub strict: bool,
}

impl Default for EarlyStoppingOptions {
    fn default() -> Self {
        Self {
            monitor: "val/loss".to_string(),
            patience: 3,
            mode: Goal::Min,
            min_delta: 0.0,
            check_on_train_epoch_end: false,
            strict: true,
        }
    }
}

/// Ends the run, in good order, when a metric no longer improves. NaN is no improvement.
///
/// It publishes `<id>/best` and `<id>/wait`, the number of checks since the best.
pub struct EarlyStopping {
    options: EarlyStoppingOptions,
    state: State,
    console: Console,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    best: Option<Exact>,
    wait: u64,
    /// Why the run was ended: one that goes on from there ends again.
    stopped: Option<String>,
    said_absent: bool,
}

impl EarlyStopping {
    /// The kind's name.
    pub const KIND: &'static str = "early_stopping";

    /// Options that make no sense are an error.
    pub fn new(options: EarlyStoppingOptions) -> Result<Self, AttachError> {
        let mut problems = Vec::new();
        if options.patience == 0 {
            problems.push("`patience` is 0, it must be at least 1".to_string());
        }
        if !(options.min_delta >= 0.0 && options.min_delta.is_finite()) {
            problems.push(format!("`min_delta` is {}, it must not be negative", options.min_delta));
        }
        if options.monitor.is_empty() {
            problems.push("`monitor` is empty, it must name a metric".to_string());
        }
        none_of(problems, Self::KIND)?;
        Ok(Self { options, state: State::default(), console: Console::default() })
    }

    fn check(&mut self, value: Option<f64>, results: &Metrics, cx: &mut Cx) {
        let Some(value) = value else { return self.without_metric(results, cx) };
        let EarlyStoppingOptions { monitor, patience, mode, min_delta, .. } = &self.options;
        let improves = |best: &Exact| mode.is_better(value, best.0, *min_delta);
        let State { best, wait, stopped, .. } = &mut self.state;
        if !value.is_nan() && best.as_ref().is_none_or(improves) {
            if cx.verbose() {
                let before = best.map(|best| format!(", was {}", best.0)).unwrap_or_default();
                self.console.line(&format!("{}: `{monitor}` improved to {value}{before}", cx.hook_id()));
            }
            (*best, *wait) = (Some(Exact(value)), 0);
        } else {
            *wait += 1;
        }
        cx.log(format!("{}/wait", cx.hook_id()), *wait as f64);
        if let Some(best) = best {
            cx.log(format!("{}/best", cx.hook_id()), best.0);
        }
        if *wait >= *patience && stopped.is_none() {
            let best = best.map_or("there never was a number".to_string(), |best| format!("best {}", best.0));
            *stopped = Some(format!("`{monitor}` has not improved in {wait} checks ({best}, last {value})"));
            if let (true, Some(reason)) = (cx.verbose(), &stopped) {
                self.console.line(&format!("{}: {reason}", cx.hook_id()));
            }
        }
        self.stop_if_over(cx);
    }

    fn without_metric(&mut self, results: &Metrics, cx: &mut Cx) {
        let problem = absent(&self.options.monitor, results, cx);
        if self.options.strict {
            cx.abort(format!("{problem} (`strict = false` goes on without it)"));
        } else if !std::mem::replace(&mut self.state.said_absent, true) {
            tracing::warn!(hook = cx.hook_id(), "{problem}");
        }
    }

    fn stop_if_over(&self, cx: &mut Cx) {
        if let Some(reason) = &self.state.stopped {
            cx.stop(reason);
        }
    }
}

impl Hook for EarlyStopping {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
        self.stop_if_over(cx);
        Ok(())
    }

    fn on_validation_end(&mut self, metrics: &Metrics, cx: &mut Cx) -> HookResult {
        if !self.options.check_on_train_epoch_end {
            self.check(after_validation(&self.options.monitor, metrics, cx), metrics, cx);
        }
        Ok(())
    }

    fn on_epoch_end(&mut self, _epoch: u64, cx: &mut Cx) -> HookResult {
        if self.options.check_on_train_epoch_end {
            self.check(latest(&self.options.monitor, cx), &Metrics::new(), cx);
        }
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
    use serde_json::json;
    use tenterhook_hooks::{Event, HookOptions, MockTrainer};

    fn hook(json: serde_json::Value) -> EarlyStopping {
        EarlyStopping::new(options(json)).unwrap()
    }

    /// After how many validations with these losses the run ends.
    fn checks(json: serde_json::Value, losses: &[f64]) -> Option<usize> {
        let mut trainer = MockTrainer::new();
        trainer.attach(hook(json)).unwrap();
        losses.iter().position(|loss| {
            trainer.step(*loss).unwrap();
            trainer.validate(&[("val/loss", *loss)]).unwrap();
            trainer.stopped().is_some()
        })
    }

    #[test]
    fn patience_counts_checks_without_improvement() {
        const NAN: f64 = f64::NAN;
        let table: [(serde_json::Value, &[f64], Option<usize>); 11] = [
            (json!({}), &[3.0, 2.0, 1.0, 0.5, 0.4], None),
            (json!({}), &[1.0, 1.0, 1.0, 1.0, 1.0], Some(3)),
            (json!({"patience": 1}), &[1.0, 1.0], Some(1)),
            (json!({"patience": 2}), &[1.0, 2.0, 0.9, 2.0, 2.0], Some(4)),
            (json!({"mode": "max", "patience": 2}), &[1.0, 2.0, 3.0, 2.5, 2.9], Some(4)),
            (json!({"min_delta": 0.5, "patience": 2}), &[3.0, 2.8, 2.6, 2.4], Some(2)),
            (json!({"min_delta": 0.5, "patience": 2}), &[3.0, 2.8, 2.4, 2.2, 2.0], Some(4)),
            (json!({"patience": 2}), &[NAN, NAN], Some(1)),
            (json!({"patience": 2}), &[NAN, 1.0, NAN, 0.5, NAN, NAN], Some(5)),
            (json!({"monitor": "loss", "patience": 1}), &[1.0, 2.0], Some(1)),
            (json!({"mode": "max", "patience": 2}), &[1.0, f64::INFINITY, 5.0, 6.0], Some(3)),
        ];
        for (options, losses, want) in table {
            assert_eq!(checks(options.clone(), losses), want, "{options} {losses:?}");
        }
    }

    #[test]
    fn epoch_ends_are_checks_when_asked_for() -> HookResult {
        let mut trainer = MockTrainer::new();
        trainer.attach(hook(json!({"check_on_train_epoch_end": true, "patience": 1, "monitor": "loss"})))?;
        for loss in [1.0, 2.0] {
            trainer.step(loss)?;
            trainer.validate(&[("val/loss", 9.0)])?;
            assert_eq!(trainer.stopped(), None, "validation is no check");
            trainer.fire(Event::EpochEnd(0))?;
        }
        let reason = trainer.stopped().unwrap();
        assert_eq!(reason, "`loss` has not improved in 1 checks (best 1, last 2)");
        Ok(())
    }

    #[test]
    fn an_absent_metric_fails_the_run_or_is_ignored() -> HookResult {
        let mut trainer = MockTrainer::new();
        trainer.attach(hook(json!({"monitor": "val/los"})))?;
        let ended = trainer.validate(&[("val/loss", 1.0), ("val/accuracy", 0.5)]).unwrap_err().to_string();
        assert!(ended.contains("no metric is called `val/los`; there are `val/loss`, "), "{ended}");
        assert!(ended.contains("val/accuracy"), "{ended}");

        let mut trainer = MockTrainer::new();
        let id = trainer.attach(hook(json!({"monitor": "val/los", "strict": false, "patience": 1})))?;
        (0..3).try_for_each(|_| trainer.validate(&[("val/loss", 1.0)]))?;
        assert_eq!(trainer.stopped(), None);
        assert!(trainer.hooks().with_hook(&id, |hook: &mut EarlyStopping| hook.state.said_absent)?);

        // The same at the end of an epoch, where the latest value counts, whenever that was.
        for (strict, ends) in [(true, true), (false, false)] {
            let mut trainer = MockTrainer::new();
            trainer.attach(hook(json!({"check_on_train_epoch_end": true, "strict": strict})))?;
            assert_eq!(trainer.fire(Event::EpochEnd(0)).is_err(), ends, "strict = {strict}");
        }
        let mut trainer = MockTrainer::new();
        trainer.attach(hook(json!({"check_on_train_epoch_end": true})))?;
        trainer.validate(&[("val/loss", 1.0)])?;
        trainer.fire(Event::EpochEnd(0))?;

        // A value of an earlier validation is not one of this.
        let mut trainer = MockTrainer::new();
        trainer.attach(hook(json!({})))?;
        trainer.validate(&[("val/loss", 1.0)])?;
        assert!(trainer.validate(&[("val/other", 1.0)]).is_err());
        Ok(())
    }

    #[test]
    fn best_and_wait_are_published_and_verbose_says_so() -> HookResult {
        for verbose in [false, true] {
            let mut trainer = MockTrainer::new();
            let mut hook = hook(json!({"patience": 2}));
            let (console, lines) = Console::buffer();
            hook.console = console;
            trainer.attach_with(hook, HookOptions { verbose, ..HookOptions::id("stop") })?;
            for loss in [2.0, 1.0, 3.0, 4.0] {
                trainer.validate(&[("val/loss", loss)])?;
            }
            assert_eq!((trainer.metric("stop/best"), trainer.metric("stop/wait")), (Some(1.0), Some(2.0)));
            let want = [
                "stop: `val/loss` improved to 2",
                "stop: `val/loss` improved to 1, was 2",
                "stop: `val/loss` has not improved in 2 checks (best 1, last 4)",
            ];
            let want = if verbose { want.join("\n") + "\n" } else { String::new() };
            assert_eq!(*lines.lock().unwrap(), want);
        }
        Ok(())
    }

    #[test]
    fn p05_a_stopped_run_stays_stopped() -> HookResult {
        let mut first = MockTrainer::new();
        let id = first.attach(hook(json!({"patience": 1})))?;
        for loss in [1.0, 2.0] {
            first.validate(&[("val/loss", loss)])?;
        }
        let mut second = MockTrainer::new();
        second.attach(hook(json!({"patience": 1})))?;
        second.hooks().load_hook(first.hooks().save_hook(&id)?)?;
        second.fire(Event::TrainStart)?;
        assert_eq!(second.stopped(), first.stopped());
        assert!(second.stopped().is_some());
        Ok(())
    }

    #[test]
    fn senseless_options_are_all_named() {
        let error = EarlyStopping::new(options(json!({"patience": 0, "min_delta": -1.0, "monitor": ""})));
        let Some(AttachError::BadOptions { problems, .. }) = error.err() else { panic!("accepted") };
        assert_eq!(problems.len(), 3);
    }

    proptest! {
        #[test]
        fn p05_decisions_survive_a_restart(acts in acts(), cut in 0..40usize, patience in 1..5u64, epochs: bool) {
            let monitor = if epochs { "loss" } else { "val/loss" };
            let options = json!({
                "patience": patience, "check_on_train_epoch_end": epochs, "monitor": monitor, "min_delta": 0.25, "strict": false,
            });
            assert_resumes(|| Box::new(hook(options.clone())), &acts, cut);
        }
    }
}
