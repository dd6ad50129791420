//! How well logits predict the next token.

use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor};
use rayon::prelude::*;
use tenterhook_nn::ops::cross_entropy;

/// The target that does not count, as in PyTorch.
pub(crate) const IGNORED: i64 = -100;

/// The mean cross entropy of every token after the first of its sequence, from logits of the whole sequence.
pub fn next_token_loss(logits: &Tensor, ids: &Tensor) -> Result<Tensor> {
    cross_entropy(logits, &next_token_targets(ids)?, Some(IGNORED))
}

/// The next token of every token, and [`IGNORED`] for the last of a sequence.
pub(crate) fn next_token_targets(ids: &Tensor) -> Result<Tensor> {
    let count = ids.dim(1)?;
    if count < 2 {
        candle_core::bail!("the next-token loss needs at least two tokens per sequence");
    }
    // The last token has no next one. Marking it costs nothing; cutting it off would copy the logits, and again in the backward.
    let next = ids.narrow(1, 1, count - 1)?.to_dtype(DType::I64)?;
    let none = Tensor::full(IGNORED, (ids.dim(0)?, 1), ids.device())?;
    Tensor::cat(&[next, none], 1)
}

/// How many targets have the largest logit, and how many targets count: those that are not -100.
///
/// `logits` are `[batch, pos, vocab]` or `[batch, vocab]`, `targets` have the same shape without the last axis. Of equal logits the
/// first wins. Where a logit is NaN there is no largest, and nothing is right.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let logits = Tensor::new(&[[0.1f32, 0.9, 0.0], [0.5, 0.5, 0.1], [0.0, 0.0, 1.0]], &Device::Cpu)?;
/// let targets = Tensor::new(&[1i64, 1, -100], &Device::Cpu)?;
/// assert_eq!(tenterhook_models::next_token_accuracy(&logits, &targets)?, (1, 2));
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn next_token_accuracy(logits: &Tensor, targets: &Tensor) -> Result<(u64, u64)> {
    let Some((&vocab, leading)) = logits.dims().split_last() else {
        candle_core::bail!("accuracy: the logits are a scalar");
    };
    if targets.dims() != leading {
        candle_core::bail!("accuracy: targets of shape {:?} for rows {leading:?}", targets.shape());
    }
    let targets: Vec<i64> = targets.to_dtype(DType::I64)?.flatten_all()?.to_vec1()?;
    if let Some((at, target)) = targets
        .iter()
        .enumerate()
        .find(|(_, target)| **target != IGNORED && !(0..vocab as i64).contains(target))
    {
        candle_core::bail!("accuracy: target {target} at index {at} is outside the vocabulary of {vocab}");
    }
    let logits = match logits.dtype() {
        DType::F32 | DType::F64 => logits.detach(),
        _ => logits.detach().to_dtype(DType::F32)?,
    };
    let logits = logits.to_device(&Device::Cpu)?.contiguous()?;
    let (storage, layout) = logits.storage_and_layout();
    let Some((start, end)) = layout.contiguous_offsets() else {
        candle_core::bail!("accuracy: the logits are not contiguous");
    };
    match &*storage {
        Storage::Cpu(CpuStorage::F32(values)) => Ok(count(&values[start..end], &targets, vocab)),
        Storage::Cpu(CpuStorage::F64(values)) => Ok(count(&values[start..end], &targets, vocab)),
        _ => candle_core::bail!("accuracy: the logits are neither f32 nor f64"),
    }
}

