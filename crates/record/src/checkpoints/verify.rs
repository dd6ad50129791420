//! Checking a checkpoint before anything is loaded from it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

use super::CheckpointError;
use super::manifest::{FileEntry, MANIFEST, Manifest};

/// Checks every file of a checkpoint against its manifest: that it is there, its length and its digest, and that no
/// other file is there. Links are refused. Hidden files are left alone: nothing reads them.
pub fn verify(checkpoint: &Path) -> Result<Manifest, CheckpointError> {
    let manifest = Manifest::read(checkpoint)?;
    manifest.files.iter().try_for_each(|file| check_file(checkpoint, file))?;
    let mut known: BTreeSet<&str> = manifest.files.iter().map(|file| file.name.as_str()).collect();
    known.insert(MANIFEST);
    check_nothing_else(checkpoint, "", &known)?;
    Ok(manifest)
}

fn check_file(checkpoint: &Path, entry: &FileEntry) -> Result<(), CheckpointError> {
    let path = checkpoint.join(&entry.name);
    if let Some((directory, _)) = entry.name.split_once('/') {
        let directory = checkpoint.join(directory);
        if directory.symlink_metadata().is_ok_and(|about| !about.is_dir()) {
            return Err(CheckpointError::damaged(&directory, "is not a directory"));
        }
    }
    let about = match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(CheckpointError::damaged(&path, "is missing"));
        }
        about => about.map_err(CheckpointError::io("read", &path))?,
    };
    if !about.is_file() {
        return Err(CheckpointError::damaged(&path, "is not a file"));
    }
    if about.len() != entry.bytes {
        let problem = format!("has {} bytes, the manifest says {}", about.len(), entry.bytes);
        return Err(CheckpointError::damaged(&path, problem));
    }
    let mut hasher = blake3::Hasher::new();
    File::open(&path)
        .and_then(|file| hasher.update_reader(file).map(|_| ()))
        .map_err(CheckpointError::io("read", &path))?;
    match hasher.finalize().to_hex().as_str() == entry.blake3 {
        true => Ok(()),
        false => {
            Err(CheckpointError::damaged(&path, "is damaged: its digest is not the one in the manifest"))
        }
    }
}

fn check_nothing_else(directory: &Path, before: &str, known: &BTreeSet<&str>) -> Result<(), CheckpointError> {
    let io = CheckpointError::io;
    for entry in fs::read_dir(directory).map_err(io("list", directory))? {
        let entry = entry.map_err(io("list", directory))?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if name.starts_with('.') {
            continue;
        }
        let name = format!("{before}{name}");
        let is_dir = entry.file_type().map_err(io("read", &path))?.is_dir();
        if is_dir && before.is_empty() {
            check_nothing_else(&path, &format!("{name}/"), known)?;
        } else if !known.contains(name.as_str()) {
            return Err(CheckpointError::damaged(&path, "does not belong to the checkpoint"));
        }
    }
    Ok(())
}
