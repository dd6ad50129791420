//! Addition modulo a number: the task on which networks grok.

use candle_core::{Device, Tensor};
use serde_json::{Value, json};
use tenterhook_hooks::random::Stream;
use tenterhook_hooks::{Batch, IGNORED};

use super::{DataError, Dataset, Permutation, Role};

/// `a b =` with the target `(a + b) mod p` at the last position. Ids are the numbers, and `p` for `=`.
///
/// All p * p pairs are shared out between training and validation by the seed: with the same seed no pair is in both.
#[derive(Clone, Debug)]
pub struct ModularAddition {
    modulus: u64,
    train: u64,
    role: Role,
    seed: u64,
    pairs: Permutation,
}

impl ModularAddition {
    /// One of the two parts, training or validation. Neither may be empty.
    pub fn new(modulus: u64, train_share: f64, role: Role, seed: u64) -> Result<Self, DataError> {
        let mut problems = Vec::new();
        if !(2..=u64::from(u32::MAX)).contains(&modulus) {
            problems.push(format!("`modulus` is {modulus}; use 2 to {}", u32::MAX));
        }
        let all = modulus.saturating_mul(modulus);
        let train = (all as f64 * train_share).round() as u64;
        // Also where it is no number.
        if !(train_share > 0.0 && train_share < 1.0) || train == 0 || train >= all {
            problems.push(format!(
                "`train_share` is {train_share}; use a number between 0 and 1 that leaves pairs for both parts"
            ));
        }
        DataError::options("modular addition", problems)?;
        let pairs = Permutation::new(all, Stream::new(seed).named("modular_addition"));
        Ok(Self { modulus, train, role, seed, pairs })
    }

    fn pair(&self, index: u64) -> (u64, u64) {
        let first = if self.role == Role::Train { 0 } else { self.train };
        let pair = self.pairs.get(first + index);
        (pair / self.modulus, pair % self.modulus)
    }
}

impl Dataset for ModularAddition {
    fn len(&self) -> u64 {
        match self.role {
            Role::Train => self.train,
            Role::Val => self.modulus * self.modulus - self.train,
        }
    }

    fn batch(&self, indices: &[u64], device: &Device) -> Result<Batch, DataError> {
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for index in indices.iter().copied() {
            if index >= self.len() {
                return Err(DataError::NoExample { index, len: self.len() });
            }
            let (a, b) = self.pair(index);
            inputs.extend([a as u32, b as u32, self.modulus as u32]);
            targets.extend([IGNORED, IGNORED, ((a + b) % self.modulus) as i64]);
        }
        let shape = (indices.len(), 3);
        let inputs = Tensor::from_vec(inputs, shape, device)?;
        Ok(Batch::tokens(inputs, Tensor::from_vec(targets, shape, device)?, indices.to_vec()))
    }

    fn fingerprint(&self) -> Value {
        json!({
            "kind": "modular_addition",
            "modulus": self.modulus,
            "train_examples": self.train,
            "part": self.role,
            "seed": self.seed,
        })
    }

    fn vocab(&self) -> Option<u64> {
        Some(self.modulus + 1)
    }

    fn sequence_length(&self) -> Option<usize> {
        Some(3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All (a, b) of a part, after a look at the sums.
    fn pairs(modulus: u64, share: f64, role: Role, seed: u64) -> Vec<(u32, u32)> {
        let set = ModularAddition::new(modulus, share, role, seed).unwrap();
        let all: Vec<u64> = (0..set.len()).collect();
        let batch = set.batch(&all, &Device::Cpu).unwrap();
        let inputs: Vec<Vec<u32>> = batch.get("inputs").unwrap().to_vec2().unwrap();
        let targets: Vec<Vec<i64>> = batch.get("targets").unwrap().to_vec2().unwrap();
        for (input, target) in inputs.iter().zip(&targets) {
            assert_eq!(u64::from(input[2]), modulus);
            assert_eq!(*target, [IGNORED, IGNORED, i64::from(input[0] + input[1]) % modulus as i64]);
        }
        inputs.iter().map(|input| (input[0], input[1])).collect()
    }

    #[test]
    fn both_parts_are_all_pairs_and_share_none() {
        for (modulus, share, train) in [(113, 0.3, 3831), (2, 0.25, 1), (7, 0.5, 25), (59, 0.9, 3133)] {
            let mut both = pairs(modulus, share, Role::Train, 4);
            assert_eq!(both.len(), train);
            both.extend(pairs(modulus, share, Role::Val, 4));
            both.sort_unstable();
            let ids = 0..modulus as u32;
            assert!(both.into_iter().eq(ids.clone().flat_map(|a| ids.clone().map(move |b| (a, b)))));
        }
    }

    #[test]
    fn another_seed_is_another_split() {
        assert_ne!(pairs(11, 0.3, Role::Train, 1), pairs(11, 0.3, Role::Train, 2));
        assert_eq!(ModularAddition::new(11, 0.3, Role::Val, 1).unwrap().vocab(), Some(12));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for (modulus, share) in
            [(1, 0.5), (0, 0.5), (1 << 32, 0.5), (5, 0.0), (5, 1.0), (5, f64::NAN), (2, 0.01), (2, 0.99)]
        {
            let refused = ModularAddition::new(modulus, share, Role::Train, 0);
            assert!(matches!(refused, Err(DataError::Options { .. })), "modulus {modulus}, share {share}");
        }
        let set = ModularAddition::new(3, 0.5, Role::Val, 0).unwrap();
        assert!(matches!(set.batch(&[4], &Device::Cpu), Err(DataError::NoExample { index: 4, len: 4 })));
    }
}
