//! The record that a run leaves on the disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tenterhook_hooks::{Histogram, HookError, MetricsRow, RunStatus};
use tenterhook_record::disk;
use tenterhook_record::metrics::{Bins, HistogramLog, HistogramRow, MetricsLog, Number, Row};
use tenterhook_record::run::{
    Attempt, HookChange, HookRequest, Inbox, RunDir, RunLock, RunRecord, Status, config_hash, now, time_of,
};

use crate::error::TrainError;

/// The most failures that a record lists; receipts count them all.
const MOST_ERRORS: usize = 100;

/// The version of candle, which the numbers depend on. Cargo tells a program only its own version.
const CANDLE: &str = "0.11.1";

/// The versions of what the numbers of a run depend on, by name.
pub fn versions() -> BTreeMap<String, String> {
    let versions = [("tenterhook", env!("CARGO_PKG_VERSION")), ("candle", CANDLE)];
    versions.map(|(name, version)| (name.to_string(), version.to_string())).into()
}

/// What a record says of a run from its first moment.
#[derive(Clone, Debug, Default)]
pub struct RunFacts {
    /// The name its user gave it.
    pub name: Option<String>,
    /// The resolved configuration, without secrets.
    pub config: Value,
    /// The same as a file that starts the run again.
    pub config_toml: String,
    /// The seed of all randomness.
    pub seed: u64,
    /// Threads used.
    pub threads: usize,
    /// The machines of the processes that train together, in the order of their ranks; of one process none.
    pub ranks: Vec<String>,
    /// The arguments of the process.
    pub args: Vec<String>,
    /// The run it was forked or repeated from.
    pub parent: Option<String>,
    /// Which data it reads.
    pub data: Value,
    /// The commit of the code, and whether files differ from it: what `git_state` says, asked before the run's lock is taken. A process
    /// that is started has the lock's file open for a moment, and would keep it locked when this one is killed just then.
    pub git: (String, Option<bool>),
}

/// How long the logs of a run are, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogEnds {
    pub(crate) metrics: u64,
    pub(crate) histograms: u64,
}

/// A run's directory, locked by this process, with its record and its log of metrics.
pub struct Run {
    dir: RunDir,
    _lock: RunLock,
    record: RunRecord,
    metrics: MetricsLog,
    /// Only where there are histograms.
    histograms: Option<HistogramLog>,
    inbox: Inbox,
    /// When the process before this one last wrote a row.
    last_row: Option<SystemTime>,
    /// What the record will say once a checkpoint has been restored.
    resuming: Option<RunFacts>,
}

impl Run {
    /// A run from its beginning, in a directory where none has taken a step.
    pub fn start(dir: RunDir, lock: RunLock, facts: &RunFacts) -> Result<Self, TrainError> {
        Self::start_from(dir, lock, facts, None, 0)
    }

    /// The same for a run that begins with a checkpoint of its parent.
    pub fn fork(
        dir: RunDir,
        lock: RunLock,
        facts: &RunFacts,
        checkpoint: &str,
        step: u64,
    ) -> Result<Self, TrainError> {
        Self::start_from(dir, lock, facts, Some(checkpoint.to_string()), step)
    }

    fn start_from(
        dir: RunDir,
        lock: RunLock,
        facts: &RunFacts,
        checkpoint: Option<String>,
        step: u64,
    ) -> Result<Self, TrainError> {
        let record = RunRecord::read(&dir).unwrap_or_else(|_| RunRecord::new(dir.id()));
        let mut run = Self::open(dir, lock, record, None)?;
        run.begin_attempt(facts, checkpoint, step)?;
        Ok(run)
    }

    /// A run that goes on, in the same directory. Its record stays as it is until a checkpoint has been restored: one that is refused leaves
    /// no trace.
    pub fn resume(dir: RunDir, lock: RunLock, facts: &RunFacts) -> Result<Self, TrainError> {
        let record = RunRecord::read(&dir).map_err(record_error)?;
        Self::open(dir, lock, record, Some(facts.clone()))
    }

