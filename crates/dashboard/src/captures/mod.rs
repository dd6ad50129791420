//! Captured tensors: which files there are, what is in them, and a picture's worth of one.
//!
//! Files are read, not mapped: one that somebody cuts short while it is mapped would end the process, and a run with it.

mod file;
mod tensor;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::StartError;
use crate::error::Refusal;
use crate::places;

pub(crate) use file::{CaptureFile, natural};
pub(crate) use tensor::picture;

const ENDING: &str = ".safetensors";
/// The most files that are listed.
const MOST_FILES: usize = 5000;

/// Whether there is a directory to show.
pub(crate) fn check_dir(dir: &Path) -> Result<(), StartError> {
    let wrong = |problem: String| StartError::Captures { path: dir.to_path_buf(), problem };
    fs::read_dir(dir).map(drop).map_err(|error| wrong(error.to_string()))
}

/// The safetensors files in a directory, by name.
pub(crate) fn list_files(dir: &Path) -> Vec<Value> {
    files_in(dir).into_iter().map(|(name, bytes)| json!({ "file": name, "bytes": bytes })).collect()
}

/// The same with those one directory below, where stores have their shards.
pub(crate) fn list_all(dir: &Path) -> Vec<Value> {
    let mut found = list_files(dir);
    for store in names_in(dir) {
        let Some(path) = places::dir_in(dir, &store) else { continue };
        let files = files_in(&path).into_iter();
        found.extend(files.map(
            |(name, bytes)| json!({ "file": format!("{store}/{name}"), "bytes": bytes, "store": store }),
        ));
        if found.len() >= MOST_FILES {
            break;
        }
    }
    found.truncate(MOST_FILES);
    found
}

/// A file of a directory by its plain name, or by that of a directory in it and its own.
pub(crate) fn find(dir: &Path, name: &str) -> Result<PathBuf, Refusal> {
    let found = match name.split_once('/') {
        Some((store, name)) => places::dir_in(dir, store).and_then(|store| places::file_in(&store, name)),
        None => places::file_in(dir, name),
    };
    let missing = || Refusal::not_found("there is no such file of captured tensors");
    found.filter(|_| name.ends_with(ENDING)).ok_or_else(missing)
}

fn files_in(dir: &Path) -> Vec<(String, u64)> {
    let files = names_in(dir).into_iter().filter(|name| name.ends_with(ENDING)).filter_map(|name| {
        let bytes = fs::metadata(places::file_in(dir, &name)?).ok()?.len();
        Some((name, bytes))
    });
    files.take(MOST_FILES).collect()
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}
