//! Examples of token streams: example i is `tokens[i*block ..= i*block + block]`.

use candle_core::{Device, Tensor};
use tenterhook_hooks::{Batch, IGNORED};

use super::DataError;

/// More tokens in one batch than this is a mistake in the configuration; better said than tried.
const MOST_TOKENS: usize = 1 << 30;

/// How many examples of `block` tokens, and one more to predict, a stream has. None at all is an error.
pub(super) fn example_count(tokens: u64, block: usize, source: &str) -> Result<u64, DataError> {
    if block == 0 {
        return DataError::options(source, vec!["`block` is 0; use at least 1".to_string()]).map(|()| 0);
    }
    match tokens.saturating_sub(1) / block as u64 {
        0 => Err(DataError::TooShort { source_name: source.to_string(), tokens, block }),
        examples => Ok(examples),
    }
}

/// Rows of inputs and targets that become a batch.
pub(super) struct Rows {
    inputs: Vec<u32>,
    targets: Vec<i64>,
}

impl Rows {
    /// A row takes the tokens of one example, one more than its inputs. The first `ignored` targets do not count.
    pub(super) fn push(&mut self, tokens: &[u32], ignored: usize) {
        let (Some((_, targets)), Some((_, inputs))) = (tokens.split_first(), tokens.split_last()) else {
            return;
        };
        self.inputs.extend_from_slice(inputs);
        let ids = targets.iter().map(|id| i64::from(*id));
        self.targets.extend(ids.enumerate().map(|(i, id)| if i < ignored { IGNORED } else { id }));
    }
}

/// A batch of these examples, each of `block` positions, which `fill` pushes as one row each.
pub(super) fn batch(
    indices: &[u64],
    len: u64,
    block: usize,
    device: &Device,
    mut fill: impl FnMut(u64, &mut Rows),
) -> Result<Batch, DataError> {
    if let Some(index) = indices.iter().copied().find(|index| *index >= len) {
        return Err(DataError::NoExample { index, len });
    }
    let tokens = indices.len().checked_mul(block).filter(|tokens| *tokens <= MOST_TOKENS);
    let tokens = tokens.ok_or(DataError::BatchTooLarge { examples: indices.len(), block })?;
    let mut rows = Rows { inputs: Vec::with_capacity(tokens), targets: Vec::with_capacity(tokens) };
    indices.iter().for_each(|index| fill(*index, &mut rows));
    let shape = (indices.len(), block);
    let inputs = Tensor::from_vec(rows.inputs, shape, device)?;
    let targets = Tensor::from_vec(rows.targets, shape, device)?;
    Ok(Batch::tokens(inputs, targets, indices.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_share_only_the_token_between_them() {
        for (tokens, block, want) in [(5, 4, 1), (8, 4, 1), (9, 4, 2), (2, 1, 1), (101, 10, 10), (100, 10, 9)]
        {
            assert_eq!(
                example_count(tokens, block, "x").unwrap(),
                want,
                "{tokens} tokens in blocks of {block}"
            );
        }
        for (tokens, block) in [(0, 4), (4, 4), (1, 1), (100, usize::MAX)] {
            assert!(matches!(example_count(tokens, block, "x"), Err(DataError::TooShort { .. })));
        }
        assert!(matches!(example_count(9, 0, "x"), Err(DataError::Options { .. })));
    }

    #[test]
    fn absurd_batches_are_refused_before_memory_is_asked_for() {
        let error = batch(&[0, 1], 2, usize::MAX, &Device::Cpu, |_, _| {}).unwrap_err();
        assert!(matches!(error, DataError::BatchTooLarge { examples: 2, .. }));
    }
}