    fn open(
        dir: RunDir,
        lock: RunLock,
        record: RunRecord,
        resuming: Option<RunFacts>,
    ) -> Result<Self, TrainError> {
        let last_row = std::fs::metadata(dir.metrics_path()).and_then(|about| about.modified()).ok();
        let metrics = MetricsLog::open(&dir.metrics_path(), None).map_err(record_error)?;
        let histograms = dir.histograms_path();
        let histograms = histograms.exists().then(|| HistogramLog::open(&histograms, None));
        let histograms = histograms.transpose().map_err(record_error)?;
        let inbox = Inbox::of(&dir);
        let mut run = Self { dir, _lock: lock, record, metrics, histograms, inbox, last_row, resuming };
        run.refuse_requests(run.record.attempts.last().and_then(|attempt| attempt.to_step).unwrap_or(0));
        Ok(run)
    }

    /// What was asked of a process that comes to no further step is nobody's wish any more. The record says so when it is written next.
    fn refuse_requests(&mut self, step: u64) {
        for (id, request) in self.requests() {
            if let Ok(request) = request
                && !self.knows_request(&id)
            {
                let late =
                    format!("hook `{}` was not switched: the run ended before its next step", request.hook);
                tracing::warn!("a request of {}: {late}", request.by);
                self.record.hook_changes.push(HookChange::new(step, &id, &request, Some(late)));
            }
            self.request_done(&id);
        }
    }

    /// A checkpoint has been restored: this is another attempt.
    pub(crate) fn note_resumed(&mut self, checkpoint: &str, step: u64) -> Result<(), TrainError> {
        match self.resuming.take() {
            Some(facts) => self.begin_attempt(&facts, Some(checkpoint.to_string()), step),
            None => Ok(()),
        }
    }

    fn begin_attempt(
        &mut self,
        facts: &RunFacts,
        resumed_from: Option<String>,
        step: u64,
    ) -> Result<(), TrainError> {
        let (mut commit, dirty) = facts.git.clone();
        if commit.is_empty() {
            commit = "unknown".to_string(); // nobody asked
        }
        let host = tenterhook_record::run::host();
        let hash = config_hash(&facts.config);
        let record = &mut self.record;
        if let Some(killed) = record.attempts.last_mut().filter(|attempt| attempt.finished.is_none()) {
            killed.last_seen = Some(self.last_row.map_or_else(|| killed.started.clone(), time_of));
        }
        record.attempts.push(Attempt {
            started: now(),
            finished: None,
            last_seen: None,
            from_step: step,
            to_step: None,
            commit: commit.clone(),
            dirty,
            config_hash: hash.clone(),
            pid: std::process::id(),
            host: host.clone(),
            threads: facts.threads,
            ranks: facts.ranks.clone(),
            args: facts.args.clone(),
            resumed_from,
        });
        (record.status, record.reason, record.finished) = (Status::Training, None, None);
        (record.commit, record.dirty, record.config_hash) = (commit, dirty, hash);
        (record.seed, record.host, record.threads) = (facts.seed, host, facts.threads);
        if record.attempts.len() == 1 {
            (record.name, record.parent) = (facts.name.clone(), facts.parent.clone());
        }
        record.data = facts.data.clone();
        record.versions = versions();
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
        let values: BTreeMap<String, f64> =
            row.values.iter().map(|(key, value)| (name(key), *value)).collect();
        if !values.is_empty() {
            let row = Row { step: row.step, epoch: row.epoch, time, values };
            self.metrics.append(&row).map_err(record_error)?;
        }
        self.log_histograms(row, time)
    }

    fn log_histograms(&mut self, row: &MetricsRow, time: f64) -> Result<(), TrainError> {
        // A histogram without bins is one of nothing.
        let filled = row.histograms.iter().filter(|(_, histogram)| !histogram.counts.is_empty());
        let bins = |histogram: &Histogram| Bins {
            low: Number(histogram.low),
            high: Number(histogram.high),
            counts: histogram.counts.clone(),
        };
        let histograms: BTreeMap<String, Bins> =
            filled.map(|(name, histogram)| (name.clone(), bins(histogram))).collect();
        if histograms.is_empty() {
            return Ok(());
        }
        let log = match &mut self.histograms {
            Some(log) => log,
            none => none.insert(HistogramLog::open(&self.dir.histograms_path(), None).map_err(record_error)?),
        };
        let row = HistogramRow { step: row.step, epoch: row.epoch, time: Number(time), histograms };
        log.append(&row).map_err(record_error)
    }

