//! What a run's record and log say, kept up to date.

use serde_json::{Map, Value, json};
use tenterhook_record::metrics::{Digest, RowView, Tail};
use tenterhook_record::run::{RunDir, RunRecord, Status, Summary};

use crate::places::{Stamp, is_plain_file};

/// What a run's record and log say, as far as they were read.
pub(crate) struct Account {
    dir: RunDir,
    stamp: Option<Stamp>,
    /// Without a record where that cannot be read.
    pub(crate) summary: Summary,
    /// Why the record cannot be read.
    pub(crate) unreadable: Option<String>,
    tail: Tail,
    /// The share of the log that was read, while it is not all of it.
    pub(crate) loading: Option<f64>,
    /// Another one after every change of the record.
    pub(crate) version: u64,
}

impl Account {
    /// With nothing read yet.
    pub(crate) fn new(dir: RunDir) -> Self {
        let record = RunRecord::default();
        Self {
            stamp: None,
            summary: Summary { record, killed: false, digest: Digest::default(), problem: None },
            unreadable: None,
            tail: Tail::new(&dir.metrics_path()),
            loading: None,
            version: 0,
            dir,
        }
    }

    pub(crate) fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// Where reading of the log goes on.
    pub(crate) fn position(&self) -> u64 {
        self.tail.position()
    }

    /// Reads the record again if it has changed, or if its run was killed or goes on again, which the record does not tell.
    pub(crate) fn refresh(&mut self) {
        let stamp = Stamp::of(&self.dir.record_path());
        let says_training = self.unreadable.is_none() && self.summary.record.status == Status::Training;
        let is_as_it_was = !says_training || self.summary.killed != self.dir.is_locked();
        if self.stamp == Some(stamp) && is_as_it_was {
            return;
        }
        self.stamp = Some(stamp);
        self.version += 1;
        let read = match is_plain_file(&self.dir.record_path()) {
            true => RunRecord::read_with_fate(&self.dir).map_err(|error| error.to_string()),
            false => Err("it has no record: run.json is missing or no file".to_string()),
        };
        match read {
            Ok((record, killed)) => {
                (self.summary.record, self.summary.killed, self.unreadable) = (record, killed, None);
            }
            Err(problem) => self.unreadable = Some(problem),
        }
    }

    /// Whether the log does not have any more what was read of it. Then it is read again from its begin.
    pub(crate) fn was_cut(&mut self) -> bool {
        let was_cut = self.tail.was_cut().unwrap_or(false);
        if was_cut {
            self.summary.digest = Digest::default();
        }
        was_cut
    }

    /// Goes on reading the log, for so many bytes.
    pub(crate) fn read_log(&mut self, limit: u64, mut each: impl FnMut(u64, &RowView<'_>)) {
        let path = self.dir.metrics_path();
        if !path.exists() {
            return;
        }
        if !is_plain_file(&path) {
            self.summary.problem = Some("metrics.jsonl is no file".to_string());
            return;
        }
        let digest = &mut self.summary.digest;
        let read = self.tail.read(limit, |begin, row| {
            digest.add_view(row);
            each(begin, row);
        });
        match read {
            Ok(piece) => {
                let share = piece.position as f64 / piece.length.max(1) as f64;
                (self.loading, self.summary.problem) = (piece.more.then_some(share.min(1.0)), None);
            }
            Err(error) => (self.loading, self.summary.problem) = (None, Some(error.to_string())),
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.unreadable.is_none() && self.summary.is_live()
    }

    /// As the list shows it; `None` where the record cannot be read.
    pub(crate) fn status(&self) -> Option<&'static str> {
        self.unreadable.is_none().then(|| self.summary.status().as_str())
    }

    /// What the list says about the run.
    pub(crate) fn brief(&self) -> Map<String, Value> {
        let mut told = match &self.unreadable {
            Some(problem) => Map::from_iter([
                ("id".to_string(), json!(self.dir.id())),
                ("status".to_string(), Value::Null),
                ("killed".to_string(), json!(false)),
                ("degraded".to_string(), json!(false)),
                ("problem".to_string(), json!(problem)),
            ]),
            None => {
                let mut told = self.summary.to_json(self.dir.id());
                told.insert("score".to_string(), self.score());
                told
            }
        };
        told.insert("live".to_string(), json!(self.is_live()));
        told.insert("loading".to_string(), json!(self.loading));
        told
    }

    /// What is not finite is `null` here, as all numbers of the dashboard.
    fn score(&self) -> Value {
        let told = |score: tenterhook_record::metrics::Score| json!({ "name": score.name, "value": score.value.0, "step": score.step, "best": score.best });
        self.summary.score().map_or(Value::Null, told)
    }
}
