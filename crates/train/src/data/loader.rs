//! Batches of one data set, in order.

use std::sync::Arc;

use candle_core::Device;
use tenterhook_hooks::Batch;
use tenterhook_hooks::random::Stream;

use super::{DataError, Dataset, Permutation};
use crate::world::Share;

/// A rank's part of a batch.
pub(super) struct PartOfBatch {
    pub(super) batch: Batch,
    /// Which example of the whole batch is its first.
    pub(super) first_row: usize,
    /// Whether its examples are this rank's: with fewer examples than ranks, some have one that is another's, and do not compute it.
    pub(super) counts: bool,
}

/// Cuts a data set into batches. Which examples a batch holds is a function of (seed, name, epoch, index).
#[derive(Clone)]
pub struct Loader {
    /// The name in metrics, and the part of the seed that is this loader's own.
    pub name: String,
    /// Where the examples come from.
    pub dataset: Arc<dyn Dataset>,
    /// Examples per batch; the last one of an epoch may have fewer.
    pub batch: usize,
    /// A new random order every epoch; else the natural one.
    pub shuffle: bool,
    /// Whether a last batch with fewer examples is left out.
    pub drop_last: bool,
    /// The share, or the turns, that it gets in a [`super::Mixture`].
    pub weight: f64,
    /// The seed of the order.
    pub seed: u64,
}

impl Loader {
    /// A loader in natural order, with weight 1, that leaves nothing out.
    pub fn new(name: impl Into<String>, dataset: Arc<dyn Dataset>, batch: usize) -> Self {
        Self { name: name.into(), dataset, batch, shuffle: false, drop_last: false, weight: 1.0, seed: 0 }
    }

    /// How many batches an epoch has.
    pub fn batches_per_epoch(&self) -> u64 {
        match self.drop_last {
            true => self.dataset.len() / self.batch_size(),
            false => self.dataset.len().div_ceil(self.batch_size()),
        }
    }

    /// Which examples this batch of this epoch holds; none beyond the end.
    pub fn indices(&self, epoch: u64, batch_idx: u64) -> Vec<u64> {
        if batch_idx >= self.batches_per_epoch() {
            return Vec::new();
        }
        let start = batch_idx * self.batch_size(); // below the length, as the batch exists
        let end = start.saturating_add(self.batch_size()).min(self.dataset.len());
        match self.shuffle {
            false => (start..end).collect(),
            true => {
                let stream = Stream::new(self.seed).named("data").named(&self.name).at(epoch);
                let order = Permutation::new(self.dataset.len(), stream);
                (start..end).map(|i| order.get(i)).collect()
            }
        }
    }

    /// This batch of this epoch. One beyond the end is an error.
    pub fn batch(&self, epoch: u64, batch_idx: u64, device: &Device) -> Result<Batch, DataError> {
        let indices = self.indices(epoch, batch_idx);
        if indices.is_empty() {
            let len = self.batches_per_epoch();
            return Err(DataError::NoBatch { name: self.name.clone(), batch: batch_idx, len });
        }
        self.dataset.batch(&indices, device)
    }

    /// A rank's part of this batch of this epoch, and where in it the part begins. A rank for which there is no example gets the first one,
    /// which does not count: hooks are told of a batch all the same.
    pub(super) fn part(
        &self,
        epoch: u64,
        batch_idx: u64,
        share: Share,
        device: &Device,
    ) -> Result<PartOfBatch, DataError> {
        if share == Share::WHOLE {
            let batch = self.batch(epoch, batch_idx, device)?;
            return Ok(PartOfBatch { batch, first_row: 0, counts: true });
        }
        let indices = self.indices(epoch, batch_idx);
        let own = share.of(indices.len());
        let (own, counts) = if own.is_empty() { (0..indices.len().min(1), false) } else { (own, true) };
        if own.is_empty() {
            let len = self.batches_per_epoch();
            return Err(DataError::NoBatch { name: self.name.clone(), batch: batch_idx, len });
        }
        let first_row = own.start;
        Ok(PartOfBatch { batch: self.dataset.part(&indices, own, device)?, first_row, counts })
    }

    fn batch_size(&self) -> u64 {
        (self.batch as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::TokenStream;

    /// A loader of `examples` examples that can be told apart by their tokens.
    fn loader(examples: u32, batch: usize) -> Loader {
        let stream = TokenStream::new((0..=examples).collect(), 1).unwrap();
        Loader { shuffle: true, seed: 5, ..Loader::new("train", Arc::new(stream), batch) }
    }

    #[test]
    fn a_shuffled_epoch_has_every_example_once() {
        let loader = loader(23, 4);
        assert_eq!(loader.batches_per_epoch(), 6);
        let mut epochs = Vec::new();
        for epoch in 0..3 {
            let order: Vec<u64> = (0..6).flat_map(|batch| loader.indices(epoch, batch)).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..23));
            epochs.push(order);
        }
        assert!(epochs[0] != epochs[1] && epochs[1] != epochs[2] && epochs[0] != epochs[2]);
    }

    #[test]
    fn the_order_depends_on_seed_and_name() {
        let one = loader(50, 50);
        let other_seed = Loader { seed: 6, ..one.clone() };
        let other_name = Loader { name: "more".into(), ..one.clone() };
        assert_ne!(one.indices(0, 0), other_seed.indices(0, 0));
        assert_ne!(one.indices(0, 0), other_name.indices(0, 0));
        assert_eq!(one.indices(0, 0), one.clone().indices(0, 0));
    }

    #[test]
    fn the_natural_order_and_the_last_batch() {
        let all = Loader { shuffle: false, ..loader(10, 4) };
        assert_eq!(all.indices(7, 1), [4, 5, 6, 7]);
        assert_eq!(all.indices(7, 2), [8, 9]);
        assert_eq!(all.indices(7, 3), [0u64; 0]);
        let whole = Loader { drop_last: true, ..all };
        assert_eq!(whole.batches_per_epoch(), 2);
        assert_eq!(whole.indices(0, 2), [0u64; 0]);
        let huge = Loader { drop_last: false, batch: usize::MAX, ..whole };
        assert_eq!(huge.indices(0, 0), (0..10).collect::<Vec<u64>>());
    }

    #[test]
    fn a_batch_holds_its_examples_and_none_beyond_the_end() {
        let loader = loader(9, 3);
        let batch = loader.batch(2, 1, &Device::Cpu).unwrap();
        assert_eq!(batch.examples(), loader.indices(2, 1));
        let inputs: Vec<u32> = batch.get("inputs").unwrap().flatten_all().unwrap().to_vec1().unwrap();
        assert!(inputs.iter().map(|id| u64::from(*id)).eq(loader.indices(2, 1)));
        let error = loader.batch(0, 3, &Device::Cpu).unwrap_err().to_string();
        assert_eq!(error, "there is no batch 3 in an epoch of data set `train`, which has 3");
    }
}
