//! What can go wrong with a store.

use std::io;
use std::path::{Path, PathBuf};

use tenterhook_models::error::ModelError;
use tenterhook_record::run::RunError;

/// A store that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is a run of this name.
    #[error("{}: there is a run of this name already; give another name, or remove it", path.display())]
    Exists {
        /// Its directory.
        path: PathBuf,
    },
    /// The run cannot be made, or somebody else is writing it.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A file is not what it should be.
    #[error("{}: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A shard cannot be read.
    #[error(transparent)]
    Shard(#[from] ModelError),
    /// The file system refused something.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The thread that writes has failed before; nothing is taken any more.
    #[error("the store is no longer written: {0}")]
    Stopped(String),
    /// One batch is larger than the memory it may take.
    #[error(
        "one batch needs {needed} bytes, more than the memory limit of {limit}: put fewer sequences into a batch, or raise the limit"
    )]
    TooLarge {
        /// The bytes it has so far.
        needed: usize,
        /// The limit.
        limit: usize,
    },
    /// The memory is full and nobody was to wait.
    #[error("the memory limit of {limit} bytes is reached, and the disk is not quick enough")]
    Full {
        /// The limit.
        limit: usize,
    },
    /// What was given does not belong together.
    #[error("{0}")]
    BadInput(String),
    /// The tensor engine failed.
    #[error(transparent)]
    Engine(#[from] candle_core::Error),
}

impl StoreError {
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    pub(super) fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_path_buf(), problem: problem.into() }
    }

    /// Whether what was asked for is at fault, and not the machine.
    pub fn is_bad_input(&self) -> bool {
        !matches!(self, Self::Io { .. } | Self::Stopped(_) | Self::Full { .. } | Self::Engine(_))
    }
}
