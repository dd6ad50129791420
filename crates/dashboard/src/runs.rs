//! The list of runs, which costs little to make again.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenterhook_record::metrics::Tail;
use tenterhook_record::run::{RunDir, RunRecord, Status};

use crate::follow::{Digest, brief, read_record};
use crate::places::{self, Stamp, is_plain_file};

/// How long logs are read for one list. What is left is read for the next one.
const READING: Duration = Duration::from_millis(300);
/// How much of a log is read at a time.
const PIECE: u64 = 1 << 20;
/// A list that is younger is good enough.
const FRESH: Duration = Duration::from_millis(900);

/// All runs of a directory.
pub(crate) struct Runs {
    dir: PathBuf,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    entries: HashMap<String, Entry>,
    list: Value,
    made: Option<Instant>,
}

/// One run as far as it was looked at.
struct Entry {
    dir: RunDir,
    stamp: Stamp,
    record: Result<RunRecord, String>,
    killed: bool,
    log_stamp: Stamp,
    tail: Tail,
    digest: Digest,
    loading: Option<f64>,
    problem: Option<String>,
}

impl Runs {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf(), known: Mutex::default() }
    }

    /// The newest first; those without a readable record come last.
    pub(crate) fn list(&self) -> Value {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.made.is_some_and(|made| made.elapsed() < FRESH) {
            return known.list.clone();
        }
        self.look(&mut known.entries);
        read_logs(&mut known.entries);
        let mut entries: Vec<&Entry> = known.entries.values().collect();
        let started = |entry: &Entry| entry.record.as_ref().ok().map(|record| record.started.clone());
        entries.sort_by_cached_key(|entry| std::cmp::Reverse((started(entry), entry.dir.id().to_string())));
        known.list = json!({ "runs": entries.into_iter().map(Entry::to_json).collect::<Vec<_>>() });
        known.made = Some(Instant::now());
        known.list.clone()
    }

    /// Looks at which runs there are, and at the records that have changed.
    fn look(&self, entries: &mut HashMap<String, Entry>) {
        let names = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        entries.retain(|id, _| names.contains(id));
        for id in names {
            match entries.get_mut(&id) {
                Some(entry) => entry.look(),
                None => {
                    // Whatever has no plain name is no run.
                    if let Ok(dir) = places::run_dir(&self.dir, &id) {
                        entries.insert(id, Entry::new(dir));
                    }
                }
            }
        }
    }
}

/// Goes on with the logs that have grown, for a limited time; the smallest remainders first.
fn read_logs(entries: &mut HashMap<String, Entry>) {
    let begun = Instant::now();
    let mut grown: Vec<&mut Entry> = entries.values_mut().filter(|entry| entry.has_grown()).collect();
    grown.sort_by_cached_key(|entry| entry.remainder());
    for entry in grown {
        loop {
            entry.read_piece();
            if begun.elapsed() > READING {
                return;
            }
            if entry.loading.is_none() {
                break;
            }
        }
    }
}

impl Entry {
    fn new(dir: RunDir) -> Self {
        let tail = Tail::new(&dir.metrics_path());
        let mut entry = Self {
            dir,
            stamp: Stamp::default(),
            record: Err(String::new()),
            killed: false,
            log_stamp: Stamp::default(),
            tail,
            digest: Digest::default(),
            loading: None,
            problem: None,
        };
        entry.read_record();
        entry
    }

    fn look(&mut self) {
        let goes_on = self.record.as_ref().is_ok_and(|record| record.status == Status::Training);
        if goes_on || self.stamp != Stamp::of(&self.dir.record_path()) {
            self.read_record();
        }
    }

    fn read_record(&mut self) {
        self.stamp = Stamp::of(&self.dir.record_path());
        let (record, killed) = read_record(&self.dir);
        // What the list does not show is not kept.
        let without_details = |record: RunRecord| RunRecord {
            hooks: Vec::new(),
            data: Value::Null,
            errors: Vec::new(),
            others: serde_json::Map::new(),
            versions: Default::default(),
            ..record
        };
        (self.record, self.killed) = (record.map(without_details), killed);
    }

    fn has_grown(&self) -> bool {
        self.loading.is_some() || self.log_stamp != Stamp::of(&self.dir.metrics_path())
    }

    fn remainder(&self) -> u64 {
        let length = fs::metadata(self.dir.metrics_path()).map_or(0, |about| about.len());
        length.saturating_sub(self.tail.position())
    }

    fn read_piece(&mut self) {
        let path = self.dir.metrics_path();
        self.log_stamp = Stamp::of(&path);
        if !is_plain_file(&path) {
            return;
        }
        let read = self.tail.was_cut().and_then(|was_cut| {
            if was_cut {
                self.digest = Digest::default();
            }
            let digest = &mut self.digest;
            self.tail.read(PIECE, |_, row| digest.add(row))
        });
        match read {
            Ok(piece) => {
                let share = piece.position as f64 / piece.length.max(1) as f64;
                (self.loading, self.problem) = (piece.more.then_some(share.min(1.0)), None);
            }
            Err(error) => (self.loading, self.problem) = (None, Some(error.to_string())),
        }
    }

    fn to_json(&self) -> Value {
        let mut told = brief(self.dir.id(), self.record.as_ref(), self.killed, &self.digest);
        if let Some(problem) = &self.problem {
            told.insert("problem".to_string(), json!(problem));
        }
        told.insert("loading".to_string(), json!(self.loading));
        told.into()
    }
}
