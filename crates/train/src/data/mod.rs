//! Data: sets of examples, the order they come in, and how several sets are mixed.
//!
//! A [`Dataset`] gives any of its examples by index. A [`Loader`] cuts it into batches, in an order that is a function of
//! (seed, name, epoch, index), so that nothing has to be read to be skipped. A [`Mixture`] says which loader comes next;
//! its [`Cursor`] is all that a checkpoint needs to go on with the very next batch.

mod blocks;
mod config;
mod cursor;
mod error;
mod files;
mod fingerprint;
mod induction;
mod jsonl;
mod loader;
mod memory;
mod mixture;
mod modular_addition;
mod part;
mod stream;
mod text;
mod tokens;

use std::ops::Range;

use candle_core::Device;
pub use tenterhook_hooks::Permutation;
use tenterhook_hooks::{Batch, BoxError};

pub use config::{DataConfig, DataKind, ModelFacts, Role};
pub use cursor::Cursor;
pub use error::DataError;
pub use induction::{Induction, Predict};
pub use jsonl::JsonlOptions;
pub use loader::Loader;
pub use memory::InMemory;
pub use mixture::{Mixture, Next, Strategy};
pub use modular_addition::ModularAddition;
pub use part::Part;
pub use stream::TokenStream;
pub use tokens::{TokenFile, TokenType};

/// Turns text into token ids. The caller brings it: this crate has no tokenizers.
pub type Encode<'e> = dyn Fn(&str) -> Result<Vec<u32>, BoxError> + 'e;

/// Examples that can be had by index, in any order and from any thread.
pub trait Dataset: Send + Sync {
    /// How many examples there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The examples of these indices, in this order. An index outside the set is an error.
    fn batch(&self, indices: &[u64], device: &Device) -> Result<Batch, DataError>;

    /// A part of the examples of these indices: what one of several processes gets of a batch. All of them ask at the same time, each for its own part,
    /// so a set that they compute together does it here.
    fn part(&self, indices: &[u64], part: Range<usize>, device: &Device) -> Result<Batch, DataError> {
        self.batch(&indices[part], device)
    }

    /// What tells this set from another one, for the record of a run and for the check when it resumes.
    fn fingerprint(&self) -> serde_json::Value;

    /// The smallest vocabulary that holds every token id of the set, where that is known.
    fn vocab(&self) -> Option<u64>;

    /// How many positions an example has, where it has positions.
    fn sequence_length(&self) -> Option<usize>;
}