    pub(crate) fn log_ends(&self) -> LogEnds {
        let histograms = self.histograms.as_ref().map_or(0, HistogramLog::position);
        LogEnds { metrics: self.metrics.position(), histograms }
    }

    pub(crate) fn sync(&mut self) -> Result<(), TrainError> {
        self.metrics.sync().map_err(record_error)?;
        self.histograms.as_ref().map_or(Ok(()), HistogramLog::sync).map_err(record_error)
    }

    /// Drops what was logged after a checkpoint.
    pub(crate) fn cut_logs(&mut self, ends: LogEnds) -> Result<(), TrainError> {
        self.metrics =
            MetricsLog::open(&self.dir.metrics_path(), Some(ends.metrics)).map_err(record_error)?;
        if self.histograms.is_some() || ends.histograms > 0 {
            let log = HistogramLog::open(&self.dir.histograms_path(), Some(ends.histograms));
            self.histograms = Some(log.map_err(record_error)?);
        }
        Ok(())
    }

    /// What somebody outside asks for. A directory that cannot be looked at asks for nothing.
    pub(crate) fn requests(&mut self) -> Vec<(String, Result<HookRequest, String>)> {
        self.inbox.look().unwrap_or_default()
    }

    /// Whether the record says already what came of a request.
    pub(crate) fn knows_request(&self, id: &str) -> bool {
        self.record.hook_changes.iter().any(|change| change.request == id)
    }

    pub(crate) fn request_done(&mut self, id: &str) {
        if let Err(error) = self.inbox.done(id) {
            tracing::warn!("the request control/{id}.json cannot be removed: {error}");
        }
    }

    /// Writes down that a hook was switched on or off, or why not, unless it stands there already.
    pub(crate) fn note_change(&mut self, change: HookChange) -> Result<(), TrainError> {
        let same = |known: &HookChange| known.step == change.step && known.request == change.request;
        if self.record.hook_changes.iter().any(same) {
            return Ok(());
        }
        self.record.hook_changes.push(change);
        self.write()
    }

    /// Writes what hooks did so far, for those who look on. It is there for no other reason, so a failure is only told.
    pub(crate) fn show_receipts(&self, receipts: &Value) {
        if let Err(error) = disk::refresh(&self.dir.receipts_path(), format!("{receipts:#}\n").as_bytes()) {
            tracing::debug!("the receipts cannot be shown: {error}");
        }
    }

    pub(crate) fn note_errors(&mut self, errors: &[HookError], step: u64) {
        for error in errors {
            let mut noted = json!({
                "step": step,
                "hook_id": error.hook_id,
                "hook_type": error.hook_type,
                "event": error.event,
                "point": error.point,
                "error": error.original_error.to_string(),
            });
            if let Some(backtrace) = &error.backtrace {
                noted["backtrace"] = backtrace.lines().collect();
            }
            self.note(noted);
        }
    }

    pub(crate) fn note_failure(&mut self, event: &str, error: &str, step: u64) {
        self.note(json!({ "step": step, "event": event, "error": error }));
    }

    pub(crate) fn note(&mut self, error: Value) {
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
        self.refuse_requests(step);
        if let Some(attempt) = self.record.attempts.last_mut() {
            (attempt.finished, attempt.to_step) = (Some(now()), Some(step));
        }
        self.sync()?;
        let text = format!("{receipts:#}\n");
        disk::atomic_write(&self.dir.receipts_path(), |to| to.write_all(text.as_bytes()))
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

#[cfg(test)]
mod tests {
    use super::CANDLE;

    #[test]
    fn p40_the_version_of_candle_is_the_one_that_is_used() {
        let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock")).unwrap();
        assert!(lock.contains(&format!("name = \"candle-core\"\nversion = \"{CANDLE}\"")), "{CANDLE}");
    }
}
