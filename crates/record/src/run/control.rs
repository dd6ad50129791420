//! Asking a run that is going on to switch a hook on or off.
//!
//! A request is a file in the run's directory `control`, and goes away when the run has heard of it. What came of it stands in the run's
//! record as a [`HookChange`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{RunDir, RunError, now};
use crate::disk;

/// The largest request that is read.
const LARGEST: u64 = 64 << 10;
/// The most requests that are taken at once; the others wait for the next step.
const MOST: usize = 1000;
/// File systems tell the time of a change only so exactly.
const TICK: Duration = Duration::from_secs(1);

/// A wish of somebody outside the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookRequest {
    /// The hook.
    pub hook: String,
    /// Whether it is to be on.
    pub enabled: bool,
    /// Who asks, such as `command line` or `dashboard`.
    pub by: String,
}

/// A hook that was switched on or off while its run went on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HookChange {
    /// Steps taken before it: it has been so from the next one on.
    pub step: u64,
    /// The hook.
    pub hook: String,
    /// Whether it is on since.
    pub enabled: bool,
    /// When (RFC 3339).
    pub time: String,
    /// Who asked for it.
    pub by: String,
    /// The id of the request.
    pub request: String,
    /// Why nothing was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl HookChange {
    /// What a request came to at this step.
    pub fn new(step: u64, id: &str, request: &HookRequest, refused: Option<String>) -> Self {
        let HookRequest { hook, enabled, by } = request.clone();
        Self { step, hook, enabled, time: now(), by, request: id.to_string(), refused }
    }
}

/// Asks the process that trains a run to switch a hook, before its next step. Returns the request's id, which the record will have with
/// what came of it.
///
/// ```
/// use tenterhook_record::run::{HookRequest, Inbox, RunDir, ask};
///
/// let runs = tempfile::tempdir()?;
/// let run = RunDir::create(runs.path(), Some("first"))?;
/// let mut inbox = Inbox::of(&run); // the trainer's end
/// let id = ask(&run, &HookRequest { hook: "ema".to_string(), enabled: false, by: "me".to_string() })?;
/// let (taken, request) = inbox.look()?.remove(0);
/// assert_eq!((taken.as_str(), request?.hook.as_str()), (id.as_str(), "ema"));
/// inbox.done(&id)?;
/// assert!(inbox.look()?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn ask(run: &RunDir, request: &HookRequest) -> Result<String, RunError> {
    let dir = run.control();
    if let Err(error) = disk::create_dir(&dir)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(RunError::io("create the directory", &dir)(error));
    }
    if !fs::symlink_metadata(&dir).is_ok_and(|about| about.is_dir()) {
        return Err(RunError::Damaged { path: dir, problem: "is no directory".to_string() });
    }
    let id = Uuid::now_v7().to_string();
    let path = request_path(&dir, &id);
    let text = serde_json::to_string(request).unwrap_or_default();
    disk::atomic_write(&path, |to| to.write_all(text.as_bytes())).map_err(RunError::io("write", &path))?;
    Ok(id)
}

fn request_path(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}.json"))
}

/// Where the process that trains a run finds the requests to it.
#[derive(Debug)]
pub struct Inbox {
    dir: PathBuf,
    /// When the directory had changed last, at the last look.
    seen: Option<SystemTime>,
}

impl Inbox {
    /// The requests to a run.
    pub fn of(run: &RunDir) -> Self {
        Self { dir: run.control(), seen: None }
    }

    /// The requests that are there, the oldest first, with their ids; one that cannot be read says why. A look at an inbox in which
    /// nothing has changed costs one call of the system.
    pub fn look(&mut self) -> io::Result<Vec<(String, Result<HookRequest, String>)>> {
        let changed = match fs::symlink_metadata(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            about => about?.modified()?,
        };
        if self.seen == Some(changed) {
            return Ok(Vec::new());
        }
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let id = name.strip_suffix(".json").filter(|id| !id.starts_with('.'));
            ids.extend(id.map(str::to_string));
        }
        // What comes within the same tick of the clock would not be seen as a change.
        let settled = changed.elapsed().is_ok_and(|since| since > TICK);
        self.seen = (settled && ids.is_empty()).then_some(changed);
        ids.sort();
        ids.truncate(MOST);
        Ok(ids.into_iter().map(|id| (id.clone(), read(&request_path(&self.dir, &id)))).collect())
    }

    /// The request has been dealt with.
    pub fn done(&mut self, id: &str) -> io::Result<()> {
        disk::remove_file(&request_path(&self.dir, id))
    }
}

fn read(path: &Path) -> Result<HookRequest, String> {
    let is_file = fs::symlink_metadata(path).is_ok_and(|about| about.is_file());
    if !is_file {
        return Err("it is no file".to_string());
    }
    let bytes = disk::read_bounded(path, LARGEST).map_err(|error| error.to_string())?;
    serde_json::from_slice(&bytes).map_err(|error| format!("it is no request: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(hook: &str) -> HookRequest {
        HookRequest { hook: hook.to_string(), enabled: true, by: "test".to_string() }
    }

    #[test]
    fn requests_come_in_order_and_damaged_ones_say_so() {
        let runs = tempfile::tempdir().unwrap();
        let run = RunDir::create(runs.path(), Some("r")).unwrap();
        let mut inbox = Inbox::of(&run);
        assert!(inbox.look().unwrap().is_empty());
        let ids = ["a", "b"].map(|hook| ask(&run, &request(hook)).unwrap());
        fs::write(run.control().join("zzz.json"), "{").unwrap();
        fs::write(run.control().join(".half.1-1.tmp"), "{").unwrap();
        let found = inbox.look().unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!((&found[0].0, &found[1].0), (&ids[0], &ids[1]));
        assert_eq!(found[1].1, Ok(request("b")));
        assert!(found[2].1.as_ref().is_err_and(|problem| problem.contains("is no request")));
        found.iter().for_each(|(id, _)| inbox.done(id).unwrap());
        assert!(inbox.look().unwrap().is_empty());
        // Right after the others, within one tick of the file system's clock.
        ask(&run, &request("c")).unwrap();
        assert_eq!(inbox.look().unwrap().len(), 1);
    }
}
