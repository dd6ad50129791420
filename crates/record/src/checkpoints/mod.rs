//! Checkpoints: directories that are complete and verified, or not there at all.
//!
//! A checkpoint is written into a hidden directory, every file is synced, the manifest with a digest per file comes
//! last, and only then the directory gets its name. So a process that is killed leaves nothing that could be taken
//! for a checkpoint, and damage that comes later is found before anything is loaded.
//!
//! ```
//! use tenterhook_record::checkpoints::{self, CheckpointWriter};
//!
//! let dir = tempfile::tempdir()?;
//! let mut writer = CheckpointWriter::begin(dir.path(), "step-00000400", 400)?;
//! writer.file("state.json", |to| to.write_all(b"{}"))?;
//! writer.finish(serde_json::Map::new())?;
//!
//! let found = checkpoints::newest_good(dir.path())?;
//! let (checkpoint, manifest) = found.checkpoint.ok_or("no checkpoint")?;
//! assert_eq!((checkpoint.name.as_str(), manifest.step), ("step-00000400", 400));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::disk;

mod error;
mod manifest;
mod verify;
mod writer;

pub use error::CheckpointError;
pub use manifest::{FORMAT, FileEntry, MANIFEST, Manifest};
pub use verify::verify;
pub use writer::CheckpointWriter;

/// A checkpoint as its manifest describes it; its files were not looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointRef {
    /// Where it is.
    pub path: PathBuf,
    /// The directory's name.
    pub name: String,
    /// The step in its manifest, where that can be trusted.
    pub step: Option<u64>,
    /// Why it cannot be loaded, as far as the manifest tells.
    pub problem: Option<String>,
}

/// What [`newest_good`] found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The newest checkpoint that verifies.
    pub checkpoint: Option<(CheckpointRef, Manifest)>,
    /// The newer ones that do not, and those whose age nobody can tell, each with the reason.
    pub skipped: Vec<(CheckpointRef, String)>,
}

/// The checkpoints of a directory by step, then by the time they were written; those without a readable manifest come
/// first. A directory that is not there has none.
pub fn list(checkpoints: &Path) -> Result<Vec<CheckpointRef>, CheckpointError> {
    Ok(listed(checkpoints)?.into_iter().map(|(_, checkpoint)| checkpoint).collect())
}

/// As [`list`], with the time each one was written.
fn listed(checkpoints: &Path) -> Result<Vec<(u64, CheckpointRef)>, CheckpointError> {
    let io = CheckpointError::io;
    let entries = match fs::read_dir(checkpoints) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(io("list", checkpoints))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io("list", checkpoints))?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        // Links are not followed, so that no checkpoint counts twice.
        if name.starts_with('.') || !entry.file_type().map_err(io("read", &path))?.is_dir() {
            continue;
        }
        found.push(match Manifest::read(&path) {
            Ok(manifest) => {
                (manifest.written, CheckpointRef { path, name, step: Some(manifest.step), problem: None })
            }
            Err(error) => (0, CheckpointRef { path, name, step: None, problem: Some(error.to_string()) }),
        });
    }
    found.sort_by(|(a_written, a), (b_written, b)| {
        (a.step, a_written, &a.name).cmp(&(b.step, b_written, &b.name))
    });
    Ok(found)
}

/// Finds the checkpoint with the highest step among those that verify. What had to be skipped is returned and logged.
pub fn newest_good(checkpoints: &Path) -> Result<Found, CheckpointError> {
    newest_usable(checkpoints, |_| Ok(()))
}

/// The same among those that also `fit`: whoever wants to load one says what is wrong with it.
pub fn newest_usable(
    checkpoints: &Path,
    mut fit: impl FnMut(&Path) -> Result<(), String>,
) -> Result<Found, CheckpointError> {
    let mut found = Found::default();
    let (known, unknown): (Vec<_>, Vec<_>) =
        list(checkpoints)?.into_iter().partition(|one| one.step.is_some());
    for checkpoint in unknown {
        let problem = checkpoint.problem.clone().unwrap_or_default();
        found.skipped.push((checkpoint, problem));
    }
    for checkpoint in known.into_iter().rev() {
        let verified = verify(&checkpoint.path).map_err(|error| error.to_string());
        match verified.and_then(|manifest| fit(&checkpoint.path).map(|()| manifest)) {
            Ok(manifest) => {
                found.checkpoint = Some((checkpoint, manifest));
                break;
            }
            Err(problem) => found.skipped.push((checkpoint, problem)),
        }
    }
    for (checkpoint, problem) in &found.skipped {
        tracing::warn!(checkpoint = %checkpoint.path.display(), "skipped a damaged checkpoint: {problem}");
    }
    Ok(found)
}

/// Removes what killed processes left behind in a directory of checkpoints, and says what it was. Nobody may be saving
/// there meanwhile: whoever holds the run's lock calls it before the first save.
pub fn sweep(checkpoints: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    disk::sweep(checkpoints).map_err(CheckpointError::io("sweep", checkpoints))
}

/// Removes a checkpoint: it is out of sight, for good, before its first file goes. Something without a manifest is no
/// checkpoint and stays.
pub fn remove(checkpoint: &Path) -> Result<(), CheckpointError> {
    let io = CheckpointError::io;
    let is = |path: &Path, what: fn(&fs::Metadata) -> bool| {
        path.symlink_metadata().is_ok_and(|about| what(&about))
    };
    if !is(checkpoint, fs::Metadata::is_dir) || !is(&checkpoint.join(MANIFEST), fs::Metadata::is_file) {
        return Err(CheckpointError::damaged(checkpoint, "is not a checkpoint, so it is not removed"));
    }
    let hidden = disk::temporary_beside(checkpoint);
    disk::rename(checkpoint, &hidden).map_err(io("remove", checkpoint))?;
    disk::sync_dir(disk::parent(checkpoint)).map_err(io("sync", disk::parent(checkpoint)))?;
    disk::remove_dir_all(&hidden).map_err(io("remove", &hidden))
}

#[cfg(test)]
mod tests;
