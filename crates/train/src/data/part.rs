//! A stretch of a data set.

use candle_core::Device;
use serde_json::{Value, json};
use tenterhook_hooks::Batch;

use super::{DataError, Dataset};

/// Examples in a row of another set: the front of a file for training, its end for validation.
pub struct Part {
    whole: Box<dyn Dataset>,
    first: u64,
    len: u64,
}

impl Part {
    /// The first `share` of the examples, rounded.
    pub fn front(whole: Box<dyn Dataset>, share: f64) -> Self {
        let len = Self::cut(whole.len(), share);
        Self { whole, first: 0, len }
    }

    /// What [`Part::front`] of the same share leaves.
    pub fn rest(whole: Box<dyn Dataset>, share: f64) -> Self {
        let first = Self::cut(whole.len(), share);
        Self { len: whole.len() - first, whole, first }
    }

    fn cut(len: u64, share: f64) -> u64 {
        ((len as f64 * share).round() as u64).min(len)
    }
}

impl Dataset for Part {
    fn len(&self) -> u64 {
        self.len
    }

    fn batch(&self, indices: &[u64], device: &Device) -> Result<Batch, DataError> {
        if let Some(index) = indices.iter().copied().find(|index| *index >= self.len) {
            return Err(DataError::NoExample { index, len: self.len });
        }
        let shifted: Vec<u64> = indices.iter().map(|index| self.first + index).collect();
        self.whole.batch(&shifted, device)
    }

    fn fingerprint(&self) -> Value {
        json!({"kind": "part", "first": self.first, "examples": self.len, "of": self.whole.fingerprint()})
    }

    fn vocab(&self) -> Option<u64> {
        self.whole.vocab()
    }

    fn sequence_length(&self) -> Option<usize> {
        self.whole.sequence_length()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::TokenStream;

    #[test]
    fn both_parts_together_are_the_whole() {
        for (examples, share) in [(10u32, 0.9), (7, 0.5), (3, 0.01), (3, 0.99), (1000, 1.0 / 3.0)] {
            let whole = || Box::new(TokenStream::new((0..=examples).collect(), 1).unwrap());
            let parts = [Part::front(whole(), share), Part::rest(whole(), share)];
            let mut all = Vec::new();
            for part in &parts {
                let indices: Vec<u64> = (0..part.len()).collect();
                if !part.is_empty() {
                    all.extend(part.batch(&indices, &Device::Cpu).unwrap().examples().to_vec());
                }
                let beyond = part.batch(&[part.len()], &Device::Cpu);
                assert!(matches!(beyond, Err(DataError::NoExample { .. })));
            }
            assert!(all.into_iter().eq(0..u64::from(examples)), "{examples} examples cut at {share}");
            assert_ne!(parts[0].fingerprint(), parts[1].fingerprint());
        }
    }
}
