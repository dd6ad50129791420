//! What a run's record and metrics say, in a few words.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tenterhook_record::metrics::{self, Number, Row};
use tenterhook_record::run::{RunDir, RunError, RunRecord};

/// A run in a few words.
pub(super) struct Summary {
    pub(super) record: RunRecord,
    pub(super) killed: bool,
    pub(super) rows: Vec<Row>,
    /// Why the metrics cannot be read.
    pub(super) problem: Option<String>,
}

/// The number that says most about a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Score {
    pub(super) name: String,
    pub(super) value: Number,
    pub(super) step: u64,
    /// Whether it is the best of its kind, or the last.
    pub(super) best: bool,
}

impl Summary {
    pub(super) fn read(dir: &RunDir) -> Result<Self, RunError> {
        let (record, killed) = RunRecord::read_with_fate(dir)?;
        Ok(Self::of(record, killed, dir))
    }

    /// The same of a record that was read already.
    pub(super) fn of(record: RunRecord, killed: bool, dir: &RunDir) -> Self {
        let (rows, problem) = match metrics::read(&dir.metrics_path()) {
            Ok(rows) => (rows, None),
            // A run that was killed in its first moments has none.
            Err(_) if !dir.metrics_path().exists() => (Vec::new(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        Self { record, killed, rows, problem }
    }

    /// The status; that of a run which was killed is in no record.
    pub(super) fn status(&self) -> &'static str {
        if self.killed { "killed" } else { self.record.status.as_str() }
    }

    /// Whether some process is training it.
    pub(super) fn is_live(&self) -> bool {
        self.status() == "training"
    }

    pub(super) fn steps(&self) -> u64 {
        let told = self.record.attempts.last().and_then(|attempt| attempt.to_step);
        told.unwrap_or_else(|| {
            let begun = self.record.attempts.last().map_or(0, |attempt| attempt.from_step);
            self.rows.last().map_or(begun, |row| row.step.max(begun))
        })
    }

    pub(super) fn seconds(&self) -> f64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let last_seen = if self.is_live() { now() } else { self.rows.last().map_or(0.0, |row| row.time) };
        self.record.seconds(last_seen)
    }

    /// The best `val/loss`, or the last `loss`.
    pub(super) fn score(&self) -> Option<Score> {
        let all = |name: &'static str| {
            self.rows.iter().filter_map(move |row| Some((row.step, *row.values.get(name)?)))
        };
        let score = |name: &str, best, (step, value)| {
            Some(Score { name: name.to_string(), value: Number(value), step, best })
        };
        let finite = all("val/loss").filter(|(_, value)| value.is_finite());
        match finite.min_by(|a, b| a.1.total_cmp(&b.1)) {
            Some(best) => score("val/loss", true, best),
            None => {
                let (name, last) = match all("val/loss").next_back() {
                    Some(last) => ("val/loss", Some(last)),
                    None => ("loss", all("loss").next_back()),
                };
                last.and_then(|last| score(name, false, last))
            }
        }
    }

    /// The last value of every metric that does not depend on the machine, with its step.
    pub(super) fn last_metrics(&self) -> BTreeMap<&str, (u64, Number)> {
        let values = self.rows.iter().flat_map(|row| {
            row.values.iter().map(|(name, value)| (name.as_str(), (row.step, Number(*value))))
        });
        values.filter(|(name, _)| !name.starts_with("time/")).collect()
    }

    /// The same without the steps.
    pub(super) fn last_values(&self) -> BTreeMap<&str, Number> {
        self.last_metrics().into_iter().map(|(name, (_, value))| (name, value)).collect()
    }
}

/// A number as a table shows it.
pub(super) fn shown(value: Number) -> String {
    match value.0.abs() {
        size if size != 0.0 && !(1e-3..1e6).contains(&size) => format!("{:.4e}", value.0),
        _ => format!("{:.4}", value.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(rows: &[(u64, &str, f64)]) -> Summary {
        let row = |(step, name, value): &(u64, &str, f64)| Row {
            step: *step,
            values: [(name.to_string(), *value)].into(),
            ..Row::default()
        };
        let rows = rows.iter().map(row).collect();
        Summary { record: RunRecord::new("r"), killed: true, rows, problem: None }
    }

    fn check(rows: &[(u64, &str, f64)], name: &str, value: f64, step: u64, best: bool) {
        let expected = Score { name: name.to_string(), value: Number(value), step, best };
        assert_eq!(summary(rows).score(), Some(expected), "{rows:?}");
    }

    #[test]
    fn the_best_validation_counts_else_the_last_loss() {
        assert_eq!(summary(&[]).score(), None);
        check(&[(1, "loss", 3.0), (2, "loss", 4.0)], "loss", 4.0, 2, false);
        let nan = (3, "val/loss", f64::NAN);
        check(&[(1, "val/loss", 3.0), (2, "val/loss", 2.0), nan, (3, "loss", 1.0)], "val/loss", 2.0, 2, true);
        let infinite = (1, "val/loss", f64::INFINITY);
        check(&[infinite, (1, "loss", 1.0)], "val/loss", f64::INFINITY, 1, false);
    }

    #[test]
    fn a_killed_run_got_as_far_as_its_metrics() {
        assert_eq!(summary(&[(1, "loss", 3.0), (7, "loss", 4.0)]).steps(), 7);
        assert_eq!(summary(&[]).steps(), 0);
    }
}
