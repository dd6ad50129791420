//! Files that are either the old ones or the new ones, never half of either.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::ModelError;

/// A file written beside its place and moved there when everything else is ready too.
/// Dropped before that, it leaves nothing behind.
pub(crate) struct PendingFile {
    temporary: PathBuf,
    target: PathBuf,
}

impl PendingFile {
    /// Writes the contents to the disk, under a temporary name in the target's own directory.
    pub(crate) fn write(
        target: PathBuf,
        contents: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<Self, ModelError> {
        let target = resolve(target)?;
        let (file, temporary) = create_beside(&target).map_err(ModelError::io("write", &target))?;
        let pending = Self { temporary, target };
        pending.fill(file, contents).map_err(ModelError::io("write", &pending.target))?;
        Ok(pending)
    }

    fn fill(
        &self,
        file: File,
        contents: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> io::Result<()> {
        // A file that is replaced keeps its mode; a new one has what the umask says.
        if let Ok(existing) = fs::metadata(&self.target) {
            file.set_permissions(existing.permissions())?;
        }
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        contents(&mut writer)?;
        writer.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    }

    /// Moves the file to its place.
    pub(crate) fn publish(self) -> Result<(), ModelError> {
        fs::rename(&self.temporary, &self.target).map_err(ModelError::io("write", &self.target))
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        // After publishing there is nothing under this name; nothing can be done about another failure.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// The regular file that is to be replaced: a link is followed, and anything else that is there stays.
fn resolve(target: PathBuf) -> Result<PathBuf, ModelError> {
    match fs::symlink_metadata(&target) {
        Err(_) => Ok(target),
        Ok(found) if found.is_file() => Ok(target),
        Ok(found) if found.is_symlink() => {
            let real = fs::canonicalize(&target).map_err(ModelError::io("follow the link", &target))?;
            resolve(real)
        }
        Ok(_) => Err(ModelError::Unwritable {
            path: target,
            problem: "something is there that is not a file".to_string(),
        }),
    }
}

/// Checks that a file can be written at this place, before any work is done for it.
pub fn check_writable(target: &Path) -> Result<(), ModelError> {
    PendingFile::write(target.to_path_buf(), |_| Ok(())).map(drop)
}

/// A new file in the target's directory, under a name nobody else uses.
fn create_beside(target: &Path) -> io::Result<(File, PathBuf)> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    loop {
        let unique = COUNTER.fetch_add(1, Ordering::Relaxed);
        let temporary = target.with_file_name(format!(".{name}.{}-{unique}.tmp", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((file, temporary)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Makes renames in a directory survive a power cut, where the system offers that.
pub(crate) fn sync_directory(dir: &Path) -> Result<(), ModelError> {
    if cfg!(unix) {
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(ModelError::io("sync", dir))?;
    }
    Ok(())
}

/// Writes a small file in one go.
pub(crate) fn text(contents: &[u8]) -> impl FnOnce(&mut BufWriter<File>) -> io::Result<()> {
    move |writer| writer.write_all(contents)
}
