//! What the small files of a run say.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tenterhook_record::checkpoints::{self, CheckpointRef, Manifest};
use tenterhook_record::run::{RunDir, RunRecord, Status};

use super::digest::Digest;
use super::follower::Reading;
use crate::captures;
use crate::places::{Stamp, is_plain_file, read_plain};

/// The largest receipts and configurations that are read.
const LARGEST: u64 = 16 << 20;

/// What the small files of a run say, read again when they change.
pub(crate) struct About {
    id: String,
    record_stamp: Option<Stamp>,
    other_stamps: Option<[Stamp; 4]>,
    pub(crate) record: Result<RunRecord, String>,
    killed: bool,
    receipts: Vec<Value>,
    checkpoints: Vec<Value>,
    captures: Vec<Value>,
    pub(crate) config: String,
    total_steps: Option<u64>,
    /// Another one after every change.
    pub(crate) version: u64,
}

impl Default for About {
    fn default() -> Self {
        Self {
            id: String::new(),
            record_stamp: None,
            other_stamps: None,
            record: Err("nothing was read yet".to_string()),
            killed: false,
            receipts: Vec::new(),
            checkpoints: Vec::new(),
            captures: Vec::new(),
            config: String::new(),
            total_steps: None,
            version: 0,
        }
    }
}

impl About {
    /// Reads again what has changed.
    pub(super) fn refresh(&mut self, dir: &RunDir) {
        self.id = dir.id().to_string();
        self.refresh_record(dir);
        let stamps = [dir.receipts_path(), dir.checkpoints(), dir.captures(), dir.config_path()]
            .map(|path| Stamp::of(&path));
        if self.other_stamps == Some(stamps) {
            return;
        }
        self.version += 1;
        self.other_stamps = Some(stamps);
        let receipts = read_plain(&dir.receipts_path(), LARGEST);
        self.receipts =
            receipts.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        self.checkpoints = checkpoints_of(dir);
        self.captures = captures::list_files(&dir.captures());
        let config = read_plain(&dir.config_path(), LARGEST).unwrap_or_default();
        self.config = String::from_utf8_lossy(&config).into_owned();
        let parsed = self.config.parse::<toml::Table>().ok();
        let steps = parsed.and_then(|config| config.get("train")?.get("steps")?.as_integer());
        self.total_steps = steps.and_then(|steps| u64::try_from(steps).ok());
    }

    fn refresh_record(&mut self, dir: &RunDir) {
        let stamp = Stamp::of(&dir.record_path());
        let goes_on = |record: &RunRecord| record.status == Status::Training;
        // A run that was going on may have been killed, which no file tells.
        let may_be_killed = !self.killed && self.record.as_ref().is_ok_and(goes_on) && !dir.is_locked();
        if self.record_stamp == Some(stamp) && !may_be_killed {
            // One that was killed may be going on again, before it says anything.
            if self.killed && dir.is_locked() {
                self.killed = false;
                self.version += 1;
            }
            return;
        }
        (self.record, self.killed) = read_record(dir);
        self.record_stamp = Some(stamp);
        self.version += 1;
    }

    pub(crate) fn is_live(&self) -> bool {
        !self.killed && self.record.as_ref().is_ok_and(|record| record.status == Status::Training)
    }

