//! The list of runs, which costs little to make again.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenterhook_record::run::RunDir;

use crate::account::Account;
use crate::places::{self, Stamp};

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
    account: Account,
    log_stamp: Stamp,
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
        let age = |account: &Account| {
            let started = account.summary.record.started.clone();
            (account.unreadable.is_none().then_some(started), account.dir().id().to_string())
        };
        entries.sort_by_cached_key(|entry| std::cmp::Reverse(age(&entry.account)));
        let list: Vec<_> = entries.into_iter().map(|entry| entry.account.brief()).collect();
        known.list = json!({ "runs": list });
        known.made = Some(Instant::now());
        known.list.clone()
    }

    /// Looks at which runs there are, and at the records that have changed.
    fn look(&self, entries: &mut HashMap<String, Entry>) {
        let names = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        entries.retain(|id, _| names.contains(id));
        for id in names {
            // Whatever has no plain name is no run.
            if !entries.contains_key(&id)
                && let Ok(dir) = places::run_dir(&self.dir, &id)
            {
                entries.insert(id, Entry::new(dir));
            }
        }
        for entry in entries.values_mut() {
            entry.look();
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
            if entry.account.loading.is_none() {
                break;
            }
        }
    }
}

impl Entry {
    fn new(dir: RunDir) -> Self {
        Self { account: Account::new(dir), log_stamp: Stamp::default() }
    }

    fn look(&mut self) {
        let before = self.account.version;
        self.account.refresh();
        if self.account.version != before {
            // What the list does not show is not kept.
            let record = &mut self.account.summary.record;
            (record.hooks, record.errors, record.data) = (Vec::new(), Vec::new(), Value::Null);
        }
    }

    fn has_grown(&self) -> bool {
        self.account.loading.is_some() || self.log_stamp != Stamp::of(&self.account.dir().metrics_path())
    }

    fn remainder(&self) -> u64 {
        let length = fs::metadata(self.account.dir().metrics_path()).map_or(0, |about| about.len());
        length.saturating_sub(self.account.position())
    }

    fn read_piece(&mut self) {
        self.log_stamp = Stamp::of(&self.account.dir().metrics_path());
        self.account.was_cut();
        self.account.read_log(PIECE, |_, _| {});
    }
}
