//! The directory of a run, and what its record says.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::disk;
use crate::name::{NameError, check_run_name};

mod control;
mod find;
mod git;
mod lock;
mod record;
mod summary;
mod told;

pub use control::{HookChange, HookRequest, Inbox, ask};
pub use find::{Listed, find, list};
pub use git::git_state;
pub use lock::{Holder, RunLock};
pub use record::{Attempt, RunRecord, Status, config_hash, host, now, time_of};
pub use summary::Summary;
pub use told::commit_in_words;

/// The directory of one run. Nothing but its name is fixed when it is made; what is in it comes and goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
    id: String,
}

impl RunDir {
    /// Makes the directory of a new run. Without a name its id is a UUID v7, so that ids sort by age.
    pub fn create(runs: &Path, name: Option<&str>) -> Result<Self, RunError> {
        let id = match name {
            Some(name) => name.to_string(),
            None => Uuid::now_v7().to_string(),
        };
        check_run_name(&id)?;
        let io = RunError::io;
        disk::create_dir_all(runs).map_err(io("create the directory", runs))?;
        let path = runs.join(&id);
        match disk::create_dir(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(RunError::Exists { path, id });
            }
            Err(error) => return Err(io("create the directory", &path)(error)),
        }
        disk::sync_dir(runs).map_err(|error| {
            let _ = disk::remove_dir_all(&path); // nobody has seen it
            io("sync", runs)(error)
        })?;
        Ok(Self { path, id })
    }

    /// The directory of a run that is there already.
    pub fn open(path: &Path) -> Result<Self, RunError> {
        let path = fs::canonicalize(path).map_err(RunError::io("open the run", path))?;
        match path.file_name() {
            Some(name) if path.is_dir() => {
                let id = name.to_string_lossy().into_owned();
                Ok(Self { path, id })
            }
            _ => Err(RunError::Damaged { path, problem: "is not the directory of a run".to_string() }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The run's id: the directory's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The record, a [`RunRecord`].
    pub fn record_path(&self) -> PathBuf {
        self.path.join("run.json")
    }

    /// The resolved configuration.
    pub fn config_path(&self) -> PathBuf {
        self.path.join("config.toml")
    }

    /// The metrics, see [`crate::metrics`].
    pub fn metrics_path(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// The histograms, see [`crate::metrics::HistogramLog`]. Only a run that records some has it.
    pub fn histograms_path(&self) -> PathBuf {
        self.path.join("histograms.jsonl")
    }

    /// The directory of requests to the process that trains the run, see [`ask`].
    pub fn control(&self) -> PathBuf {
        self.path.join("control")
    }

    /// What every hook did: about once a second while the run goes on, and when it ends.
    pub fn receipts_path(&self) -> PathBuf {
        self.path.join("receipts.json")
    }

    /// The directory of the checkpoints, see [`crate::checkpoints`].
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// The directory of the files that logging hooks write.
    pub fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// The directory of TensorBoard's event files.
    pub fn tensorboard(&self) -> PathBuf {
        self.path.join("tensorboard")
    }

    /// The directory of captured tensors.
    pub fn captures(&self) -> PathBuf {
        self.path.join("captures")
    }

    /// Whether some process has the run's lock: it is training.
    pub fn is_locked(&self) -> bool {
        lock::is_held(&self.lock_path())
    }

    fn lock_path(&self) -> PathBuf {
        self.path.join("run.lock")
    }

    /// Takes the run's lock, which at most one process has. It is free again when the guard is dropped or the process
    /// ends, however that happens. What a killed process left half-written in the run's directory, among its
    /// checkpoints and among the requests to it is removed.
    pub fn lock(&self) -> Result<RunLock, RunError> {
        self.refuse_links(&self.path)?;
        let lock = RunLock::take(&self.lock_path())?;
        for dir in [self.path.clone(), self.checkpoints(), self.control()] {
            for leftover in disk::sweep(&dir).map_err(RunError::io("sweep", &dir))? {
                tracing::info!("removed what was left half-written: {}", leftover.display());
            }
        }
        Ok(lock)
    }

    /// A run writes into its own directory and nowhere else, so nothing in it may lead out. Checkpoints have a check of their own.
    fn refuse_links(&self, dir: &Path) -> Result<(), RunError> {
        let io = RunError::io;
        for entry in fs::read_dir(dir).map_err(io("list", dir))? {
            let entry = entry.map_err(io("list", dir))?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(io("list", dir))?);
            if kind.is_symlink() {
                let problem = "is a link, and a run writes only inside its own directory".to_string();
                return Err(RunError::Damaged { path, problem });
            }
            if kind.is_dir() && path != self.checkpoints() {
                self.refuse_links(&path)?;
            }
        }
        Ok(())
    }
}

/// A run that could not be made, found, locked or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The file system refused something.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {problem}", path.display())]
    Damaged {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The name is no plain directory name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// There is a run of this name.
    #[error("{}: there is a run `{id}` already; continue it with `--resume {id}`, or give another name", path.display())]
    Exists {
        /// Its directory.
        path: PathBuf,
        /// Its id.
        id: String,
    },
    /// No run has this id.
    #[error("{}: no run is called {wanted}; {known}", runs.display())]
    NotFound {
        /// The directory of runs.
        runs: PathBuf,
        /// What was asked for.
        wanted: String,
        /// The runs there are, in words.
        known: String,
    },
    /// Several runs begin like this.
    #[error("{}: several runs begin with {wanted}: {matches}; give more of the id", runs.display())]
    Ambiguous {
        /// The directory of runs.
        runs: PathBuf,
        /// What was asked for.
        wanted: String,
        /// Those that match.
        matches: String,
    },
    /// Another process is writing this run.
    #[error("{}: the run is being written by {holder}; wait for it or stop it", path.display())]
    Locked {
        /// The lock.
        path: PathBuf,
        /// Who has it, in words.
        holder: String,
    },
}

impl RunError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_path_buf(), source }
    }
}

#[cfg(test)]
mod tests;
