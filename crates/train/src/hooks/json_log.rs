//! Numbers of the run as JSON lines.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tenterhook_hooks::{AttachError, Cx, Hook, HookResult, MetricsRow, RunStatus};

use super::log_file::{LogFile, is_step_row};
use super::none_of;

/// What a [`JsonLog`] writes, and where.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JsonLogOptions {
    /// Writes every n-th step; validations are written always.
    pub log_every_n_batches: u64,
    /// The file, inside the run directory; without one it is `logs/<hook id>.jsonl`.
    pub path: Option<String>,
}

impl Default for JsonLogOptions {
    fn default() -> Self {
        Self { log_every_n_batches: 100, path: None }
    }
}

/// Writes a JSON object per line: `step`, `epoch`, `time`, and every number under its name. What JSON cannot hold is a string: `"NaN"`,
/// `"Infinity"`, `"-Infinity"`.
pub struct JsonLog {
    options: JsonLogOptions,
    file: LogFile,
}

impl JsonLog {
    /// The kind's name.
    pub const KIND: &'static str = "json_log";

    /// A path that leads out of the run directory is an error.
    pub fn new(options: JsonLogOptions) -> Result<Self, AttachError> {
        let mut problems: Vec<String> =
            options.path.as_deref().and_then(LogFile::problem).into_iter().collect();
        if options.log_every_n_batches == 0 {
            problems.push("`log_every_n_batches` is 0, it must be at least 1".to_string());
        }
        none_of(problems, Self::KIND)?;
        Ok(Self { options, file: LogFile::default() })
    }
}

/// A number as JSON has it, or the string that stands for it.
fn json_number(value: f64) -> Value {
    match value {
        value if value.is_finite() => json!(value),
        value if value.is_nan() => json!("NaN"),
        value => json!(if value > 0.0 { "Infinity" } else { "-Infinity" }),
    }
}

fn line(row: &MetricsRow, time: &str) -> String {
    let mut line = Map::new();
    line.insert("step".to_string(), json!(row.step));
    line.insert("epoch".to_string(), json!(row.epoch));
    line.insert("time".to_string(), json!(time));
    for (name, value) in &row.values {
        // The line's own keys stay what they are.
        let taken = matches!(name.as_str(), "step" | "epoch" | "time");
        let name = if taken { format!("metric/{name}") } else { name.clone() };
        line.insert(name, json_number(*value));
    }
    format!("{}\n", Value::Object(line))
}

impl Hook for JsonLog {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn only_on_first_rank(&self) -> bool {
        true
    }

    fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
        self.file.open(self.options.path.as_deref(), "jsonl", cx)
    }

    fn on_metrics(&mut self, row: &MetricsRow, _cx: &mut Cx) -> HookResult {
        if is_step_row(row) && !row.step.is_multiple_of(self.options.log_every_n_batches) {
            return Ok(());
        }
        let now = jiff::Timestamp::now().to_string();
        self.file.append(line(row, &now).as_bytes())
    }

    fn on_train_end(&mut self, _status: RunStatus, _cx: &mut Cx) -> HookResult {
        self.file.close()
    }

    fn save_state(&self) -> HookResult<Option<Value>> {
        self.file.state().map(Some)
    }

    fn load_state(&mut self, state: Value) -> HookResult {
        self.file.load(&state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tenterhook_hooks::{Event, MockTrainer};

    fn trainer(dir: &Path, options: JsonLogOptions) -> MockTrainer {
        let mut trainer = MockTrainer::new().in_dir(dir);
        trainer.attach(JsonLog::new(options).unwrap()).unwrap();
        trainer.fire(Event::TrainStart).unwrap();
        trainer
    }

    fn lines(path: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn every_nth_step_and_every_validation() {
        let dir = tempfile::tempdir().unwrap();
        let options = JsonLogOptions { log_every_n_batches: 2, path: Some("metrics/all.jsonl".into()) };
        let mut trainer = trainer(dir.path(), options);
        for loss in [1.0, f64::NAN, 3.0] {
            trainer.step(loss).unwrap();
        }
        trainer
            .validate(&[("val/loss", 0.1), ("a", f64::INFINITY), ("b", f64::NEG_INFINITY), ("step", 7.0)])
            .unwrap();
        trainer.end(RunStatus::Completed).unwrap();
        let lines = lines(&dir.path().join("metrics/all.jsonl"));
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["step"], &lines[0]["loss"]), (&json!(2), &json!("NaN")));
        let last = &lines[1];
        assert_eq!(
            (&last["step"], &last["epoch"], &last["metric/step"]),
            (&json!(3), &json!(0), &json!(7.0))
        );
        assert_eq!((&last["a"], &last["b"]), (&json!("Infinity"), &json!("-Infinity")));
        assert_eq!(last["val/loss"], json!(0.1));
        assert!(last["time"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
    }

    #[test]
    fn by_default_every_hundredth_step_in_a_file_named_by_the_id() {
        let dir = tempfile::tempdir().unwrap();
        let mut trainer = trainer(dir.path(), JsonLogOptions::default());
        (0..250).for_each(|_| trainer.step(1.0).unwrap());
        let lines = lines(&dir.path().join("logs/json_log.jsonl"));
        assert_eq!(lines.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>(), [100, 200]);
    }

    #[test]
    fn without_a_directory_it_says_so() {
        let mut trainer = MockTrainer::new();
        trainer.attach(JsonLog::new(JsonLogOptions::default()).unwrap()).unwrap();
        trainer.fire(Event::TrainStart).unwrap();
        assert!(trainer.errors()[0].to_string().contains("no directory"), "{:?}", trainer.errors());
    }

    #[test]
    fn wrong_options_are_all_named() {
        let error = JsonLog::new(JsonLogOptions { log_every_n_batches: 0, path: Some("../x".into()) });
        let error = error.err().unwrap().to_string();
        assert!(error.contains("log_every_n_batches") && error.contains("../x"), "{error}");
    }

    /// A run that is cut after any row and goes on from there leaves the file of an uncut run, timestamps aside.
    #[test]
    fn p05_cut_anywhere_no_line_is_doubled_or_lost() {
        let without_time = |path: &Path| {
            let mut lines = lines(path);
            lines.iter_mut().for_each(|line| drop(line.as_object_mut().unwrap().remove("time")));
            lines
        };
        let options = || JsonLogOptions { log_every_n_batches: 3, path: None };
        let run = |trainer: &mut MockTrainer, steps: std::ops::Range<u32>| {
            for step in steps {
                trainer.step(f64::from(step)).unwrap();
                if step % 4 == 0 {
                    trainer.validate(&[("val/loss", f64::from(step))]).unwrap();
                }
            }
        };
        let dir = tempfile::tempdir().unwrap();
        run(&mut trainer(dir.path(), options()), 0..20);
        let whole = without_time(&dir.path().join("logs/json_log.jsonl"));
        assert_eq!(whole.len(), 6 + 5);
        for cut in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let mut first = trainer(dir.path(), options());
            run(&mut first, 0..cut);
            let saved = first.hooks().save_hook("json_log").unwrap();
            let state = first.state.clone();
            run(&mut first, cut..20); // what a crash leaves behind
            drop(first);
            let mut second = MockTrainer::new();
            second.state = state;
            second.attach(JsonLog::new(options()).unwrap()).unwrap();
            second.hooks().load_hook(saved).unwrap();
            second.fire(Event::TrainStart).unwrap();
            run(&mut second, cut..20);
            assert_eq!(without_time(&dir.path().join("logs/json_log.jsonl")), whole, "cut at {cut}");
        }
    }
}