fn count<T: PartialOrd + Sync>(logits: &[T], targets: &[i64], vocab: usize) -> (u64, u64) {
    let row = |(logits, target): (&[T], &i64)| match usize::try_from(*target) {
        Ok(target) => (u64::from(is_first_maximum(logits, target)), 1),
        Err(_) => (0, 0),
    };
    let rows = logits.par_chunks_exact(vocab.max(1)).zip(targets);
    rows.map(row).reduce(|| (0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

/// Most rows are settled by the first few logits. Comparisons with NaN are false.
fn is_first_maximum<T: PartialOrd>(logits: &[T], at: usize) -> bool {
    let (before, rest) = logits.split_at(at);
    // Compared with itself too: a NaN alone is no maximum either.
    rest.first().is_some_and(|value| {
        before.iter().all(|other| other < value) && rest.iter().all(|other| other <= value)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tenterhook_hooks::random::Stream;

    /// The first maximum by a plain loop.
    fn argmax(row: &[f32]) -> i64 {
        let mut best = 0;
        for (i, value) in row.iter().enumerate() {
            if *value > row[best] {
                best = i;
            }
        }
        best as i64
    }

    #[test]
    fn it_agrees_with_counting_by_hand() {
        let (batch, pos, vocab) = (5, 7, 11);
        let stream = Stream::new(3);
        // Few values, so that many rows have several largest ones.
        let logits: Vec<f32> =
            (0..batch * pos * vocab).map(|i| (stream.normal(i as u64) * 2.0).round() as f32).collect();
        let targets: Vec<i64> = logits
            .chunks(vocab)
            .enumerate()
            .map(|(i, row)| match i % 3 {
                0 => argmax(row),
                1 => (i % vocab) as i64,
                _ => IGNORED,
            })
            .collect();
        let expected: u64 =
            logits.chunks(vocab).zip(&targets).map(|(row, t)| u64::from(argmax(row) == *t)).sum();
        let counted = targets.iter().filter(|t| **t != IGNORED).count() as u64;
        assert!(expected > counted / 2 && expected < counted, "{expected} of {counted}");
        let logits = Tensor::from_vec(logits, (batch, pos, vocab), &Device::Cpu).unwrap();
        let targets = Tensor::from_vec(targets, (batch, pos), &Device::Cpu).unwrap();
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let logits = logits.to_dtype(dtype).unwrap();
            assert_eq!(next_token_accuracy(&logits, &targets).unwrap(), (expected, counted));
            let strided = logits.transpose(0, 1).unwrap();
            assert_eq!(next_token_accuracy(&strided, &targets.t().unwrap()).unwrap(), (expected, counted));
        }
        let flat = logits.reshape((batch * pos, vocab)).unwrap();
        let part = flat.narrow(0, 1, 2).unwrap();
        let targets = targets.flatten_all().unwrap();
        assert_eq!(next_token_accuracy(&flat, &targets).unwrap(), (expected, counted));
        assert_eq!(next_token_accuracy(&part, &targets.narrow(0, 1, 2).unwrap()).unwrap().1, 1);
    }

    #[test]
    fn ties_nan_and_infinity() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for (row, target, right) in [
            ([1.0, 1.0, 0.0], 0, true),
            ([1.0, 1.0, 0.0], 1, false),
            ([nan, 1.0, 0.0], 1, false),
            ([0.0, 1.0, nan], 1, false),
            ([nan, nan, nan], 0, false),
            ([-inf, inf, inf], 1, true),
            ([-inf, -inf, -inf], 0, true),
        ] {
            let logits = Tensor::new(&[row], &Device::Cpu).unwrap();
            let targets = Tensor::new(&[target as i64], &Device::Cpu).unwrap();
            assert_eq!(
                next_token_accuracy(&logits, &targets).unwrap(),
                (u64::from(right), 1),
                "{row:?} {target}"
            );
        }
        let alone = Tensor::new(&[[nan]], &Device::Cpu).unwrap();
        let first = Tensor::new(&[0u32], &Device::Cpu).unwrap();
        assert_eq!(next_token_accuracy(&alone, &first).unwrap(), (0, 1));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let logits = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
        let accuracy = |targets: &[i64]| {
            let targets = Tensor::new(targets, &Device::Cpu).unwrap();
            next_token_accuracy(&logits, &targets).map_err(|error| error.to_string())
        };
        assert_eq!(accuracy(&[-100, -100]), Ok((0, 0)));
        assert!(accuracy(&[0, 3]).unwrap_err().contains("target 3 at index 1"));
        assert!(accuracy(&[-1, 0]).unwrap_err().contains("target -1"));
        assert!(accuracy(&[0, 1, 2]).unwrap_err().contains("[3] for rows [2]"));
    }
}
