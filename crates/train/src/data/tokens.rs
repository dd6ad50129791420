//! Token files as nanoGPT writes them.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use candle_core::Device;
use memmap2::Mmap;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenterhook_hooks::Batch;

use super::files::open_regular;
use super::{DataError, Dataset, blocks, fingerprint};

/// A multiple of every token's width, small enough that all cores get some of a small file.
const SCANNED_AT_ONCE: usize = 1 << 20;

/// How a token lies in a file, lowest byte first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenType {
    /// Two bytes: ids up to 65535.
    #[default]
    Uint16,
    /// Four bytes.
    Uint32,
}

impl TokenType {
    fn width(self) -> usize {
        match self {
            Self::Uint16 => 2,
            Self::Uint32 => 4,
        }
    }

    /// `bytes` is a whole number of tokens.
    fn decode(self, bytes: &[u8]) -> impl Iterator<Item = u32> {
        let width = self.width();
        bytes.chunks_exact(width).map(|token| match *token {
            [a, b] => u32::from(u16::from_le_bytes([a, b])),
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
            _ => 0, // no such width
        })
    }

    fn largest(self, bytes: &[u8]) -> u32 {
        // A loop per width, so that it is vectorised: files are large.
        match self {
            Self::Uint16 => {
                let (tokens, _) = bytes.as_chunks();
                u32::from(tokens.iter().fold(0, |most, token| u16::from_le_bytes(*token).max(most)))
            }
            Self::Uint32 => {
                let (tokens, _) = bytes.as_chunks();
                tokens.iter().fold(0, |most, token| u32::from_le_bytes(*token).max(most))
            }
        }
    }
}

/// A headerless file of tokens, mapped into memory: it may be larger than the memory is. It must not be shortened while it is in use.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    bytes: Mmap,
    dtype: TokenType,
    block: usize,
    examples: u64,
    fingerprint: Value,
    largest: OnceLock<u32>,
}

impl TokenFile {
    /// Opens the file. One that is empty, cut within a token, or too short for an example is an error.
    pub fn open(path: &Path, dtype: TokenType, block: usize) -> Result<Self, DataError> {
        let (mut file, length) = open_regular(path)?;
        let width = dtype.width() as u64;
        if !length.is_multiple_of(width) {
            return Err(DataError::TornToken { path: path.to_path_buf(), bytes: length, width });
        }
        let examples = blocks::example_count(length / width, block, &format!("`{}`", path.display()))?;
        let mut fingerprint = fingerprint::of_file(path, &mut file, length).map_err(DataError::io(path))?;
        fingerprint["kind"] = "tokens".into();
        fingerprint["dtype"] = format!("uint{}", 8 * width).into();
        fingerprint["block"] = block.into();
        // SAFETY: the mapping is only ever read as plain bytes, for which any content is valid. Like every
        // mapped file it must not be cut short by others while it is in use.
        let bytes = unsafe { Mmap::map(&file) }.map_err(DataError::io(path))?;
        if (bytes.len() as u64) < length {
            let error = std::io::Error::other("it became shorter while it was opened");
            return Err(DataError::io(path)(error));
        }
        let path = path.to_path_buf();
        Ok(Self { path, bytes, dtype, block, examples, fingerprint, largest: OnceLock::new() })
    }

    /// Reads the whole file once, on all cores, and names the first token that is not in the vocabulary.
    pub fn check_vocab(&self, vocab: u64) -> Result<(), DataError> {
        let outside = |token: u32| u64::from(token) >= vocab;
        let largest = *self.largest.get_or_init(|| {
            let pieces = self.bytes.par_chunks(SCANNED_AT_ONCE);
            pieces.map(|piece| self.dtype.largest(piece)).max().unwrap_or(0)
        });
        if !outside(largest) {
            return Ok(());
        }
        let found = self.bytes.par_chunks(SCANNED_AT_ONCE).enumerate().find_map_first(|(i, piece)| {
            let (at, token) = self.dtype.decode(piece).enumerate().find(|(_, token)| outside(*token))?;
            Some(((i * SCANNED_AT_ONCE / self.dtype.width() + at) as u64, token))
        });
        match found {
            Some((position, token)) => {
                Err(DataError::TokenOutsideVocab { path: self.path.clone(), position, token, vocab })
            }
            None => Ok(()),
        }
    }
}

impl Dataset for TokenFile {
    fn len(&self) -> u64 {
        self.examples
    }

    fn batch(&self, indices: &[u64], device: &Device) -> Result<Batch, DataError> {
        let width = self.dtype.width();
        let mut tokens = Vec::with_capacity(self.block + 1);
        blocks::batch(indices, self.examples, self.block, device, |index, rows| {
            let start = index as usize * self.block * width; // inside the file, as the example exists
            tokens.clear();
            tokens.extend(self.dtype.decode(&self.bytes[start..start + (self.block + 1) * width]));
            rows.push(&tokens, 0);
        })
    }

