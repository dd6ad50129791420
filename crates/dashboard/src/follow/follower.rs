//! One run that somebody looks at.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenterhook_record::metrics;
use tenterhook_record::run::RunDir;
use tokio::sync::broadcast;

use super::about::About;
use super::histograms::Histograms;
use super::log::Log;
use super::news::{Event, Sent};
use super::series::Series;
use crate::account::Account;
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
    pub(crate) account: Account,
    pub(crate) log: Log,
    pub(crate) about: About,
    pub(crate) histograms: Histograms,
    looked: Option<Instant>,
    pub(super) sent: Sent,
}

impl Follower {
    pub(super) fn new(dir: RunDir) -> Self {
        let reading = Reading {
            account: Account::new(dir.clone()),
            log: Log::new(1),
            about: About::default(),
            histograms: Histograms::default(),
            looked: None,
            sent: Sent::default(),
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
        if reading.account.loading.is_some() || reading.looked.is_none_or(is_due) {
            reading.advance();
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
            (begin, end.min(reading.account.position()))
        };
        let path = self.dir.metrics_path();
        if end.saturating_sub(begin) > CLOSER_LOOK || !places::is_plain_file(&path) {
            return None;
        }
        let mut series: Vec<Series> = names.iter().map(|_| Series::new(points)).collect();
        let read = metrics::read_part(&path, begin, end, |row| {
            if (from..=to).contains(&row.step) {
                for (name, series) in names.iter().zip(&mut series) {
                    if let Some(value) = row.value(name) {
                        series.push(row.step, row.time, value);
                    }
                }
            }
        });
        read.ok().map(|()| series)
    }
}

impl Reading {
    /// Looks at the files once, and reads a piece of the log.
    pub(super) fn advance(&mut self) {
        self.looked = Some(Instant::now());
        let dir = self.account.dir().clone();
        self.account.refresh();
        self.about.refresh(&dir);
        if self.account.was_cut() {
            self.log = Log::new(self.log.version + 1);
            self.histograms.begin_again();
        }
        let log = &mut self.log;
        self.account.read_log(PIECE, |begin, row| log.add(begin, row));
        self.histograms.read(&dir.histograms_path());
    }
}
