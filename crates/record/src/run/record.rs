//! What `run.json` says about a run: enough to know what happened, and to do it again.

use std::collections::BTreeMap;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{HookChange, RunDir, RunError};
use crate::disk;

/// The largest record that is read.
const LARGEST: u64 = 64 << 20;

/// How a run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It is going on, or was killed while it was.
    #[default]
    Training,
    /// It did all its steps.
    Completed,
    /// A hook asked for the end.
    Stopped,
    /// A signal ended it; it was saved and can be resumed.
    Interrupted,
    /// It failed.
    Error,
}

impl Status {
    /// As it stands in the record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Completed => "completed",
            Self::Stopped => "stopped",
            Self::Interrupted => "interrupted",
            Self::Error => "error",
        }
    }
}

/// The record of a run, kept in `run.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRecord {
    /// The run's id.
    pub id: String,
    /// The name its user gave it.
    pub name: Option<String>,
    /// The run it was forked from, or repeats. A fork's first attempt says from which checkpoint.
    pub parent: Option<String>,
    /// How it stands.
    pub status: Status,
    /// Whether a hook failed on the way.
    pub degraded: bool,
    /// Why it ended, where there is more to say than the status.
    pub reason: Option<String>,
    /// When it began (RFC 3339).
    pub started: String,
    /// When it ended.
    pub finished: Option<String>,
    /// Every time it was started or resumed.
    pub attempts: Vec<Attempt>,
    /// The git commit it was started from, or `unknown`.
    pub commit: String,
    /// Whether tracked files differed from that commit.
    pub dirty: Option<bool>,
    /// See [`config_hash`].
    pub config_hash: String,
    /// The seed of all randomness.
    pub seed: u64,
    /// Versions of what it was built from, by name.
    pub versions: BTreeMap<String, String>,
    /// The machine.
    pub host: String,
    /// Threads.
    pub threads: usize,
    /// All hooks, in order.
    pub hooks: Vec<Value>,
    /// Hooks that were switched on or off from outside while the run went on.
    pub hook_changes: Vec<HookChange>,
    /// Fingerprints of the data.
    pub data: Value,
    /// What went wrong.
    pub errors: Vec<Value>,
    /// Fields that a later version wrote; they are kept.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// One start of a run: the first one, or a resume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attempt {
    /// When it began (RFC 3339).
    pub started: String,
    /// When it ended; a killed one never says.
    pub finished: Option<String>,
    /// When a killed one was last heard of, as far as the next one could tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<String>,
    /// The step it began after.
    pub from_step: u64,
    /// The last step it did.
    pub to_step: Option<u64>,
    /// The git commit, or `unknown`.
    pub commit: String,
    /// Whether tracked files differed from that commit.
    pub dirty: Option<bool>,
    /// See [`config_hash`].
    pub config_hash: String,
    /// The process.
    pub pid: u32,
    /// The machine.
    pub host: String,
    /// Threads.
    pub threads: usize,
    /// The machines of the processes that trained together, in the order of their ranks; of one process none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<String>,
    /// The command line.
    pub args: Vec<String>,
    /// The checkpoint it went on from.
    pub resumed_from: Option<String>,
}

impl Attempt {
    /// An attempt of this process that begins now; the caller adds what it knows.
    pub fn begin() -> Self {
        Self {
            started: now(),
            commit: "unknown".to_string(),
            pid: std::process::id(),
            host: host(),
            ..Self::default()
        }
    }
}

impl RunRecord {
    /// The record of a run that begins now; the caller adds what it knows.
    pub fn new(id: &str) -> Self {
        Self {
            id: id.to_string(),
            started: now(),
            commit: "unknown".to_string(),
            host: host(),
            ..Self::default()
        }
    }

    /// Writes it; at every moment the file is the old record or the new one.
    pub fn write(&self, run: &RunDir) -> Result<(), RunError> {
        let path = run.record_path();
        let mut text = serde_json::to_string_pretty(self).map_err(|error| RunError::Damaged {
            path: path.clone(),
            problem: format!("cannot be JSON: {error}"),
        })?;
        text.push('\n');
        disk::atomic_write(&path, |to| to.write_all(text.as_bytes())).map_err(RunError::io("write", &path))
    }

    /// Reads it.
    pub fn read(run: &RunDir) -> Result<Self, RunError> {
        let path = run.record_path();
        let bytes = disk::read_bounded(&path, LARGEST).map_err(RunError::io("read", &path))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| RunError::Damaged { path, problem: format!("is no record of a run: {error}") })
    }

    /// Reads it, and says whether the run was killed: it says that it is training, and nobody has its lock.
    pub fn read_with_fate(run: &RunDir) -> Result<(Self, bool), RunError> {
        let record = Self::read(run)?;
        if record.status != Status::Training || run.is_locked() {
            return Ok((record, false));
        }
        // It may have come to a good end after it was read and before the lock was looked at.
        let record = Self::read(run)?;
        let killed = record.status == Status::Training;
        Ok((record, killed))
    }

    /// How long it has trained: all attempts together, without the time between them. One that has no end lasted until `last_seen`,
    /// in seconds since 1970.
    pub fn seconds(&self, last_seen: f64) -> f64 {
        let at = |text: &str| {
            text.parse::<Timestamp>()
                .ok()
                .map(|time| time.duration_since(Timestamp::UNIX_EPOCH).as_secs_f64())
        };
        let lasted = |attempt: &Attempt| {
            let end = attempt.finished.as_ref().or(attempt.last_seen.as_ref());
            let end = end.map_or(Some(last_seen), |end| at(end));
            at(&attempt.started).zip(end).map_or(0.0, |(start, end)| (end - start).max(0.0))
        };
        self.attempts.iter().map(lasted).fold(0.0, |sum, lasted| sum + lasted)
    }
}

/// The time, as the record writes it (RFC 3339).
pub fn now() -> String {
    Timestamp::now().to_string()
}

/// A time as the record writes it.
pub fn time_of(time: SystemTime) -> String {
    Timestamp::try_from(time).unwrap_or_default().to_string()
}

/// The name of this machine.
pub fn host() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}

/// The SHA-256 digest, in hexadecimal, of a configuration as canonical JSON: keys sorted at every level, no white space.
/// Two configurations that mean the same have the same digest, in whatever order they were written down.
///
/// ```
/// use serde_json::json;
/// use tenterhook_record::run::config_hash;
///
/// assert_eq!(config_hash(&json!({"a": 1, "b": [2]})), config_hash(&json!({"b": [2], "a": 1})));
/// ```
pub fn config_hash(config: &Value) -> String {
    let digest = Sha256::digest(sorted(config).to_string());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(sorted).collect(),
        Value::Object(map) => {
            let ordered: BTreeMap<&String, Value> =
                map.iter().map(|(key, value)| (key, sorted(value))).collect();
            ordered.into_iter().map(|(key, value)| (key.clone(), value)).collect::<Map<_, _>>().into()
        }
        plain => plain.clone(),
    }
}
