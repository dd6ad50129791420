//! What a run's record and metrics say, in a few words.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{RunDir, RunError, RunRecord, Status};
use crate::metrics::{self, Digest, Number, Score};

/// A run in a few words.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Its record.
    pub record: RunRecord,
    /// Whether it was killed, see [`RunRecord::read_with_fate`].
    pub killed: bool,
    /// What its metrics say.
    pub digest: Digest,
    /// Why the metrics cannot be read.
    pub problem: Option<String>,
}

impl Summary {
    /// Reads a run's record and metrics.
    pub fn read(dir: &RunDir) -> Result<Self, RunError> {
        let (record, killed) = RunRecord::read_with_fate(dir)?;
        Ok(Self::of(record, killed, dir))
    }

    /// The same of a record that was read already.
    pub fn of(record: RunRecord, killed: bool, dir: &RunDir) -> Self {
        let mut digest = Digest::default();
        let problem = match metrics::for_each(&dir.metrics_path(), |row| digest.add(&row)) {
            Ok(()) => None,
            // A run that was killed in its first moments has none.
            Err(_) if !dir.metrics_path().exists() => None,
            Err(error) => {
                digest = Digest::default();
                Some(error.to_string())
            }
        };
        Self { record, killed, digest, problem }
    }

    /// How it stands. No record says of a run that it was killed: it was interrupted, with nobody there to write it down.
    pub fn status(&self) -> Status {
        if self.killed { Status::Interrupted } else { self.record.status }
    }

    /// The status in words, with what it alone does not say.
    pub fn status_in_words(&self) -> String {
        let killed = if self.killed { " (killed)" } else { "" };
        format!("{}{killed}", self.status().as_str())
    }

    /// Whether some process is training it.
    pub fn is_live(&self) -> bool {
        self.status() == Status::Training
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        let told = self.record.attempts.last().and_then(|attempt| attempt.to_step);
        told.unwrap_or_else(|| {
            let begun = self.record.attempts.last().map_or(0, |attempt| attempt.from_step);
            self.digest.step.max(begun)
        })
    }

    /// How long it has trained.
    pub fn seconds(&self) -> f64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        self.record.seconds(if self.is_live() { now() } else { self.digest.time })
    }

    /// The best `val/loss`, or the last `loss`.
    pub fn score(&self) -> Option<Score> {
        self.digest.score()
    }

    /// The last value of every metric that does not depend on the machine, with its step.
    pub fn last_metrics(&self) -> BTreeMap<&str, (u64, Number)> {
        let last = self.digest.last.iter().map(|(name, last)| (name.as_str(), *last));
        last.filter(|(name, _)| !name.starts_with("time/")).collect()
    }

    /// The same without the steps.
    pub fn last_values(&self) -> BTreeMap<&str, Number> {
        self.last_metrics().into_iter().map(|(name, (_, value))| (name, value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Row;

    #[test]
    fn a_killed_run_was_interrupted_and_got_as_far_as_its_metrics() {
        let mut summary =
            Summary { record: RunRecord::new("r"), killed: true, digest: Digest::default(), problem: None };
        assert_eq!((summary.steps(), summary.status()), (0, Status::Interrupted));
        assert_eq!(summary.status_in_words(), "interrupted (killed)");
        summary.digest.add(&Row { step: 7, ..Row::default() });
        assert_eq!(summary.steps(), 7);
    }
}