    fn fingerprint(&self) -> Value {
        self.fingerprint.clone()
    }

    /// Known after [`TokenFile::check_vocab`].
    fn vocab(&self) -> Option<u64> {
        self.largest.get().map(|largest| u64::from(*largest) + 1)
    }

    fn sequence_length(&self) -> Option<usize> {
        Some(self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::TokenStream;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train.bin");
        std::fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    fn encoded(tokens: impl IntoIterator<Item = u32>, dtype: TokenType) -> Vec<u8> {
        tokens.into_iter().flat_map(|token| token.to_le_bytes()[..dtype.width()].to_vec()).collect()
    }

    #[test]
    fn both_types_give_the_examples_of_the_same_tokens_in_memory() {
        for (dtype, spread) in [(TokenType::Uint16, 613), (TokenType::Uint32, 70_001)] {
            let tokens: Vec<u32> = (0..101).map(|i| i * spread).collect();
            let (_dir, path) = file(&encoded(tokens.clone(), dtype));
            let mapped = TokenFile::open(&path, dtype, 7).unwrap();
            let held = TokenStream::new(tokens, 7).unwrap();
            assert_eq!(mapped.len(), held.len());
            let all: Vec<u64> = (0..mapped.len()).rev().collect();
            let [a, b] = [&mapped as &dyn Dataset, &held].map(|set| set.batch(&all, &Device::Cpu).unwrap());
            let inputs = |batch: &Batch| batch.get("inputs").unwrap().to_vec2::<u32>().unwrap();
            let targets = |batch: &Batch| batch.get("targets").unwrap().to_vec2::<i64>().unwrap();
            assert_eq!((inputs(&a), targets(&a)), (inputs(&b), targets(&b)));
            assert_eq!(targets(&a)[0][6], i64::from(98 * spread));
        }
    }

    #[test]
    fn damaged_files_are_named_with_the_way_out() {
        let check = |bytes: &[u8], dtype, block, part: &str| {
            let (_dir, path) = file(bytes);
            let error = TokenFile::open(&path, dtype, block).unwrap_err().to_string();
            assert!(error.contains("train.bin") && error.contains(part), "{error}");
        };
        check(&[], TokenType::Uint16, 4, "has 0 tokens");
        check(&[1, 0, 2], TokenType::Uint16, 1, "has 3 bytes, which is no multiple of the 2 bytes");
        check(&[0; 10], TokenType::Uint32, 1, "has 10 bytes, which is no multiple of the 4 bytes");
        check(&[0; 8], TokenType::Uint16, 4, "has 4 tokens, and an example of `block = 4`");
        check(&[0; 8], TokenType::Uint16, usize::MAX, "use a smaller `block`");
        check(&[0; 8], TokenType::Uint16, 0, "`block` is 0");
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(TokenFile::open(dir.path(), TokenType::Uint16, 4), Err(DataError::NotAFile(_))));
    }

    #[test]
    fn the_first_token_outside_the_vocabulary_is_named() {
        // More than two pieces, and wrong tokens in two of them.
        let mut tokens = vec![3u32; 3 * SCANNED_AT_ONCE / 2];
        (tokens[600_000], tokens[1_200_000]) = (50_300, 60_000);
        let (_dir, path) = file(&encoded(tokens, TokenType::Uint16));
        let set = TokenFile::open(&path, TokenType::Uint16, 8).unwrap();
        assert_eq!(set.vocab(), None);
        let error = set.check_vocab(50_257).unwrap_err().to_string();
        assert!(
            error.starts_with("token 600000 of ")
                && error.contains("is 50300, and the vocabulary ends at 50256")
        );
        let found = set.check_vocab(50_301);
        assert!(matches!(
            found,
            Err(DataError::TokenOutsideVocab { position: 1_200_000, token: 60_000, .. })
        ));
        assert!(set.check_vocab(60_001).is_ok());
        assert_eq!(set.vocab(), Some(60_001));
    }

    #[test]
    fn the_fingerprint_has_what_makes_the_examples() {
        let (_dir, path) = file(&[0; 64]);
        let of = |dtype, block| TokenFile::open(&path, dtype, block).unwrap().fingerprint();
        let one = of(TokenType::Uint16, 4);
        assert_eq!(
            (&one["file"], &one["bytes"], &one["dtype"]),
            (&"train.bin".into(), &64.into(), &"uint16".into())
        );
        assert_ne!(one, of(TokenType::Uint16, 5));
        assert_ne!(one, of(TokenType::Uint32, 4));
    }
}
