//! From names in a request to files: nothing leads out of the directory of runs.

use std::fs;
use std::path::{Path, PathBuf};

use tenterhook_record::disk;
use tenterhook_record::name::check_run_name;
use tenterhook_record::run::RunDir;

use crate::error::Refusal;

/// The directory of a run that a request names.
pub(crate) fn run_dir(runs: &Path, id: &str) -> Result<RunDir, Refusal> {
    let missing = || Refusal::not_found("there is no such run");
    let dir = inside(runs, id, fs::Metadata::is_dir).ok_or_else(missing)?;
    RunDir::open(&dir).map_err(|_| missing())
}

/// A file in a directory, by its plain name.
pub(crate) fn file_in(dir: &Path, name: &str) -> Option<PathBuf> {
    inside(dir, name, fs::Metadata::is_file)
}

/// A directory in a directory, by its plain name.
pub(crate) fn dir_in(dir: &Path, name: &str) -> Option<PathBuf> {
    inside(dir, name, fs::Metadata::is_dir)
}

/// What is in a directory under a plain name: not a link, and not somewhere else by any other trick.
fn inside(dir: &Path, name: &str, is: fn(&fs::Metadata) -> bool) -> Option<PathBuf> {
    check_run_name(name).ok()?;
    let path = dir.join(name);
    if !is(&path.symlink_metadata().ok()?) {
        return None;
    }
    let (inner, outer) = (path.canonicalize().ok()?, dir.canonicalize().ok()?);
    (inner.parent() == Some(&outer)).then_some(inner)
}

/// Whether this is a file itself, and not a link to one.
pub(crate) fn is_plain_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|about| about.is_file())
}

/// Whether this is a directory itself, and not a link to one.
pub(crate) fn is_plain_dir(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|about| about.is_dir())
}

/// Reads a file that is one, up to a length.
pub(crate) fn read_plain(path: &Path, most: u64) -> Option<Vec<u8>> {
    is_plain_file(path).then(|| disk::read_bounded(path, most).ok()).flatten()
}

/// What tells one state of a file from the next: its length and when it was changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp(Option<(u64, std::time::SystemTime)>);

impl Stamp {
    /// A file or directory that is not there has one too.
    pub(crate) fn of(path: &Path) -> Self {
        let about = path.symlink_metadata().ok();
        Self(about.and_then(|about| Some((about.len(), about.modified().ok()?))))
    }
}
