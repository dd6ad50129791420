//! Writing a checkpoint.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::manifest::{FORMAT, FileEntry, MANIFEST, Manifest, check_file_name};
use super::{CheckpointError, listed};
use crate::disk::{self, DiskFile};
use crate::fault;
use crate::name::check_run_name;

/// A checkpoint that is being written, in a hidden directory. It appears under its name, whole and on the disk,
/// when it is finished; dropped before that, it leaves nothing behind.
#[derive(Debug)]
pub struct CheckpointWriter {
    checkpoints: PathBuf,
    name: String,
    step: u64,
    temporary: PathBuf,
    directories: Vec<PathBuf>,
    files: Vec<FileEntry>,
    failed: bool,
    published: bool,
}

impl CheckpointWriter {
    /// Begins a checkpoint of this step in a directory of checkpoints, which is made where there is none.
    pub fn begin(checkpoints: &Path, name: &str, step: u64) -> Result<Self, CheckpointError> {
        check_run_name(name)?;
        let io = CheckpointError::io;
        disk::create_dir_all(checkpoints).map_err(io("create the directory", checkpoints))?;
        let target = checkpoints.join(name);
        let ((), temporary) =
            disk::create_beside(&target, disk::create_dir).map_err(io("begin the checkpoint", &target))?;
        Ok(Self {
            checkpoints: checkpoints.to_path_buf(),
            name: name.to_string(),
            step,
            temporary,
            directories: Vec::new(),
            files: Vec::new(),
            failed: false,
            published: false,
        })
    }

    /// Writes one file to the disk. Its name is plain, or has one directory before it: `ema/model.safetensors`.
    /// After an error the checkpoint cannot be finished.
    pub fn file(
        &mut self,
        name: &str,
        contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), CheckpointError> {
        // Set first, so that a panic inside `contents` counts as a failure as well.
        let failed_before = std::mem::replace(&mut self.failed, true);
        let path = self.temporary.join(name);
        check_file_name(name).map_err(|problem| CheckpointError::damaged(&self.temporary, problem))?;
        if self.files.iter().any(|file| file.name == name) {
            return Err(CheckpointError::damaged(&path, "was written already"));
        }
        let io = CheckpointError::io;
        let directory = disk::parent(&path).to_path_buf();
        if directory != self.temporary && !self.directories.contains(&directory) {
            disk::create_dir(&directory).map_err(io("create the directory", &directory))?;
            self.directories.push(directory);
        }
        let (bytes, digest) = write_digested(&path, contents).map_err(io("write", &path))?;
        self.files.push(FileEntry { name: name.to_string(), bytes, blake3: digest });
        self.failed = failed_before;
        Ok(())
    }

    /// Writes the manifest and moves the checkpoint to its place; where its name is taken, to `<name>-v1` and so on.
    /// Returns where it is. `meta` is kept in the manifest.
    pub fn finish(mut self, meta: Map<String, Value>) -> Result<PathBuf, CheckpointError> {
        if self.failed {
            return Err(CheckpointError::damaged(
                &self.temporary,
                "cannot be finished: a file was not written",
            ));
        }
        let io = CheckpointError::io;
        fault::point("save.files.written").map_err(io("save", &self.temporary))?;
        let path = self.temporary.join(MANIFEST);
        let files = std::mem::take(&mut self.files);
        let manifest = Manifest { format: FORMAT, step: self.step, written: self.now()?, files, meta };
        let bytes = manifest
            .to_bytes()
            .map_err(|error| CheckpointError::damaged(&path, format!("cannot be JSON: {error}")))?;
        write_digested(&path, |to| to.write_all(&bytes)).map_err(io("write", &path))?;
        fault::point("save.manifest.written").map_err(io("save", &self.temporary))?;
        for directory in self.directories.iter().chain([&self.temporary]) {
            disk::sync_dir(directory).map_err(io("sync", directory))?;
        }
        fault::point("save.synced").map_err(io("save", &self.temporary))?;
        let place = self.publish()?;
        fault::point("save.renamed").map_err(io("save", &place))?;
        disk::sync_dir(&self.checkpoints).map_err(io("sync", &self.checkpoints))?;
        Ok(place)
    }

    /// The time, but later than that of every other checkpoint here, also when the clock was set back.
    fn now(&self) -> Result<u64, CheckpointError> {
        let now = u64::try_from(Timestamp::now().as_microsecond()).unwrap_or(0);
        let others = listed(&self.checkpoints)?;
        Ok(others.iter().map(|(written, _)| written.saturating_add(1)).fold(now, u64::max))
    }

    fn publish(&mut self) -> Result<PathBuf, CheckpointError> {
        let mut place = self.checkpoints.join(&self.name);
        let mut version = 0_u64;
        // A rename may replace an empty directory, so the place has to be looked at.
        while place.symlink_metadata().is_ok() {
            version += 1;
            place = self.checkpoints.join(format!("{}-v{version}", self.name));
        }
        disk::rename(&self.temporary, &place)
            .map_err(CheckpointError::io("move the checkpoint to", &place))?;
        self.published = true;
        Ok(place)
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        if !self.published {
            // Nothing can be done about a failure here; the next sweep takes the directory away.
            let _ = disk::remove_dir_all(&self.temporary);
        }
    }
}

/// Writes a new file to the disk and returns its length and digest.
fn write_digested(
    path: &Path,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<(u64, String)> {
    let digesting = Digesting {
        file: DiskFile::create_new(path)?,
        hasher: blake3::Hasher::new(),
        bytes: 0,
        failure: None,
    };
    let mut writer = BufWriter::with_capacity(1 << 20, digesting);
    contents(&mut writer)?;
    let digesting = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    // Whoever wrote the contents may have dropped an error on the way; the file is not whole all the same.
    if let Some(kind) = digesting.failure {
        return Err(io::Error::new(kind, "a write failed"));
    }
    digesting.file.sync()?;
    Ok((digesting.bytes, digesting.hasher.finalize().to_hex().to_string()))
}

/// Computes the digest of what really reaches the file.
struct Digesting {
    file: DiskFile,
    hasher: blake3::Hasher,
    bytes: u64,
    failure: Option<io::ErrorKind>,
}

impl Write for Digesting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.file.write(bytes) {
            Ok(written) => {
                self.hasher.update(&bytes[..written]);
                self.bytes += written as u64;
                Ok(written)
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::Interrupted {
                    self.failure = Some(error.kind());
                }
                Err(error)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
