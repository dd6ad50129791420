//! The only way to the disk for what belongs to a run: the few operations a durable write needs, each of which a test
//! can make fail ([`crate::fault`]).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault::{self, Op};

/// A file that is written to.
#[derive(Debug)]
pub struct DiskFile {
    file: File,
    path: PathBuf,
}

impl DiskFile {
    /// A new file; one that is there already is an error.
    pub fn create_new(path: &Path) -> io::Result<Self> {
        Self::open_with(path, OpenOptions::new().write(true).create_new(true), true)
    }

    /// A file whose writes all go to its end; it is made where there is none.
    pub fn append(path: &Path) -> io::Result<Self> {
        // Two calls, so that a trace knows whether the file is new.
        match Self::open_with(path, OpenOptions::new().append(true).create_new(true), true) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Self::open_with(path, OpenOptions::new().append(true), false)
            }
            opened => opened,
        }
    }

    fn open_with(path: &Path, options: &OpenOptions, new: bool) -> io::Result<Self> {
        fault::point("disk.create")?;
        let file = options.open(path)?;
        if new {
            fault::record(|| Op::Create(path.to_path_buf()));
        }
        Ok(Self { file, path: path.to_path_buf() })
    }

    /// Returns when everything that was written is on the disk.
    pub fn sync(&self) -> io::Result<()> {
        fault::point("disk.sync")?;
        self.file.sync_all()?;
        fault::record(|| Op::Sync(self.path.clone()));
        Ok(())
    }

    /// Cuts the file to this length.
    pub fn truncate(&self, bytes: u64) -> io::Result<()> {
        fault::point("disk.truncate")?;
        self.file.set_len(bytes)?;
        fault::record(|| Op::Truncate(self.path.clone(), bytes));
        Ok(())
    }

    /// Takes the system's lock on the file, which goes with the file when it is closed.
    pub fn try_lock(&self) -> Result<(), TryLockError> {
        self.file.try_lock()
    }

    /// An error when the file is no longer found under its path, where the system can tell.
    pub fn check_in_place(&self) -> io::Result<()> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let (here, there) = (self.file.metadata()?, fs::metadata(&self.path)?);
            if (here.dev(), here.ino()) != (there.dev(), there.ino()) {
                return Err(io::Error::new(io::ErrorKind::NotFound, "another file is in its place"));
            }
        }
        Ok(())
    }

    /// The same open file once more, as a process that is started has it.
    #[cfg(test)]
    pub(crate) fn duplicate(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Gives the system's lock back.
    pub fn unlock(&self) -> io::Result<()> {
        self.file.unlock()
    }

    /// The file's length.
    pub fn bytes(&self) -> io::Result<u64> {
        self.file.metadata().map(|about| about.len())
    }
}

impl Write for DiskFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (allowed, failure) = fault::on_write(bytes.len());
        let Some(failure) = failure else {
            let written = self.file.write(bytes)?;
            fault::record(|| Op::Write(self.path.clone(), written));
            return Ok(written);
        };
        self.file.write_all(&bytes[..allowed])?;
        fault::record(|| Op::Write(self.path.clone(), allowed));
        Err(failure)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes a directory and those above it, and sees to it that they survive a power cut.
pub fn create_dir_all(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    let above = parent(dir);
    create_dir_all(above)?;
    match create_dir(dir) {
        Ok(()) => sync_dir(above),
        // Somebody else was quicker.
        Err(_) if dir.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes one directory; one that is there already is an error.
pub fn create_dir(dir: &Path) -> io::Result<()> {
    fault::point("disk.create")?;
    fs::create_dir(dir)?;
    fault::record(|| Op::CreateDir(dir.to_path_buf()));
    Ok(())
}

/// Renames a file or a directory.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fault::point("disk.rename")?;
    fs::rename(from, to)?;
    fault::record(|| Op::Rename(from.to_path_buf(), to.to_path_buf()));
    Ok(())
}

/// Makes a directory's entries survive a power cut, where the system offers that.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    fault::point("disk.sync_dir")?;
    if cfg!(unix) {
        let here = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        File::open(here)?.sync_all()?;
    }
    fault::record(|| Op::SyncDir(dir.to_path_buf()));
    Ok(())
}

/// Removes a file.
pub fn remove_file(path: &Path) -> io::Result<()> {
    fault::point("disk.remove")?;
    fs::remove_file(path)?;
    fault::record(|| Op::Remove(path.to_path_buf()));
    Ok(())
}

/// Removes a directory and everything in it; links in it are removed, not followed.
pub fn remove_dir_all(dir: &Path) -> io::Result<()> {
    fault::point("disk.remove")?;
    fs::remove_dir_all(dir)?;
    fault::record(|| Op::Remove(dir.to_path_buf()));
    Ok(())
}

