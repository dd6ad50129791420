//! Small files, read whole and never past a limit.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::ModelError;

/// Opens a regular file. Anything else that has a name (a directory, a pipe that would block) is refused.
pub(crate) fn open_regular(path: &Path) -> Result<(File, u64), ModelError> {
    let metadata = std::fs::metadata(path).map_err(ModelError::io("read", path))?;
    if !metadata.is_file() {
        return Err(ModelError::damaged(path, "is not a regular file"));
    }
    let file = File::open(path).map_err(ModelError::io("read", path))?;
    Ok((file, metadata.len()))
}

/// The bytes of a file of at most `limit` bytes.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>, ModelError> {
    let (file, length) = open_regular(path)?;
    let too_long = || ModelError::damaged(path, format!("is larger than the {limit} bytes allowed"));
    if length > limit {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    // The limit holds even if the file grows while it is read.
    file.take(limit + 1).read_to_end(&mut bytes).map_err(ModelError::io("read", path))?;
    if bytes.len() as u64 > limit { Err(too_long()) } else { Ok(bytes) }
}

/// A JSON file of at most `limit` bytes.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, limit: u64) -> Result<T, ModelError> {
    let bytes = read_bounded(path, limit)?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        ModelError::damaged(
            path,
            format!("is not UTF-8: invalid byte in line {line} (byte {})", before.len()),
        )
    })?;
    // The parser's own message ends with the line and column.
    serde_json::from_str(text)
        .map_err(|error| ModelError::damaged(path, format!("is not valid JSON: {error}")))
}

/// A JSON file of at most `limit` bytes, as it stands.
pub fn read_json_file(path: &Path, limit: u64) -> Result<serde_json::Value, ModelError> {
    read_json(path, limit)
}
