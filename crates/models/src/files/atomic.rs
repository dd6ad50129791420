//! Files that are either the old ones or the new ones, never half of either: those of the record, with this crate's errors.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tenterhook_record::disk;

use crate::error::ModelError;

/// A file written beside its place and moved there when everything else is ready too.
/// Dropped before that, it leaves nothing behind.
pub(crate) struct PendingFile {
    file: disk::PendingFile,
    target: PathBuf,
}

impl PendingFile {
    /// Writes the contents to the disk, under a temporary name in the target's own directory.
    pub(crate) fn write(
        target: PathBuf,
        contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Self, ModelError> {
        let file = disk::PendingFile::write(&target, contents).map_err(ModelError::io("write", &target))?;
        Ok(Self { file, target })
    }

    /// Moves the file to its place.
    pub(crate) fn publish(self) -> Result<(), ModelError> {
        self.file.publish().map_err(ModelError::io("write", &self.target))
    }
}

/// Checks that a file can be written at this place, before any work is done for it.
pub fn check_writable(target: &Path) -> Result<(), ModelError> {
    PendingFile::write(target.to_path_buf(), |_| Ok(())).map(drop)
}

/// Writes a small file in one go.
pub(crate) fn text(contents: &[u8]) -> impl FnOnce(&mut dyn Write) -> io::Result<()> {
    move |writer| writer.write_all(contents)
}
