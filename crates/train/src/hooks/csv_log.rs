//! Numbers of the run as a table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenterhook_hooks::{AttachError, Cx, Hook, HookResult, MetricsRow, RunStatus};

use super::log_file::{LogFile, is_step_row};
use super::none_of;

/// What a [`CsvLog`] writes, and where.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CsvLogOptions {
    /// Writes every n-th step; validations are written always.
    pub log_every_n_batches: u64,
    /// The metrics, by their exact names: the columns of a table must be known before its first row. `step` and `epoch` come before them.
    pub columns: Vec<String>,
    /// The file, inside the run directory; without one it is `logs/<hook id>.csv`.
    pub path: Option<String>,
}

impl Default for CsvLogOptions {
    fn default() -> Self {
        let columns = ["loss", "lr", "grad_norm", "val/loss", "val/accuracy"];
        Self { log_every_n_batches: 1, columns: columns.map(str::to_string).into(), path: None }
    }
}

/// Writes a CSV file (RFC 4180, but with line feeds) with the columns `step`, `epoch` and those that were chosen. What a row does
/// not have stays empty; what is not a number is `NaN`, `inf` or `-inf`.
pub struct CsvLog {
    options: CsvLogOptions,
    file: LogFile,
}

impl CsvLog {
    /// The kind's name.
    pub const KIND: &'static str = "csv_log";

    /// Columns that are empty or doubled, and a path that leads out of the run directory, are errors.
    pub fn new(options: CsvLogOptions) -> Result<Self, AttachError> {
        let mut problems: Vec<String> =
            options.path.as_deref().and_then(LogFile::problem).into_iter().collect();
        if options.log_every_n_batches == 0 {
            problems.push("`log_every_n_batches` is 0, it must be at least 1".to_string());
        }
        if options.columns.is_empty() {
            problems.push("`columns` is empty: nothing would be written".to_string());
        }
        for (i, name) in options.columns.iter().enumerate() {
            if options.columns[..i].contains(name) || matches!(name.as_str(), "step" | "epoch") {
                problems.push(format!("column `{name}` would be there twice"));
            }
            if name.is_empty() {
                problems.push("a column has no name".to_string());
            }
        }
        none_of(problems, Self::KIND)?;
        Ok(Self { options, file: LogFile::default() })
    }

    fn header(&self) -> String {
        let fixed = ["step", "epoch"].map(str::to_string).into_iter();
        line(fixed.chain(self.options.columns.iter().map(|name| quoted(name))))
    }

    fn row(&self, row: &MetricsRow) -> String {
        let value = |name: &String| row.values.get(name).map(f64::to_string).unwrap_or_default();
        let fixed = [row.step.to_string(), row.epoch.to_string()].into_iter();
        line(fixed.chain(self.options.columns.iter().map(value)))
    }
}

fn line(fields: impl Iterator<Item = String>) -> String {
    let mut line = fields.collect::<Vec<_>>().join(",");
    line.push('\n');
    line
}

/// A field as RFC 4180 has it: in quotes where it must be, with quotes doubled.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_string(),
    }
}

impl Hook for CsvLog {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn only_on_first_rank(&self) -> bool {
        true
    }

    fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
        self.file.open(self.options.path.as_deref(), "csv", cx)?;
        match self.file.is_empty() {
            true => self.file.append(self.header().as_bytes()),
            false => Ok(()),
        }
    }

    fn on_metrics(&mut self, row: &MetricsRow, _cx: &mut Cx) -> HookResult {
        if is_step_row(row) && !row.step.is_multiple_of(self.options.log_every_n_batches) {
            return Ok(());
        }
        self.file.append(self.row(row).as_bytes())
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

    fn trainer(dir: &Path, options: CsvLogOptions) -> MockTrainer {
        let mut trainer = MockTrainer::new().in_dir(dir);
        trainer.attach(CsvLog::new(options).unwrap()).unwrap();
        trainer
    }

    fn run(trainer: &mut MockTrainer, steps: std::ops::Range<u32>) {
        for step in steps {
            trainer.step(f64::from(step) / 4.0).unwrap();
            if step % 2 == 1 {
                trainer.validate(&[("val/loss", f64::NAN), ("val/accuracy", 0.5)]).unwrap();
            }
        }
    }

    fn written(options: CsvLogOptions, file: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let mut trainer = trainer(dir.path(), options);
        trainer.fire(Event::TrainStart).unwrap();
        run(&mut trainer, 0..3);
        trainer.end(RunStatus::Completed).unwrap();
        std::fs::read_to_string(dir.path().join(file)).unwrap()
    }

    #[test]
    fn a_header_and_a_row_per_step_and_validation() {
        assert_eq!(
            written(CsvLogOptions::default(), "logs/csv_log.csv"),
            "step,epoch,loss,lr,grad_norm,val/loss,val/accuracy\n\
             1,0,0,,,,\n2,0,0.25,,,,\n2,0,,,,NaN,0.5\n3,0,0.5,,,,\n"
        );
    }

    #[test]
    fn every_option_changes_the_file() {
        let options = CsvLogOptions {
            log_every_n_batches: 2,
            columns: vec!["loss".into(), "a \"b\", c".into()],
            path: Some("table.csv".into()),
        };
        assert_eq!(written(options, "table.csv"), "step,epoch,loss,\"a \"\"b\"\", c\"\n2,0,0.25,\n2,0,,\n");
    }

    #[test]
    fn wrong_options_are_all_named() {
        let columns = ["a", "a", "step", ""].map(str::to_string).into();
        let options = CsvLogOptions { log_every_n_batches: 0, columns, path: Some("/x".into()) };
        let error = CsvLog::new(options).err().unwrap().to_string();
        for word in ["log_every_n_batches", "column `a`", "column `step`", "has no name", "\"/x\""] {
            assert!(error.contains(word), "{error}");
        }
        assert!(CsvLog::new(CsvLogOptions { columns: vec![], ..CsvLogOptions::default() }).is_err());
    }

    #[test]
    fn p05_cut_anywhere_the_file_is_that_of_an_uncut_run() {
        let whole = tempfile::tempdir().unwrap();
        let mut uncut = trainer(whole.path(), CsvLogOptions::default());
        uncut.fire(Event::TrainStart).unwrap();
        run(&mut uncut, 0..10);
        let whole = std::fs::read_to_string(whole.path().join("logs/csv_log.csv")).unwrap();
        for cut in 0..10 {
            let dir = tempfile::tempdir().unwrap();
            let mut first = trainer(dir.path(), CsvLogOptions::default());
            first.fire(Event::TrainStart).unwrap();
            run(&mut first, 0..cut);
            let (saved, state) = (first.hooks().save_hook("csv_log").unwrap(), first.state.clone());
            run(&mut first, cut..10); // what a crash leaves behind
            drop(first);
            let mut second = trainer(dir.path(), CsvLogOptions::default());
            second.state = state;
            second.hooks().load_hook(saved).unwrap();
            second.fire(Event::TrainStart).unwrap();
            run(&mut second, cut..10);
            assert_eq!(
                std::fs::read_to_string(dir.path().join("logs/csv_log.csv")).unwrap(),
                whole,
                "cut at {cut}"
            );
        }
    }
}