    pub(crate) fn status(&self) -> Option<&'static str> {
        self.record.as_ref().ok().map(|record| status(record, self.killed))
    }

    /// Whether a hook of this id is in the record.
    pub(crate) fn has_hook(&self, id: &str) -> bool {
        self.record.as_ref().is_ok_and(|record| record.hooks.iter().any(|hook| hook["id"] == id))
    }

    /// Everything but the configuration.
    pub(super) fn to_json(&self, reading: &Reading) -> Value {
        let mut told = brief(&self.id, self.record.as_ref(), self.killed, &reading.log.digest);
        if let Some(problem) = &reading.problem {
            told.insert("problem".to_string(), json!(problem));
        }
        let mut add = |key: &str, value: Value| drop(told.insert(key.to_string(), value));
        if let Ok(record) = &self.record {
            add("reason", json!(record.reason));
            add("seed", json!(record.seed));
            add("host", json!(record.host));
            add("threads", json!(record.threads));
            add("versions", json!(record.versions));
            add("attempts", json!(record.attempts));
            add("errors", json!(record.errors));
            add("hooks", record.hooks.iter().map(|hook| self.hook(hook)).collect());
            add("hook_changes", record.others.get("hook_changes").cloned().unwrap_or_else(|| json!([])));
        }
        add("total_steps", json!(self.total_steps));
        add("checkpoints", json!(self.checkpoints));
        add("captures", json!(self.captures));
        add("histograms", json!([]));
        let metric = |(name, series): (&str, &super::Series)| {
            let step = series.buckets().last().map(|bucket| bucket.step);
            json!({ "name": name, "count": series.count, "last": series.last, "step": step })
        };
        add("metrics", reading.log.iter().map(metric).collect());
        add("left_out_metrics", json!(reading.log.left_out));
        add("loading", json!(reading.loading));
        told.into()
    }

    /// A hook of the record with its receipt.
    fn hook(&self, hook: &Value) -> Value {
        let receipt = self.receipts.iter().find(|receipt| receipt["id"] == hook["id"]);
        let mut hook = hook.clone();
        if let Some(hook) = hook.as_object_mut() {
            hook.insert("receipt".to_string(), receipt.cloned().unwrap_or_default());
        }
        hook
    }
}

/// The record of a run, and whether it was killed.
pub(crate) fn read_record(dir: &RunDir) -> (Result<RunRecord, String>, bool) {
    if !is_plain_file(&dir.record_path()) {
        return (Err("there is no run.json".to_string()), false);
    }
    match RunRecord::read_with_fate(dir) {
        Ok((record, killed)) => (Ok(record), killed),
        Err(error) => (Err(error.to_string()), false),
    }
}

/// A killed run was interrupted, though it could not say so.
fn status(record: &RunRecord, killed: bool) -> &'static str {
    if killed { Status::Interrupted.as_str() } else { record.status.as_str() }
}

/// What the list says about a run.
pub(crate) fn brief(
    id: &str,
    record: Result<&RunRecord, &String>,
    killed: bool,
    digest: &Digest,
) -> Map<String, Value> {
    let told = match record {
        Err(problem) => json!({ "id": id, "status": null, "live": false, "killed": false, "degraded": false, "problem": problem }),
        Ok(record) => {
            let live = record.status == Status::Training && !killed;
            let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
            let last_seen = if live { now() } else { digest.last.map_or(0.0, |(_, time)| time) };
            json!({
                "id": id,
                "name": record.name,
                "parent": record.parent,
                "status": status(record, killed),
                "live": live,
                "killed": killed,
                "degraded": record.degraded,
                "started": record.started,
                "finished": record.finished,
                "seconds": record.seconds(last_seen),
                "steps": steps(record, digest),
                "score": digest.score(),
                "config_hash": record.config_hash,
                "commit": record.commit,
                "dirty": record.dirty,
                "problem": null,
            })
        }
    };
    match told {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// How far a run got: as it says, or as its log does.
fn steps(record: &RunRecord, digest: &Digest) -> u64 {
    let attempt = record.attempts.last();
    let begun = attempt.map_or(0, |attempt| attempt.from_step);
    let logged = || digest.last.map_or(begun, |(step, _)| step.max(begun));
    attempt.and_then(|attempt| attempt.to_step).unwrap_or_else(logged)
}

fn checkpoints_of(dir: &RunDir) -> Vec<Value> {
    let describe = |found: CheckpointRef| {
        let files = Manifest::read(&found.path).map(|manifest| manifest.files).unwrap_or_default();
        let bytes: u64 = files.iter().map(|file| file.bytes).sum();
        let files: Vec<Value> =
            files.iter().map(|file| json!({ "name": file.name, "bytes": file.bytes })).collect();
        json!({ "name": found.name, "step": found.step, "bytes": bytes, "files": files, "problem": found.problem })
    };
    match is_plain_dir(&dir.checkpoints()) {
        true => checkpoints::list(&dir.checkpoints()).unwrap_or_default().into_iter().map(describe).collect(),
        false => Vec::new(),
    }
}

fn is_plain_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_dir())
}
