//! One run that somebody looks at.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tenterhook_record::metrics::{self, Tail};
use tenterhook_record::run::RunDir;
use tokio::sync::broadcast;

use super::about::About;
use super::log::Log;
use super::news::Event;
use super::series::Series;
use crate::places;

/// The files are looked at again after this time at the earliest.
const BETWEEN_LOOKS: Duration = Duration::from_millis(400);
/// How much of a log is read at a time.
pub(super) const PIECE: u64 = 4 << 20;
/// A part of a log that is longer is not read again for a closer look.
const CLOSER_LOOK: u64 = 64 << 20;
/// Events that wait for a slow client before it is sent away.
const WAITING_EVENTS: usize = 16;

/// One run that somebody looks at. Everything here reads files, so it belongs on a thread that may wait.
pub(crate) struct Follower {
    dir: RunDir,
    pub(super) state: Mutex<Reading>,
    pub(super) events: broadcast::Sender<Event>,
    /// Whether somebody sends events just now.
    pub(super) is_sending: Mutex<bool>,
}

/// What was read so far.
pub(crate) struct Reading {
    tail: Tail,
    pub(crate) log: Log,
    pub(crate) about: About,
    /// The share of the log that was read, while it is not all of it.
    pub(crate) loading: Option<f64>,
    /// Why the log cannot be read.
    pub(crate) problem: Option<String>,
    looked: Option<Instant>,
    pub(super) sent: super::news::Sent,
}

impl Follower {
    pub(super) fn new(dir: RunDir) -> Self {
        let reading = Reading {
            tail: Tail::new(&dir.metrics_path()),
            log: Log::new(1),
            about: About::default(),
            loading: None,
            problem: None,
            looked: None,
            sent: super::news::Sent::default(),
        };
        Self {
            dir,
            state: Mutex::new(reading),
            events: broadcast::Sender::new(WAITING_EVENTS),
            is_sending: Mutex::new(false),
        }
    }

    pub(crate) fn dir(&self) -> &RunDir {
        &self.dir
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.events.receiver_count() > 0
    }

    /// What is known now, after a look at the files if the last one was not just now.
    pub(crate) fn look(&self) -> MutexGuard<'_, Reading> {
        let mut reading = self.reading();
        let is_due = |looked: Instant| looked.elapsed() >= BETWEEN_LOOKS;
        if reading.loading.is_some() || reading.looked.is_none_or(is_due) {
            reading.advance(&self.dir);
        }
        reading
    }

    /// A panic while something was read is no reason not to go on.
    pub(super) fn reading(&self) -> MutexGuard<'_, Reading> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a part of the log again, for points that were joined. `None` where that is too much: what is known must do.
    pub(crate) fn closer(&self, names: &[String], from: u64, to: u64, points: usize) -> Option<Vec<Series>> {
        let (begin, end) = {
            let reading = self.reading();
            let (begin, end) = reading.log.index.range(from, to);
            (begin, end.min(reading.tail.position()))
        };
        let path = self.dir.metrics_path();
        if end.saturating_sub(begin) > CLOSER_LOOK || !places::is_plain_file(&path) {
            return None;
        }
        let mut series: Vec<Series> = names.iter().map(|_| Series::new(points)).collect();
        let read = metrics::read_part(&path, begin, end, |row| {
            if (from..=to).contains(&row.step) {
                for (name, series) in names.iter().zip(&mut series) {
                    row.value(name).into_iter().for_each(|value| drop(series.push(row.step, row.time, value)));
                }
            }
        });
        read.ok().map(|()| series)
    }
}

impl Reading {
    /// Looks at the files once, and reads a piece of the log.
    pub(super) fn advance(&mut self, dir: &RunDir) {
        self.looked = Some(Instant::now());
        self.about.refresh(dir);
        let path = dir.metrics_path();
        if path.symlink_metadata().is_ok_and(|about| !about.is_file()) {
            self.problem = Some("metrics.jsonl is not a file".to_string());
            return;
        }
        let read = self.tail.was_cut().and_then(|was_cut| {
            if was_cut {
                self.log = Log::new(self.log.version + 1);
            }
            let log = &mut self.log;
            self.tail.read(PIECE, |begin, row| log.add(begin, row))
        });
        match read {
            Ok(piece) => {
                let share = piece.position as f64 / piece.length.max(1) as f64;
                self.loading = piece.more.then_some(share.min(1.0));
                self.problem = None;
            }
            Err(error) => (self.loading, self.problem) = (None, Some(error.to_string())),
        }
    }

    /// All that is known about the run but the points of its series and its configuration.
    pub(crate) fn about_json(&self) -> Value {
        self.about.to_json(self)
    }

    pub(crate) fn is_live(&self) -> bool {
        self.about.is_live()
    }
}
