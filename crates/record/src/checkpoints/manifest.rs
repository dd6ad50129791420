//! The list of what a checkpoint holds, written last.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::CheckpointError;
use crate::disk;
use crate::name::{check_run_name, shown};

/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";
/// The format this version writes, and the newest one it reads.
pub const FORMAT: u64 = 1;
/// The largest manifest that is read.
const LARGEST: u64 = 16 << 20;
/// What follows the manifest's own digest, which is always its last value.
const END: &str = "\"\n}\n";

/// What a checkpoint holds, with a digest per file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of this format.
    pub format: u64,
    /// The optimizer step after which it was written.
    pub step: u64,
    /// When it was written, in microseconds since 1970; later ones in the same directory always have more.
    pub written: u64,
    /// Its files, without the manifest.
    pub files: Vec<FileEntry>,
    /// What the writer had to say.
    #[serde(default)]
    pub meta: Map<String, Value>,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name: plain, or a directory and a plain name, joined by `/`.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its BLAKE3 digest, in hexadecimal.
    pub blake3: String,
}

#[derive(Serialize)]
struct Sealed<'a> {
    #[serde(flatten)]
    manifest: &'a Manifest,
    blake3: &'static str,
}

impl Manifest {
    /// The file's bytes. The last value is a digest of everything before it, so that no byte can change unseen.
    pub(super) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(&Sealed { manifest: self, blake3: "" })?;
        bytes.push(b'\n');
        bytes.truncate(bytes.len() - END.len());
        let digest = blake3::hash(&bytes).to_hex();
        bytes.extend_from_slice(digest.as_bytes());
        bytes.extend_from_slice(END.as_bytes());
        Ok(bytes)
    }

    /// Reads the manifest of a checkpoint; the files it lists are not looked at.
    pub fn read(checkpoint: &Path) -> Result<Self, CheckpointError> {
        let path = checkpoint.join(MANIFEST);
        let about = path.symlink_metadata().map_err(CheckpointError::io("read the manifest", &path))?;
        if !about.is_file() {
            return Err(CheckpointError::damaged(&path, "is not a file"));
        }
        let bytes =
            disk::read_bounded(&path, LARGEST).map_err(CheckpointError::io("read the manifest", &path))?;
        Self::from_bytes(&bytes, &path)
    }

    pub(super) fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self, CheckpointError> {
        let damaged = |problem: String| CheckpointError::damaged(path, problem);
        let value: Value =
            serde_json::from_slice(bytes).map_err(|error| damaged(format!("is not valid JSON: {error}")))?;
        // The version comes first: what follows may look different in another one.
        match value.get("format").and_then(Value::as_u64) {
            Some(FORMAT) => {}
            Some(format) if format > FORMAT => {
                return Err(CheckpointError::Newer { path: path.to_path_buf(), format, known: FORMAT });
            }
            _ => return Err(damaged("has no `format` that is known".to_string())),
        }
        if !digest_holds(bytes) {
            return Err(damaged("was changed after it was written: its digest does not match".to_string()));
        }
        let manifest: Manifest =
            serde_json::from_value(value).map_err(|error| damaged(format!("is no manifest: {error}")))?;
        manifest.check_names().map_err(damaged)?;
        Ok(manifest)
    }

    fn check_names(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for file in &self.files {
            check_file_name(&file.name)?;
            if !seen.insert(file.name.as_str()) {
                return Err(format!("lists {} twice", shown(&file.name)));
            }
        }
        Ok(())
    }
}

fn digest_holds(bytes: &[u8]) -> bool {
    let digest = bytes.strip_suffix(END.as_bytes()).and_then(|bytes| bytes.split_last_chunk::<64>());
    digest.is_some_and(|(before, digest)| blake3::hash(before).to_hex().as_bytes() == digest)
}

/// A file of a checkpoint is a plain name, or one in a plain directory. Nothing leads out.
pub(super) fn check_file_name(name: &str) -> Result<(), String> {
    let parts: Vec<&str> = name.split('/').collect();
    if parts.len() > 2 {
        return Err(format!("names the file {}, which is more than one directory deep", shown(name)));
    }
    for part in parts {
        check_run_name(part).map_err(|error| format!("names the file {}: {error}", shown(name)))?;
    }
    match name == MANIFEST {
        true => Err("lists itself".to_string()),
        false => Ok(()),
    }
}
