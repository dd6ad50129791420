//! Which loader gives the next batch.

use candle_core::Device;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::Batch;
use tenterhook_hooks::random::Stream;

use super::loader::PartOfBatch;
use super::{Cursor, DataError, Loader};
use crate::world::Share;

/// How several data sets take turns. An epoch has as many batches as all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// All batches of the first, then all of the second.
    #[default]
    Sequential,
    /// One of each in turn; those at their end are skipped.
    RoundRobin,
    /// Each batch from a set drawn with a probability proportional to `weight`. A set that runs out begins anew, in a new order.
    Weighted,
    /// In turn as well, but each gives `weight` batches in a row (rounded, at least 1).
    Alternating,
}

/// Several loaders as one. It holds no state: a [`Cursor`] says where one is.
///
/// ```
/// # use std::sync::Arc;
/// # use candle_core::Device;
/// use tenterhook_train::data::{Loader, Mixture, ModularAddition, Role, Strategy, TokenStream};
///
/// let words = TokenStream::new((0..=12).collect(), 4)?; // 3 examples of 4 tokens
/// let sums = ModularAddition::new(3, 0.5, Role::Train, 42)?; // 5 of the 9 pairs
/// let loaders = vec![Loader::new("words", Arc::new(words), 1), Loader::new("sums", Arc::new(sums), 1)];
/// let mixture = Mixture::new(loaders, Strategy::RoundRobin, 42)?;
///
/// let mut cursor = mixture.cursor();
/// let first = mixture.next(&mut cursor, &Device::Cpu)?.unwrap();
/// assert_eq!(first.batch.get("targets")?.to_vec2::<i64>()?, [[1, 2, 3, 4]]);
///
/// let saved = serde_json::to_string(&cursor)?; // a checkpoint
/// let mut restored = serde_json::from_str(&saved)?;
/// let mut names = Vec::new();
/// while let Some(next) = mixture.next(&mut restored, &Device::Cpu)? {
///     names.push(mixture.loaders()[next.loader_idx].name.as_str());
/// }
/// assert_eq!(names, ["sums", "words", "sums", "words", "sums", "sums", "sums"]);
/// restored.next_epoch();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Mixture {
    loaders: Vec<Loader>,
    strategy: Strategy,
    seed: u64,
}

/// A batch and where it comes from.
#[derive(Clone, Debug)]
pub struct Next {
    /// Which loader.
    pub loader_idx: usize,
    /// Which batch of that loader's epoch.
    pub batch_idx: u64,
    /// The examples.
    pub batch: Batch,
    /// Which example of the whole batch is the first of these; 0 but for a rank's part.
    pub first_row: usize,
    /// Whether these examples count: a rank for which a batch has none gets one that is another's, and does not compute it.
    pub counts: bool,
}

/// A batch by its address: what is known before anything is read.
struct Pick {
    loader: usize,
    epoch: u64,
    batch: u64,
}

impl Mixture {
    /// Loaders with names of their own, each with at least one batch, and weights above 0. The seed is for [`Strategy::Weighted`].
    pub fn new(loaders: Vec<Loader>, strategy: Strategy, seed: u64) -> Result<Self, DataError> {
        let mut problems = Vec::new();
        if loaders.is_empty() {
            problems.push("there are none".to_string());
        }
        for (i, loader) in loaders.iter().enumerate() {
            let name = &loader.name;
            if loaders[..i].iter().any(|other| other.name == *name) {
                problems.push(format!("two are named `{name}`; give each a `name` of its own"));
            }
            if loader.batch == 0 {
                problems.push(format!("`{name}` has `batch = 0`; use at least 1"));
            } else if loader.batches_per_epoch() == 0 {
                let (len, batch) = (loader.dataset.len(), loader.batch);
                problems.push(format!(
                    "`{name}` has {len} examples, and with `batch = {batch}` no batch; use a smaller `batch` or `drop_last = false`"
                ));
            }
            if !(loader.weight.is_finite() && loader.weight > 0.0) {
                problems.push(format!("`{name}` has `weight = {}`; use a number above 0", loader.weight));
            }
        }
        if loaders.iter().map(|loader| loader.weight).sum::<f64>() == f64::INFINITY {
            problems.push("the weights add up to infinity; use smaller ones".to_string());
        }
        match problems.is_empty() {
            true => Ok(Self { loaders, strategy, seed }),
            false => Err(DataError::Mixture(problems.join("; "))),
        }
    }

