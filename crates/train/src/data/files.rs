//! Opening data files with care.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::DataError;

/// The most that is read into memory.
pub(super) const LARGEST_TEXT: u64 = 8 << 30;

/// A regular file and its length. Directories, pipes and devices are refused: they could block, or never end.
pub(super) fn open_regular(path: &Path) -> Result<(File, u64), DataError> {
    let facts = std::fs::metadata(path).map_err(DataError::io(path))?;
    if !facts.is_file() {
        return Err(DataError::NotAFile(path.to_path_buf()));
    }
    let file = File::open(path).map_err(DataError::io(path))?;
    Ok((file, facts.len()))
}

/// All bytes of a file, as long as there are no more than `limit`.
pub(super) fn read_bounded(path: &Path, file: &mut File, limit: u64) -> Result<Vec<u8>, DataError> {
    let too_large = || DataError::TooLarge { path: path.to_path_buf(), limit };
    let length = file.metadata().map_err(DataError::io(path))?.len();
    if length > limit {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(length as usize);
    // It may grow while it is read.
    file.by_ref().take(limit + 1).read_to_end(&mut bytes).map_err(DataError::io(path))?;
    if bytes.len() as u64 > limit { Err(too_large()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = open_regular(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("is not a regular file; `path` must name one"), "{error}");
        let missing = open_regular(&dir.path().join("none.bin")).unwrap_err().to_string();
        assert!(missing.contains("none.bin") && missing.contains("check the data set's `path`"), "{missing}");
    }

    #[test]
    fn the_limit_holds_and_a_sparse_giant_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text.txt");
        std::fs::write(&path, "12345").unwrap();
        let read = |limit| read_bounded(&path, &mut File::open(&path).unwrap(), limit);
        assert_eq!(read(5).unwrap(), b"12345");
        assert!(matches!(read(4), Err(DataError::TooLarge { limit: 4, .. })));
        let giant = File::create(dir.path().join("giant.txt")).unwrap();
        giant.set_len(LARGEST_TEXT + 1).unwrap();
        let path = dir.path().join("giant.txt");
        let refused = read_bounded(&path, &mut File::open(&path).unwrap(), LARGEST_TEXT);
        assert!(matches!(refused, Err(DataError::TooLarge { .. })));
    }
}
