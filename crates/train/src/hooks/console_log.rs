//! Numbers of the run as lines on the console.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{AttachError, Cx, Hook, HookResult, MetricsRow, RunStatus, glob_matches};

use super::console::Console;
use super::log_file::is_step_row;
use super::none_of;
use super::progress::above_bar;

/// What a [`ConsoleLog`] prints, and how often.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ConsoleLogOptions {
    /// Prints the first step and every n-th one; validations are printed always.
    pub log_every_n_batches: u64,
    /// The metrics that are printed, as globs, in this order.
    pub metrics: Vec<String>,
    /// Digits after the decimal point.
    pub precision: usize,
}

impl Default for ConsoleLogOptions {
    fn default() -> Self {
        let metrics = ["loss", "lr", "grad_norm", "val/*", "time/tokens_per_s"];
        Self { log_every_n_batches: 10, metrics: metrics.map(str::to_string).into(), precision: 4 }
    }
}

/// Prints a line for every n-th step, for every validation and for the end of the run:
///
/// ```text
/// step 120/300  epoch 1  loss 2.3456  lr 3.0000e-4
/// ```
pub struct ConsoleLog {
    options: ConsoleLogOptions,
    console: Console,
}

impl ConsoleLog {
    /// The kind's name.
    pub const KIND: &'static str = "console_log";

    /// Options that print nothing are an error.
    pub fn new(options: ConsoleLogOptions) -> Result<Self, AttachError> {
        let mut problems = Vec::new();
        if options.log_every_n_batches == 0 {
            problems.push("`log_every_n_batches` is 0, it must be at least 1".to_string());
        }
        if options.metrics.is_empty() {
            problems.push("`metrics` is empty: nothing would be printed".to_string());
        }
        if options.precision > 17 {
            problems
                .push(format!("`precision` is {}, more than the 17 digits of a number", options.precision));
        }
        none_of(problems, Self::KIND)?;
        Ok(Self { options, console: Console::default() })
    }

    #[cfg(test)]
    fn on(mut self, console: Console) -> Self {
        self.console = console;
        self
    }

    fn line(&self, row: &MetricsRow, total: Option<u64>) -> Option<String> {
        let mut line = format!("{}  epoch {}", progress(row.step, total), row.epoch);
        let mut names: Vec<&str> = Vec::new();
        for pattern in &self.options.metrics {
            // A metric that several globs match is printed once, where the first has it.
            let more = row.values.keys().map(String::as_str).filter(|name| glob_matches(pattern, name));
            let more: Vec<&str> = more.filter(|name| !names.contains(name)).collect();
            names.extend(more);
        }
        for name in &names {
            line.push_str(&format!("  {} {}", name, number(row.values[*name], self.options.precision)));
        }
        (!names.is_empty()).then_some(line)
    }
}

fn progress(step: u64, total: Option<u64>) -> String {
    total.map_or_else(|| format!("step {step}"), |total| format!("step {step}/{total}"))
}

/// A number for people: as it is where that is readable, else with an exponent.
pub(super) fn number(value: f64, precision: usize) -> String {
    let size = value.abs();
    match size == 0.0 || !value.is_finite() || (1e-2..1e6).contains(&size) {
        true => format!("{value:.precision$}"),
        false => format!("{value:.precision$e}"),
    }
}

impl Hook for ConsoleLog {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn only_on_first_rank(&self) -> bool {
        true
    }

    fn on_metrics(&mut self, row: &MetricsRow, cx: &mut Cx) -> HookResult {
        let due = row.step == 1 || row.step.is_multiple_of(self.options.log_every_n_batches);
        if is_step_row(row) && !due {
            return Ok(());
        }
        let total = cx.state().and_then(|state| state.total_steps);
        if let Some(line) = self.line(row, total) {
            above_bar(cx, || self.console.line(&line));
        }
        Ok(())
    }

    fn on_exception(&mut self, error: &str, cx: &mut Cx) -> HookResult {
        above_bar(cx, || self.console.line(&format!("error: {error}")));
        Ok(())
    }

    fn on_train_end(&mut self, status: RunStatus, cx: &mut Cx) -> HookResult {
        let at = cx.state().map(|state| format!(" at {}", progress(state.step, state.total_steps)));
        let line = format!("training {}{}", status.as_str(), at.unwrap_or_default());
        above_bar(cx, || self.console.line(&line));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenterhook_hooks::{Event, MockTrainer};

    /// What is printed of three steps, a validation and the end.
    fn printed(options: ConsoleLogOptions) -> String {
        let (console, text) = Console::buffer();
        let mut trainer = MockTrainer::new();
        trainer.attach(ConsoleLog::new(options).unwrap().on(console)).unwrap();
        for loss in [2.5, 0.001234567, 1.5] {
            trainer.step(loss).unwrap();
        }
        trainer.validate(&[("val/loss", 1.25), ("val/accuracy", 0.5), ("other", 1.0)]).unwrap();
        trainer.end(RunStatus::Completed).unwrap();
        text.lock().unwrap().clone()
    }

    #[test]
    fn the_usual_lines() {
        assert_eq!(
            printed(ConsoleLogOptions::default()),
            "step 1/1000  epoch 0  loss 2.5000\n\
             step 3/1000  epoch 0  val/accuracy 0.5000  val/loss 1.2500\n\
             training completed at step 3/1000\n"
        );
    }

    #[test]
    fn every_option_changes_the_lines() {
        let usual = ConsoleLogOptions::default;
        let all = printed(ConsoleLogOptions { log_every_n_batches: 1, ..usual() });
        assert!(all.contains("step 2/1000  epoch 0  loss 1.2346e-3\n"), "{all}");
        let short = printed(ConsoleLogOptions { precision: 1, ..usual() });
        assert!(short.contains("val/loss 1.2\n"), "{short}");
        let other = printed(ConsoleLogOptions { metrics: vec!["o*".into(), "*".into()], ..usual() });
        assert!(other.contains("other 1.0000  val/accuracy 0.5000  val/loss 1.2500\n"), "{other}");
        let none = printed(ConsoleLogOptions { metrics: vec!["absent".into()], ..usual() });
        assert_eq!(none, "training completed at step 3/1000\n");
    }

    #[test]
    fn failures_and_odd_numbers_are_shown() {
        let (console, text) = Console::buffer();
        let mut trainer = MockTrainer::new();
        trainer.state.total_steps = None;
        trainer.attach(ConsoleLog::new(ConsoleLogOptions::default()).unwrap().on(console)).unwrap();
        trainer.step(f64::NAN).unwrap();
        trainer.fire(Event::Exception("the loss is NaN")).unwrap();
        trainer.end(RunStatus::Error).unwrap();
        let want = "step 1  epoch 0  loss NaN\nerror: the loss is NaN\ntraining error at step 1\n";
        assert_eq!(*text.lock().unwrap(), want);
        for (value, text) in [(0.0, "0.00"), (0.01, "0.01"), (-0.001, "-1.00e-3"), (3e7, "3.00e7")] {
            assert_eq!(number(value, 2), text);
        }
        assert_eq!(number(f64::NEG_INFINITY, 2), "-inf");
    }

    #[test]
    fn wrong_options_are_all_named() {
        let options = ConsoleLogOptions { log_every_n_batches: 0, metrics: vec![], precision: 99 };
        let error = ConsoleLog::new(options).err().unwrap().to_string();
        for word in ["log_every_n_batches", "metrics", "precision"] {
            assert!(error.contains(word), "{error}");
        }
    }
}
