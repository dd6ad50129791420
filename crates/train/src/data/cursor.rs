//! A place in the order of a mixture.

use serde::{Deserialize, Serialize};

/// How far a [`super::Mixture`] has been read: all that is needed to go on with the very next batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// The epoch.
    pub epoch: u64,
    /// How many batches of it have been taken.
    pub batch: u64,
    /// Batches taken from each loader, in all epochs together.
    pub taken: Vec<u64>,
    /// The same at the begin of this epoch.
    pub begun: Vec<u64>,
}

impl Cursor {
    /// Before the first batch, with so many loaders.
    pub fn new(loaders: usize) -> Self {
        Self { epoch: 0, batch: 0, taken: vec![0; loaders], begun: vec![0; loaders] }
    }

    /// On to the next epoch, also when this one is not at its end.
    pub fn next_epoch(&mut self) {
        self.epoch = self.epoch.saturating_add(1);
        self.batch = 0;
        self.begun.clone_from(&self.taken);
    }

    /// Batches taken from this loader in this epoch.
    pub(super) fn taken_this_epoch(&self, loader: usize) -> u64 {
        let count = |of: &[u64]| of.get(loader).copied().unwrap_or(0);
        count(&self.taken).saturating_sub(count(&self.begun))
    }

    /// What makes it unfit for these loaders, if anything does.
    pub(super) fn problem(&self, loaders: usize) -> Option<String> {
        if self.taken.len() != loaders || self.begun.len() != loaders {
            return Some(format!("it is of {} data sets, and there are {loaders}", self.taken.len()));
        }
        let sums = self
            .taken
            .iter()
            .zip(&self.begun)
            .try_fold(0u64, |sum, (taken, begun)| sum.checked_add(taken.checked_sub(*begun)?));
        match sums {
            Some(sum) if sum == self.batch => None,
            _ => Some(format!("its counts per data set do not add up to batch {}", self.batch)),
        }
    }
}
