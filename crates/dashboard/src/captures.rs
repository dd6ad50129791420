//! Captured tensors.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::StartError;

/// Whether there is a directory to show.
pub(crate) fn check_dir(dir: &Path) -> Result<(), StartError> {
    let wrong = |problem: String| StartError::Captures { path: dir.to_path_buf(), problem };
    fs::read_dir(dir).map(drop).map_err(|error| wrong(error.to_string()))
}

/// The safetensors files in a directory, by name.
pub(crate) fn list_files(dir: &Path) -> Vec<Value> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<(String, u64)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok().filter(|name| name.ends_with(".safetensors"))?;
            let about = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((name, about.len()))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(name, bytes)| json!({ "file": name, "bytes": bytes })).collect()
}
