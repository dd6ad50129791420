//! Text to token ids and back, through the tokenizer a model came with.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;

use crate::error::ModelError;
use crate::files::{LARGEST_TOKENIZER, read_bounded};

/// A `tokenizer.json`, loaded.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Loads a `tokenizer.json`.
    pub fn load(path: &Path) -> Result<Self, ModelError> {
        let bytes = read_bounded(path, LARGEST_TOKENIZER)?;
        let inner = is_json(&bytes).and_then(|()| caught(|| tokenizers::Tokenizer::from_bytes(bytes)));
        let mut inner = inner.map_err(|error| failure(path, "is not a tokenizer", error))?;
        // Some files say how one sentence was once cut and padded. A text is all of its tokens.
        let whole = inner.with_truncation(None).map(|inner| inner.with_padding(None));
        whole.map_err(|error| failure(path, "cannot be used", error))?;
        Ok(Self { path: path.to_path_buf(), inner })
    }

    /// The ids of a text; `special` adds what the model expects around it (a beginning-of-text token, say).
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, ModelError> {
        let encoding = caught(|| self.inner.encode(text, special))
            .map_err(|error| failure(&self.path, "cannot encode this text", error))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of ids, special tokens left out.
    pub fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        caught(|| self.inner.decode(ids, true))
            .map_err(|error| failure(&self.path, "cannot decode these ids", error))
    }

    /// The text of one token, special ones by their name. A part of a character is shown as the replacement character.
    pub fn token_text(&self, id: u32) -> Result<String, ModelError> {
        let text = self.inner.decode(&[id], false);
        text.map_err(|error| failure(&self.path, "cannot decode this id", error))
    }

    /// One more than the largest id: the rows that an embedding needs. Ids may have gaps.
    pub(crate) fn id_bound(&self) -> usize {
        let largest = self.inner.get_vocab(true).into_values().max();
        largest.map_or(0, |id| id as usize + 1)
    }

    /// The number of ids, added tokens included. A model may have rows for more.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}

/// The crate behind this panics on some files that are not JSON to their end.
fn is_json(bytes: &[u8]) -> tokenizers::Result<()> {
    serde_json::from_str::<IgnoredAny>(std::str::from_utf8(bytes)?)?;
    Ok(())
}

/// A file that is JSON and still nonsense can make it panic later too.
fn caught<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("it makes the tokenizer panic".into()))
}

fn failure(path: &Path, what: &str, error: tokenizers::Error) -> ModelError {
    ModelError::Tokenizer { path: path.to_path_buf(), problem: format!("{what}: {error}") }
}
