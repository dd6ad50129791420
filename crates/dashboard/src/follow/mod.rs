//! Runs that somebody looks at: each is read once, however many look.

mod about;
mod follower;
mod histograms;
mod index;
mod log;
mod news;
mod series;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use follower::Follower;
pub(crate) use log::MOST_POINTS;
pub(crate) use news::Event;
pub(crate) use series::{Columns, Series};

use crate::error::Refusal;
use crate::places;

/// The most runs in memory at a time.
const MOST: usize = 12;
/// A run that nobody asked for in this time is forgotten when another one is asked for.
const FORGET: Duration = Duration::from_secs(600);

/// The runs that somebody looks at.
pub(crate) struct Followers {
    runs_dir: PathBuf,
    /// The one that was asked for last is last.
    known: Mutex<Vec<(Instant, Arc<Follower>)>>,
}

impl Followers {
    pub(crate) fn new(runs_dir: &Path) -> Self {
        Self { runs_dir: runs_dir.to_path_buf(), known: Mutex::default() }
    }

    /// The one of a run, which may have nothing read yet.
    pub(crate) fn get(&self, id: &str) -> Result<Arc<Follower>, Refusal> {
        let dir = places::run_dir(&self.runs_dir, id)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        known.retain(|(asked, follower)| follower.is_watched() || now - *asked < FORGET);
        let found = known.iter().position(|(_, follower)| follower.dir() == &dir);
        let follower = match found {
            Some(at) => known.remove(at).1,
            None if known.len() < MOST => Arc::new(Follower::new(dir)),
            None => {
                let unwatched = known.iter().position(|(_, follower)| !follower.is_watched());
                let unwatched =
                    unwatched.ok_or_else(|| Refusal::busy("too many runs are being watched at once"))?;
                known.remove(unwatched);
                Arc::new(Follower::new(dir))
            }
        };
        known.push((now, Arc::clone(&follower)));
        Ok(follower)
    }
}
