//! What the small files of a run say, beside its record.

use serde_json::{Value, json};
use tenterhook_record::checkpoints::{self, CheckpointRef, Manifest};
use tenterhook_record::run::RunDir;

use super::Series;
use super::follower::Reading;
use crate::captures;
use crate::places::{Stamp, is_plain_dir, read_plain};

/// The largest receipts and configurations that are read.
const LARGEST: u64 = 16 << 20;

/// What the small files of a run say, read again when they change.
#[derive(Default)]
pub(crate) struct About {
    stamps: [Option<Stamp>; 4],
    receipts: Vec<Value>,
    checkpoints: Vec<Value>,
    captures: Vec<Value>,
    pub(crate) config: String,
    total_steps: Option<u64>,
    /// Another one after every change.
    pub(crate) version: u64,
}

impl About {
    /// Reads again what has changed.
    pub(super) fn refresh(&mut self, dir: &RunDir) {
        let paths = [dir.receipts_path(), dir.checkpoints(), dir.captures(), dir.config_path()];
        let readers = [Self::read_receipts, Self::read_checkpoints, Self::read_captures, Self::read_config];
        for (i, read) in readers.into_iter().enumerate() {
            let stamp = Some(Stamp::of(&paths[i]));
            if self.stamps[i] != stamp {
                self.stamps[i] = stamp;
                self.version += 1;
                read(self, dir);
            }
        }
    }

    fn read_receipts(&mut self, dir: &RunDir) {
        let receipts = read_plain(&dir.receipts_path(), LARGEST);
        let receipts = receipts.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        // They may be being written just now; what was there is better than nothing.
        self.receipts = receipts.unwrap_or_else(|| std::mem::take(&mut self.receipts));
    }

    fn read_checkpoints(&mut self, dir: &RunDir) {
        let describe = |found: CheckpointRef| {
            let files = Manifest::read(&found.path).map(|manifest| manifest.files).unwrap_or_default();
            let bytes = files.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
            let files: Vec<Value> =
                files.iter().map(|file| json!({ "name": file.name, "bytes": file.bytes })).collect();
            json!({ "name": found.name, "step": found.step, "bytes": bytes, "files": files, "problem": found.problem })
        };
        let listed = is_plain_dir(&dir.checkpoints()).then(|| checkpoints::list(&dir.checkpoints()));
        let listed = listed.transpose().ok().flatten().unwrap_or_default();
        self.checkpoints = listed.into_iter().map(describe).collect();
    }

    fn read_captures(&mut self, dir: &RunDir) {
        self.captures = match is_plain_dir(&dir.captures()) {
            true => captures::list_files(&dir.captures()),
            false => Vec::new(),
        };
    }

    fn read_config(&mut self, dir: &RunDir) {
        let config = read_plain(&dir.config_path(), LARGEST).unwrap_or_default();
        self.config = String::from_utf8_lossy(&config).into_owned();
        let parsed = self.config.parse::<toml::Table>().ok();
        let steps = parsed.and_then(|config| config.get("train")?.get("steps")?.as_integer());
        self.total_steps = steps.and_then(|steps| u64::try_from(steps).ok());
    }
}

impl Reading {
    /// Everything about the run but the points of its series and its configuration.
    pub(crate) fn about_json(&self) -> Value {
        let mut told = self.account.brief();
        let mut add = |key: &str, value: Value| drop(told.insert(key.to_string(), value));
        let record = &self.account.summary.record;
        add("reason", json!(record.reason));
        add("seed", json!(record.seed));
        add("host", json!(record.host));
        add("threads", json!(record.threads));
        add("versions", json!(record.versions));
        add("attempts", json!(record.attempts));
        add("errors", json!(record.errors));
        add("hooks", json!(self.account.summary.hooks_with(&self.about.receipts)));
        add("hook_changes", json!(record.hook_changes));
        add("total_steps", json!(self.about.total_steps));
        add("checkpoints", json!(self.about.checkpoints));
        add("captures", json!(self.about.captures));
        add("histograms", json!(self.histograms.names()));
        let metric = |(name, series): (&str, &Series)| {
            let step = series.buckets().last().map(|bucket| bucket.step);
            json!({ "name": name, "count": series.count, "last": series.last, "step": step })
        };
        add("metrics", self.log.iter().map(metric).collect());
        add("left_out_metrics", json!(self.log.left_out));
        told.into()
    }
}
