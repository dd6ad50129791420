//! Tokens in memory.

use std::path::PathBuf;

use candle_core::Device;
use serde_json::{Value, json};
use tenterhook_hooks::Batch;

use super::fingerprint::Fnv;
use super::{DataError, Dataset, blocks};

/// One long sequence of tokens in memory, cut into examples of `block` tokens.
#[derive(Clone, Debug)]
pub struct TokenStream {
    tokens: Tokens,
    block: usize,
    examples: u64,
    /// Ids that may occur, though they need not be in this text.
    vocab: u64,
    sources: Vec<Value>,
}

/// Bytes stay bytes: text by byte would take four times its size otherwise.
#[derive(Clone, Debug)]
pub(super) enum Tokens {
    Bytes(Vec<u8>),
    Ids(Vec<u32>),
}

impl Tokens {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Ids(ids) => ids.len(),
        }
    }
}

impl TokenStream {
    /// A stream of these tokens. One that is too short for an example is an error.
    pub fn new(tokens: Vec<u32>, block: usize) -> Result<Self, DataError> {
        Self::with_sources(Tokens::Ids(tokens), block, 0, &[], Vec::new())
    }

    /// The same, of files and what is known about them. The vocabulary is at least `vocab`.
    pub(super) fn with_sources(
        tokens: Tokens,
        block: usize,
        vocab: u64,
        paths: &[PathBuf],
        sources: Vec<Value>,
    ) -> Result<Self, DataError> {
        let names: Vec<String> = paths.iter().map(|path| format!("`{}`", path.display())).collect();
        let name = if names.is_empty() { "the token stream".to_string() } else { names.join(" with ") };
        let examples = blocks::example_count(tokens.len() as u64, block, &name)?;
        let largest = match &tokens {
            Tokens::Bytes(_) => 255,
            Tokens::Ids(ids) => ids.iter().copied().max().unwrap_or(0),
        };
        Ok(Self { tokens, block, examples, vocab: vocab.max(u64::from(largest) + 1), sources })
    }
}

impl Dataset for TokenStream {
    fn len(&self) -> u64 {
        self.examples
    }

    fn batch(&self, indices: &[u64], device: &Device) -> Result<Batch, DataError> {
        blocks::batch(indices, self.examples, self.block, device, |index, rows| {
            let start = index as usize * self.block; // inside the stream, as the example exists
            let range = start..start + self.block + 1;
            match &self.tokens {
                Tokens::Ids(ids) => rows.push(&ids[range], 0),
                Tokens::Bytes(bytes) => {
                    let ids: Vec<u32> = bytes[range].iter().map(|byte| u32::from(*byte)).collect();
                    rows.push(&ids, 0);
                }
            }
        })
    }

    fn fingerprint(&self) -> Value {
        // Of the tokens, not only of the files: another tokenizer makes other data.
        let mut hash = Fnv::new();
        match &self.tokens {
            Tokens::Bytes(bytes) => bytes.iter().for_each(|byte| hash.add(u64::from(*byte))),
            Tokens::Ids(ids) => ids.iter().for_each(|id| hash.add(u64::from(*id))),
        }
        json!({
            "kind": "token_stream",
            "block": self.block,
            "tokens": self.tokens.len(),
            "tokens_fnv1a": hash.hex(),
            "files": self.sources,
        })
    }

    fn vocab(&self) -> Option<u64> {
        Some(self.vocab)
    }

    fn sequence_length(&self) -> Option<usize> {
        Some(self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(batch: &Batch) -> (Vec<Vec<u32>>, Vec<Vec<i64>>) {
        let inputs = batch.get("inputs").unwrap().to_vec2().unwrap();
        (inputs, batch.get("targets").unwrap().to_vec2().unwrap())
    }

    #[test]
    fn inputs_are_the_first_tokens_and_targets_the_last() {
        let stream = TokenStream::new((10..20).collect(), 3).unwrap();
        assert_eq!((stream.len(), stream.vocab(), stream.sequence_length()), (3, Some(20), Some(3)));
        let batch = stream.batch(&[2, 0], &Device::Cpu).unwrap();
        let (inputs, targets) = rows(&batch);
        assert_eq!(inputs, [[16, 17, 18], [10, 11, 12]]);
        assert_eq!(targets, [[17, 18, 19], [11, 12, 13]]);
        assert_eq!(batch.examples(), [2, 0]);
        assert_eq!(batch.token_count(), 6);
    }

    #[test]
    fn bytes_and_ids_give_the_same_examples() {
        let bytes = b"to be or not to be".to_vec();
        let ids = bytes.iter().map(|byte| u32::from(*byte)).collect();
        let by_byte = TokenStream::with_sources(Tokens::Bytes(bytes), 5, 0, &[], Vec::new()).unwrap();
        let by_id = TokenStream::new(ids, 5).unwrap();
        let all = |stream: &TokenStream| rows(&stream.batch(&[0, 1, 2], &Device::Cpu).unwrap());
        assert_eq!(all(&by_byte), all(&by_id));
        assert_eq!((by_byte.vocab(), by_id.vocab()), (Some(256), Some(u64::from(b't') + 1)));
        assert_eq!(by_byte.fingerprint(), by_id.fingerprint());
    }

    #[test]
    fn too_little_and_too_far_are_errors() {
        let error = TokenStream::new(vec![1; 4], 4).unwrap_err().to_string();
        assert!(error.starts_with("the token stream has 4 tokens, and an example of `block = 4`"), "{error}");
        let error = TokenStream::new(vec![1; 9], 4).unwrap().batch(&[0, 2], &Device::Cpu).unwrap_err();
        assert_eq!(error.to_string(), "there is no example 2: the data set has 2");
    }
}