    /// The loaders, in the order of `loader_idx`.
    pub fn loaders(&self) -> &[Loader] {
        &self.loaders
    }

    /// How many batches an epoch has: those of all loaders together.
    pub fn batches_per_epoch(&self) -> u64 {
        self.loaders.iter().map(Loader::batches_per_epoch).fold(0, u64::saturating_add)
    }

    /// The place before the first batch.
    pub fn cursor(&self) -> Cursor {
        Cursor::new(self.loaders.len())
    }

    /// The batch at the cursor, which then stands behind it; `None` at the end of the epoch, where [`Cursor::next_epoch`] goes on.
    /// After an error the cursor is where it was.
    pub fn next(&self, cursor: &mut Cursor, device: &Device) -> Result<Option<Next>, DataError> {
        self.next_part(cursor, Share::WHOLE, device)
    }

    /// The same for one rank of several: its part of the batch. The parts of all ranks together are the batch.
    pub fn next_part(
        &self,
        cursor: &mut Cursor,
        share: Share,
        device: &Device,
    ) -> Result<Option<Next>, DataError> {
        self.check(cursor)?;
        let Some(Pick { loader, epoch, batch: batch_idx }) = self.pick(cursor) else {
            return Ok(None);
        };
        let PartOfBatch { batch, first_row, counts } =
            self.loaders[loader].part(epoch, batch_idx, share, device)?;
        cursor.taken[loader] = cursor.taken[loader].saturating_add(1);
        cursor.batch += 1; // below the length of the epoch
        Ok(Some(Next { loader_idx: loader, batch_idx, batch, first_row, counts }))
    }

    /// Whether a cursor is one of this mixture.
    pub(crate) fn check(&self, cursor: &Cursor) -> Result<(), DataError> {
        if let Some(problem) = cursor.problem(self.loaders.len()) {
            return Err(DataError::Cursor(problem));
        }
        for (i, loader) in self.loaders.iter().enumerate() {
            let (taken, len) = (cursor.taken_this_epoch(i), loader.batches_per_epoch());
            if self.strategy != Strategy::Weighted && taken > len {
                let name = &loader.name;
                return Err(DataError::Cursor(format!(
                    "it is {taken} batches into `{name}`, which has {len}"
                )));
            }
        }
        Ok(())
    }

    fn pick(&self, cursor: &Cursor) -> Option<Pick> {
        if cursor.batch >= self.batches_per_epoch() {
            return None;
        }
        if self.strategy == Strategy::Weighted {
            let loader = self.draw(cursor);
            let own = self.loaders[loader].batches_per_epoch();
            return Some(Pick {
                loader,
                epoch: cursor.taken[loader] / own,
                batch: cursor.taken[loader] % own,
            });
        }
        // Whose turn it is follows from the counts alone: nothing else has to be saved.
        let unfinished = (0..self.loaders.len())
            .filter(|i| cursor.taken_this_epoch(*i) < self.loaders[*i].batches_per_epoch());
        let loader = match self.strategy {
            Strategy::Sequential | Strategy::Weighted => unfinished.min(),
            Strategy::RoundRobin => unfinished.min_by_key(|i| cursor.taken_this_epoch(*i)),
            Strategy::Alternating => unfinished.min_by_key(|i| {
                let (taken, turn) = (cursor.taken_this_epoch(*i), turn_length(self.loaders[*i].weight));
                (taken % turn == 0, taken / turn) // who is in the midst of a turn goes on; there is one at most
            }),
        }?;
        Some(Pick { loader, epoch: cursor.epoch, batch: cursor.taken_this_epoch(loader) })
    }

    fn draw(&self, cursor: &Cursor) -> usize {
        let total: f64 = self.loaders.iter().map(|loader| loader.weight).sum();
        let stream = Stream::new(self.seed).named("mixture").at(cursor.epoch);
        let mut left = stream.uniform(cursor.batch) * total;
        let drawn = self.loaders.iter().position(|loader| {
            left -= loader.weight;
            left < 0.0
        });
        drawn.unwrap_or(self.loaders.len() - 1) // rounding can leave a rest beyond the last
    }
}

fn turn_length(weight: f64) -> u64 {
    (weight.round() as u64).max(1)
}

#[cfg(test)]
mod tests;
