//! The record that a run leaves on the disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tenterhook_hooks::{HookError, MetricsRow, RunStatus};
use tenterhook_record::disk;
use tenterhook_record::metrics::{MetricsLog, Row};
use tenterhook_record::name::file_safe;
use tenterhook_record::run::{Attempt, RunDir, RunLock, RunRecord, Status, config_hash, git_state, now};

use crate::error::TrainError;

/// The most failures that a record lists; receipts count them all.
const MOST_ERRORS: usize = 100;

/// What a record says of a run from its first moment.
#[derive(Clone, Debug, Default)]
pub struct RunFacts {
    /// The resolved configuration, without secrets.
    pub config: Value,
    /// The same as a file that starts the run again.
    pub config_toml: String,
    /// The seed of all randomness.
    pub seed: u64,
    /// Threads used.
    pub threads: usize,
    /// The arguments of the process.
    pub args: Vec<String>,
    /// The run it was forked or repeated from.
    pub parent: Option<String>,
    /// Which data it reads.
    pub data: Value,
}

/// A run's directory, locked by this process, with its record and its log of metrics.
pub struct Run {
    dir: RunDir,
    _lock: RunLock,
    record: RunRecord,
    metrics: MetricsLog,
}

impl Run {
    /// A new run in a directory that was just made for it.
    pub fn start(dir: RunDir, facts: &RunFacts) -> Result<Self, TrainError> {
        let lock = dir.lock().map_err(record_error)?;
        let record = RunRecord::new(dir.id());
        let metrics = MetricsLog::open(&dir.metrics_path(), None).map_err(record_error)?;
        let mut run = Self { dir, _lock: lock, record, metrics };
        run.begin_attempt(facts, None, 0)?;
        Ok(run)
    }

    /// A run that goes on, in the same directory. The caller restores a checkpoint next, and then begins an attempt
    /// ([`Trainer::begin_attempt`](crate::Trainer::begin_attempt)).
    pub fn resume(dir: RunDir) -> Result<Self, TrainError> {
        let lock = dir.lock().map_err(record_error)?;
        let record = RunRecord::read(&dir).map_err(record_error)?;
        let metrics = MetricsLog::open(&dir.metrics_path(), None).map_err(record_error)?;
        Ok(Self { dir, _lock: lock, record, metrics })
    }

    pub(crate) fn begin_attempt(
        &mut self,
        facts: &RunFacts,
        resumed_from: Option<String>,
        step: u64,
    ) -> Result<(), TrainError> {
        let (commit, dirty) = git_state(Path::new("."));
        let host = tenterhook_record::run::host();
        let hash = config_hash(&facts.config);
        let record = &mut self.record;
        record.attempts.push(Attempt {
            started: now(),
            finished: None,
            from_step: step,
            to_step: None,
            commit: commit.clone(),
            dirty,
            config_hash: hash.clone(),
            pid: std::process::id(),
            host: host.clone(),
            threads: facts.threads,
            args: facts.args.clone(),
            resumed_from,
        });
        (record.status, record.reason, record.finished) = (Status::Training, None, None);
        (record.commit, record.dirty, record.config_hash) = (commit, dirty, hash);
        (record.seed, record.host, record.threads) = (facts.seed, host, facts.threads);
        if facts.parent.is_some() {
            record.parent.clone_from(&facts.parent);
        }
        record.data = facts.data.clone();
        record.versions = BTreeMap::from([("tenterhook".to_string(), env!("CARGO_PKG_VERSION").to_string())]);
        disk::atomic_write(&self.dir.config_path(), |to| to.write_all(facts.config_toml.as_bytes()))
            .map_err(record_error)?;
        self.write()
    }

    /// The run's id.
    pub fn id(&self) -> &str {
        self.dir.id()
    }

    /// The run's directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// What the record says.
    pub fn record(&self) -> &RunRecord {
        &self.record
    }

    /// Where checkpoints are.
    pub fn checkpoints(&self) -> PathBuf {
        self.dir.checkpoints()
    }

    /// Where what hooks captured since this start of the run goes.
    pub(crate) fn captures_file(&self, hook_id: &str) -> PathBuf {
        let from_step = self.record.attempts.last().map_or(0, |attempt| attempt.from_step);
        self.dir.captures().join(format!("{}-{from_step:08}.safetensors", file_safe(hook_id)))
    }

    pub(crate) fn set_hooks(&mut self, hooks: Vec<Value>) -> Result<(), TrainError> {
        self.record.hooks = hooks;
        self.write()
    }

    pub(crate) fn log(&mut self, row: &MetricsRow) -> Result<(), TrainError> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        // A row has fields of these names already; a hook that chose one of them must not end the run.
        let name = |name: &String| match name.as_str() {
            "step" | "epoch" | "time" => format!("metric/{name}"),
            _ => name.clone(),
        };
        let values = row.values.iter().map(|(key, value)| (name(key), *value)).collect();
        let row = Row { step: row.step, epoch: row.epoch, time, values };
        self.metrics.append(&row).map_err(record_error)
    }

    pub(crate) fn metrics_bytes(&self) -> u64 {
        self.metrics.position()
    }

    pub(crate) fn sync(&mut self) -> Result<(), TrainError> {
        self.metrics.sync().map_err(record_error)
    }

    /// Drops what was logged after a checkpoint.
    pub(crate) fn cut_metrics(&mut self, bytes: u64) -> Result<(), TrainError> {
        self.metrics = MetricsLog::open(&self.dir.metrics_path(), Some(bytes)).map_err(record_error)?;
        Ok(())
    }

    pub(crate) fn note_errors(&mut self, errors: &[HookError], step: u64) {
        for error in errors {
            self.note(json!({
                "step": step,
                "hook_id": error.hook_id,
                "hook_type": error.hook_type,
                "event": error.event,
                "point": error.point,
                "error": error.original_error.to_string(),
            }));
        }
    }

    pub(crate) fn note_failure(&mut self, event: &str, error: &str, step: u64) {
        self.note(json!({ "step": step, "event": event, "error": error }));
    }

    fn note(&mut self, error: Value) {
        self.record.degraded = true;
        if self.record.errors.len() < MOST_ERRORS {
            self.record.errors.push(error);
            // The end of the run writes it too; this is for a run that gets no end.
            if let Err(error) = self.write() {
                tracing::warn!("{error}");
            }
        }
    }

    pub(crate) fn close(
        &mut self,
        status: RunStatus,
        reason: Option<String>,
        step: u64,
        receipts: &Value,
    ) -> Result<(), TrainError> {
        let status = match status {
            RunStatus::Training => Status::Training,
            RunStatus::Completed => Status::Completed,
            RunStatus::Stopped => Status::Stopped,
            RunStatus::Interrupted => Status::Interrupted,
            RunStatus::Error => Status::Error,
        };
        (self.record.status, self.record.reason) = (status, reason);
        self.record.finished = Some(now());
        if let Some(attempt) = self.record.attempts.last_mut() {
            (attempt.finished, attempt.to_step) = (Some(now()), Some(step));
        }
        self.sync()?;
        let text = format!("{receipts:#}\n");
        disk::atomic_write(&self.dir.path().join("receipts.json"), |to| to.write_all(text.as_bytes()))
            .map_err(record_error)?;
        self.write()
    }

    fn write(&self) -> Result<(), TrainError> {
        self.record.write(&self.dir).map_err(record_error)
    }
}

fn record_error(error: impl std::fmt::Display) -> TrainError {
    TrainError::Record(error.to_string())
}
