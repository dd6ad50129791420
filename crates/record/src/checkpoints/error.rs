//! What can be wrong with a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

use crate::name::NameError;

/// A checkpoint that could not be written, or must not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
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
    /// A file is not what the manifest says, or the manifest is not what was written.
    #[error("{}: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The checkpoint was written by a later version.
    #[error(
        "{}: has format {format}, this version reads formats up to {known}; use the version that wrote it",
        path.display()
    )]
    Newer {
        /// The manifest.
        path: PathBuf,
        /// Its format.
        format: u64,
        /// The newest format that can be read.
        known: u64,
    },
    /// The checkpoint's name is no plain directory name.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl CheckpointError {
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_path_buf(), source }
    }

    pub(super) fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_path_buf(), problem: problem.into() }
    }
}