/// Whether a file can be made in a directory. One is, and is gone again: permissions alone do not tell, as the file system may be
/// read-only. It belongs to no run, so no test makes it fail.
pub fn try_writing(dir: &Path) -> io::Result<()> {
    let (_, path) =
        create_beside(&dir.join("try"), |path| OpenOptions::new().write(true).create_new(true).open(path))?;
    fs::remove_file(path)
}

/// The directory something is in.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Writes a file that is the old one or the whole new one at every moment, and survives a power cut.
///
/// A file that is replaced keeps its mode, a new one has what the umask says. After an error nothing has changed,
/// or only the last step is in doubt: the new file is in place, but may not be on the disk yet.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("notes.txt");
/// tenterhook_record::disk::atomic_write(&path, |to| to.write_all(b"all of it"))?;
/// assert_eq!(std::fs::read(&path)?, b"all of it");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn atomic_write(path: &Path, contents: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    PendingFile::write(path, contents)?.publish()
}

/// Replaces a file that is only there to be looked at: readers find the old contents or the new, but a power cut may lose both. Nothing
/// depends on it, so it does not wait for the disk, and it counts as no operation that a test can make fail.
pub fn refresh(path: &Path, contents: &[u8]) -> io::Result<()> {
    let (mut file, temporary) = create_beside(path, |path| File::create_new(path))?;
    let written = file.write_all(contents).and_then(|()| fs::rename(&temporary, path));
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// A file written beside its place and moved there when everything else is ready too.
/// Dropped before that, it leaves nothing behind.
#[derive(Debug)]
pub struct PendingFile {
    temporary: PathBuf,
    target: PathBuf,
    published: bool,
}

impl PendingFile {
    /// Writes the contents to the disk, under a temporary name in the target's own directory.
    /// A target that is a link is followed; one that is no file is an error.
    pub fn write(target: &Path, contents: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<Self> {
        let target = resolve(target)?;
        let (file, temporary) = create_beside(&target, DiskFile::create_new)?;
        let pending = Self { temporary, target, published: false };
        // A file that is replaced keeps its mode.
        if let Ok(existing) = fs::metadata(&pending.target) {
            file.file.set_permissions(existing.permissions())?;
        }
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        contents(&mut writer)?;
        writer.into_inner().map_err(io::IntoInnerError::into_error)?.sync()?;
        Ok(pending)
    }

    /// Moves the file to its place, for good.
    pub fn publish(mut self) -> io::Result<()> {
        rename(&self.temporary, &self.target)?;
        self.published = true;
        sync_dir(parent(&self.target))
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        if !self.published {
            // Nothing can be done about a failure here; the next sweep takes the file away.
            let _ = remove_file(&self.temporary);
        }
    }
}

/// The regular file that is to be replaced: a link is followed, and anything else that is there stays.
fn resolve(target: &Path) -> io::Result<PathBuf> {
    match fs::symlink_metadata(target) {
        Err(_) => Ok(target.to_path_buf()),
        Ok(found) if found.is_file() => Ok(target.to_path_buf()),
        Ok(found) if found.is_symlink() => resolve(&fs::canonicalize(target)?),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "something is there that is not a file")),
    }
}

/// Makes something hidden beside the target, under a temporary name nobody else uses.
pub(crate) fn create_beside<T>(
    target: &Path,
    create: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<(T, PathBuf)> {
    loop {
        let temporary = temporary_beside(target);
        match create(&temporary) {
            Ok(created) => return Ok((created, temporary)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// `.<name>.<pid>-<n>.tmp`, in the target's own directory.
pub(crate) fn temporary_beside(target: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let unique = COUNTER.fetch_add(1, Ordering::Relaxed);
    target.with_file_name(format!(".{name}.{}-{unique}.tmp", std::process::id()))
}

/// Whether a name is one that [`temporary_beside`] gives.
fn is_temporary(name: &str) -> bool {
    let Some((start, unique)) = name.strip_suffix(".tmp").and_then(|name| name.rsplit_once('.')) else {
        return false;
    };
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    start.len() > 1
        && start.starts_with('.')
        && unique.split_once('-').is_some_and(|(pid, n)| number(pid) && number(n))
}

/// Removes what killed processes left behind in a directory under temporary names, and says what it was.
/// Nobody may be writing there meanwhile: whoever holds the run's lock calls it before the first write.
pub fn sweep(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut swept = Vec::new();
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(swept),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(is_temporary) {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => remove_dir_all(&entry.path())?,
            false => remove_file(&entry.path())?,
        }
        swept.push(entry.path());
    }
    swept.sort();
    Ok(swept)
}

/// Reads a whole file, but never more than `limit` bytes: a larger one is an error, whatever its metadata say.
pub fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let invalid = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
    if !fs::metadata(path)?.is_file() {
        return Err(invalid("is not a file".to_string()));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(invalid(format!("is larger than {limit} bytes"))),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests;
