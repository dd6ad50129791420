//! Repeated random sequences: the task that makes induction heads form.

use candle_core::Device;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenterhook_hooks::Batch;
use tenterhook_hooks::random::Stream;

use super::{DataError, Dataset, blocks};

const SHORTEST_PERIOD: u64 = 8;
const SHORTEST_BLOCK: usize = 2 * SHORTEST_PERIOD as usize;

/// Which targets of an [`Induction`] example count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Predict {
    /// Those of the repeats: in the first period there is nothing to copy.
    #[default]
    Repeats,
    /// All of them.
    All,
}

/// Random tokens with a period, drawn anew for every example from 8 to half of the block, repeated to its end.
#[derive(Clone, Debug)]
pub struct Induction {
    vocab: u64,
    block: usize,
    examples: u64,
    predict: Predict,
    seed: u64,
}

impl Induction {
    /// A set of so many examples. The block must have room for two periods (16), the vocabulary at least two tokens.
    pub fn new(
        vocab: u64,
        block: usize,
        examples: u64,
        predict: Predict,
        seed: u64,
    ) -> Result<Self, DataError> {
        let mut problems = Vec::new();
        if !(2..=1 << 32).contains(&vocab) {
            problems.push(format!("`vocab` is {vocab}; use 2 to {}", 1u64 << 32));
        }
        if block < SHORTEST_BLOCK {
            problems.push(format!(
                "`block` is {block}; use at least {SHORTEST_BLOCK}, so that two periods of {SHORTEST_PERIOD} fit"
            ));
        }
        if examples == 0 {
            problems.push("`examples` is 0; use at least 1".to_string());
        }
        DataError::options("induction", problems)?;
        Ok(Self { vocab, block, examples, predict, seed })
    }

    fn example(&self, index: u64) -> (u64, Vec<u32>) {
        let stream = Stream::new(self.seed).named("induction").at(index);
        let period = SHORTEST_PERIOD + stream.below(0, self.block as u64 / 2 - SHORTEST_PERIOD + 1);
        let once: Vec<u32> = (1..=period).map(|i| stream.below(i, self.vocab) as u32).collect();
        (period, once.iter().copied().cycle().take(self.block + 1).collect())
    }
}

impl Dataset for Induction {
    fn len(&self) -> u64 {
        self.examples
    }

    fn batch(&self, indices: &[u64], device: &Device) -> Result<Batch, DataError> {
        blocks::batch(indices, self.examples, self.block, device, |index, rows| {
            let (period, tokens) = self.example(index);
            rows.push(&tokens, if self.predict == Predict::All { 0 } else { period as usize });
        })
    }

    fn fingerprint(&self) -> Value {
        json!({
            "kind": "induction",
            "vocab": self.vocab,
            "block": self.block,
            "examples": self.examples,
            "predict": self.predict,
            "seed": self.seed,
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
    use tenterhook_hooks::IGNORED;

    use super::*;

    fn rows(set: &Induction) -> Vec<(Vec<u32>, Vec<i64>)> {
        let all: Vec<u64> = (0..set.len()).collect();
        let batch = set.batch(&all, &Device::Cpu).unwrap();
        let inputs: Vec<Vec<u32>> = batch.get("inputs").unwrap().to_vec2().unwrap();
        inputs.into_iter().zip(batch.get("targets").unwrap().to_vec2().unwrap()).collect()
    }

    /// The first example's tokens are all different with this vocabulary, so that its period can be read off.
    #[test]
    fn what_counts_can_be_copied_from_one_period_before() {
        let set = Induction::new(1 << 32, 33, 300, Predict::Repeats, 7).unwrap();
        let mut periods = Vec::new();
        for (inputs, targets) in rows(&set) {
            let period = (1..33).find(|i| inputs[*i] == inputs[0]).unwrap();
            periods.push(period);
            for at in 0..33 {
                match at < period {
                    true => assert_eq!(targets[at], IGNORED),
                    false => {
                        assert_eq!(inputs[at], inputs[at - period]);
                        assert_eq!(targets[at], i64::from(inputs[at - period + 1]));
                    }
                }
            }
        }
        periods.sort_unstable();
        periods.dedup();
        assert!(periods.into_iter().eq(8..=16), "every period from 8 to half of the block occurs");
    }

    #[test]
    fn all_targets_are_the_next_tokens() {
        let set = Induction::new(50, 20, 5, Predict::All, 7).unwrap();
        for (inputs, targets) in rows(&set) {
            assert!(inputs[1..].iter().map(|id| i64::from(*id)).eq(targets[..19].iter().copied()));
            assert!(inputs.iter().all(|id| *id < 50) && targets.iter().all(|id| (0..50).contains(id)));
        }
    }

    #[test]
    fn examples_differ_by_index_and_seed_and_stay_the_same() {
        let set = |seed| rows(&Induction::new(100, 16, 40, Predict::Repeats, seed).unwrap());
        let all = set(1);
        assert_eq!(all, set(1));
        assert!(set(2).iter().all(|row| !all.contains(row)));
        assert!((1..40).all(|i| !all[..i].contains(&all[i])));
    }

    #[test]
    fn tokens_are_uniform() {
        let set = Induction::new(4, 16, 4000, Predict::All, 3).unwrap();
        let mut counts = [0.0f64; 4];
        rows(&set)
            .iter()
            .for_each(|(inputs, _)| inputs[..8].iter().for_each(|id| counts[*id as usize] += 1.0));
        assert!(counts.iter().all(|count| (count / 32_000.0 - 0.25).abs() < 0.01), "{counts:?}");
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let error = Induction::new(1, 15, 0, Predict::All, 0).unwrap_err().to_string();
        for part in ["`vocab` is 1", "`block` is 15; use at least 16", "`examples` is 0"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
