//! Plain text.

use std::path::PathBuf;

use super::files::{LARGEST_TEXT, open_regular, read_bounded};
use super::stream::Tokens;
use super::{DataError, Encode, TokenStream, fingerprint};

impl TokenStream {
    /// The text of these files, one after the other, through a tokenizer or, without one, by byte.
    ///
    /// By byte, any content is fine and the vocabulary is 256. A tokenizer needs valid UTF-8 in every file.
    pub fn from_text(paths: &[PathBuf], block: usize, encode: Option<&Encode>) -> Result<Self, DataError> {
        let mut sources = Vec::new();
        let mut left = LARGEST_TEXT;
        let (mut all_bytes, mut ids) = (Vec::new(), Vec::new());
        for path in paths {
            let (mut file, length) = open_regular(path)?;
            sources.push(fingerprint::of_file(path, &mut file, length).map_err(DataError::io(path))?);
            let bytes = read_bounded(path, &mut file, left)?;
            left -= bytes.len() as u64;
            let Some(encode) = encode else {
                all_bytes.extend(bytes);
                continue;
            };
            let text = String::from_utf8(bytes).map_err(|error| DataError::Utf8 {
                path: path.clone(),
                offset: error.utf8_error().valid_up_to() as u64,
            })?;
            let place = || format!("`{}`", path.display());
            ids.extend(encode(&text).map_err(|source| DataError::Encode { place: place(), source })?);
        }
        let tokens = if encode.is_some() { Tokens::Ids(ids) } else { Tokens::Bytes(all_bytes) };
        Self::with_sources(tokens, block, 0, paths, sources)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::data::Dataset;

    fn files(contents: &[&[u8]]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..contents.len()).map(|i| dir.path().join(format!("{i}.txt"))).collect();
        for (path, content) in paths.iter().zip(contents) {
            std::fs::write(path, content).unwrap();
        }
        (dir, paths)
    }

    fn inputs(stream: &TokenStream) -> Vec<Vec<u32>> {
        let all: Vec<u64> = (0..stream.len()).collect();
        stream.batch(&all, &Device::Cpu).unwrap().get("inputs").unwrap().to_vec2().unwrap()
    }

    #[test]
    fn files_are_joined_byte_by_byte() {
        let (_dir, paths) = files(&[b"ab\xff", b"cde"]);
        let stream = TokenStream::from_text(&paths, 2, None).unwrap();
        assert_eq!(inputs(&stream), [[97, 98], [255, 99]]);
        assert_eq!(stream.vocab(), Some(256));
        assert_eq!(stream.fingerprint()["files"][1]["file"], "1.txt");
    }

    #[test]
    fn a_tokenizer_makes_the_ids() {
        let (_dir, paths) = files(&["ä b ccc dddd".as_bytes()]);
        let lengths = |text: &str| Ok(text.split(' ').map(|word| word.chars().count() as u32).collect());
        let stream = TokenStream::from_text(&paths, 3, Some(&lengths)).unwrap();
        assert_eq!(inputs(&stream), [[1, 1, 3]]);
        assert_eq!(stream.vocab(), Some(5));
        let same_files_by_byte = TokenStream::from_text(&paths, 3, None).unwrap();
        assert_ne!(stream.fingerprint(), same_files_by_byte.fingerprint());
    }

    #[test]
    fn errors_name_the_file_and_the_place() {
        let (_dir, paths) = files(&[b"fine text", b"bad \xe4 text", b""]);
        let fails = |paths: &[PathBuf], encode: Option<&Encode>, part: &str| {
            let error = TokenStream::from_text(paths, 4, encode).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        let ids = |text: &str| Ok(text.bytes().map(u32::from).collect());
        let failing = |_: &str| Err("no vocabulary".into());
        fails(&paths[..2], Some(&ids), "byte 4 of ");
        fails(&paths[..2], Some(&ids), "1.txt` is not valid UTF-8; convert the file");
        fails(&paths[..1], Some(&failing), "0.txt`: no vocabulary");
        fails(&paths[2..], None, "2.txt` has 0 tokens");
        fails(&[paths[0].with_file_name("none.txt")], None, "none.txt");
    }
}
