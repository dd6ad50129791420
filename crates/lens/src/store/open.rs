//! Finding out what a run has.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use safetensors::Dtype;
use serde_json::Map;
use tenterhook_models::files::TensorReader;

use super::error::StoreError;
use super::layout::{BATCHES, HEAD, Head, LENGTHS, LINES, ShardLine, TOKENS, shard_number, shard_path};

const LARGEST_HEAD: u64 = 16 << 20;
const LONGEST_LINE: u64 = 1 << 10;

/// What a run has, as its files say.
pub(super) struct Scan {
    pub(super) head: Head,
    pub(super) shards: Vec<ShardLine>,
    /// How many of the shards have a line.
    pub(super) listed: usize,
    /// The bytes of the lines that are whole.
    pub(super) good_bytes: u64,
}

impl Scan {
    /// A run without anything.
    pub(super) fn empty(about: Map<String, serde_json::Value>) -> Self {
        Self { head: Head::new(about), shards: Vec::new(), listed: 0, good_bytes: 0 }
    }

    /// Of a run's directory. Every shard is there, with the length its line has; nothing in it has been read.
    pub(super) fn of(dir: &Path) -> Result<Self, StoreError> {
        let head = read_head(dir)?;
        // In this order: a writer may be at work, and a shard is there before its line is.
        let (mut shards, good_bytes) = read_lines(dir)?;
        let files = shard_files(dir)?;
        let listed = shards.len();
        for line in &shards {
            let path = shard_path(dir, line.shard);
            match files.get(&line.shard) {
                None => return Err(StoreError::damaged(&path, format!("is missing: {LINES} lists it"))),
                Some(bytes) if *bytes != line.bytes => {
                    let problem = format!(
                        "has {bytes} bytes, {LINES} says {}: it is cut short or was changed",
                        line.bytes
                    );
                    return Err(StoreError::damaged(&path, problem));
                }
                Some(_) => {}
            }
        }
        for (number, bytes) in files.range(listed as u64..) {
            let path = shard_path(dir, shards.len() as u64);
            if *number != shards.len() as u64 {
                return Err(StoreError::damaged(&path, "is missing: there are shards of higher numbers"));
            }
            shards.push(outline(&path, *number, *bytes)?);
        }
        Ok(Self { head, shards, listed, good_bytes })
    }
}

/// The runs of a store.
pub(super) fn runs_in(base: &Path) -> Result<Vec<String>, StoreError> {
    let entries = match fs::read_dir(base) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(StoreError::io("list", base))?,
    };
    let mut runs = Vec::new();
    for entry in entries {
        let entry = entry.map_err(StoreError::io("list", base))?;
        if entry.path().join(HEAD).is_file()
            && let Some(name) = entry.file_name().to_str()
        {
            runs.push(name.to_string());
        }
    }
    runs.sort();
    Ok(runs)
}

fn read_head(dir: &Path) -> Result<Head, StoreError> {
    let path = dir.join(HEAD);
    let mut text = Vec::new();
    let file = File::open(&path).map_err(StoreError::io("read", &path))?;
    file.take(LARGEST_HEAD + 1).read_to_end(&mut text).map_err(StoreError::io("read", &path))?;
    if text.len() as u64 > LARGEST_HEAD {
        return Err(StoreError::damaged(&path, format!("is larger than {LARGEST_HEAD} bytes")));
    }
    let head: Head = serde_json::from_slice(&text)
        .map_err(|error| StoreError::damaged(&path, format!("is not the index of a run: {error}")))?;
    head.check().map_err(|problem| StoreError::damaged(&path, problem))?;
    Ok(head)
}

/// The shards there are, with their bytes.
fn shard_files(dir: &Path) -> Result<BTreeMap<u64, u64>, StoreError> {
    let io = || StoreError::io("list", dir);
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(io())? {
        let entry = entry.map_err(io())?;
        if let Some(number) = entry.file_name().to_str().and_then(shard_number) {
            files.insert(
                number,
                fs::metadata(entry.path()).map_err(StoreError::io("read", &entry.path()))?.len(),
            );
        }
    }
    Ok(files)
}

/// The lines up to the first that is not whole: a killed writer or a power cut ends them anywhere, and the shards say the same.
fn read_lines(dir: &Path) -> Result<(Vec<ShardLine>, u64), StoreError> {
    let path = dir.join(LINES);
    let (mut shards, mut good_bytes) = (Vec::new(), 0);
    let mut lines = match File::open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((shards, good_bytes)),
        file => BufReader::new(file.map_err(StoreError::io("read", &path))?),
    };
    let mut line = Vec::new();
    loop {
        line.clear();
        lines
            .by_ref()
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line)
            .map_err(StoreError::io("read", &path))?;
        match serde_json::from_slice::<ShardLine>(&line) {
            Ok(parsed) if line.ends_with(b"\n") && parsed.shard == shards.len() as u64 => shards.push(parsed),
            _ => return Ok((shards, good_bytes)),
        }
        good_bytes += line.len() as u64;
    }
}

/// What a shard holds, by its header.
fn outline(path: &Path, shard: u64, bytes: u64) -> Result<ShardLine, StoreError> {
    let file = TensorReader::open(path)?;
    let count = |name: &str| match file.info(name) {
        Some((Dtype::I64, [count])) => Ok(*count as u64),
        _ => Err(StoreError::damaged(path, format!("has no `{name}` of type I64 and one axis"))),
    };
    Ok(ShardLine { shard, bytes, rows: count(TOKENS)?, sequences: count(LENGTHS)?, batches: count(BATCHES)? })
}
