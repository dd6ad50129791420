//! Where the activations come from that autoencoders are trained on.
//!
//! An [`ActivationSource`] has activations in pieces that can be had in any order: texts that are run through a model, blocks of rows of a
//! store. An [`ActivationStream`] makes a data set of it: the pieces in a random order, a buffer full of them at a time, the rows of the
//! buffer in a random order again. Which activation comes when is a function of the seed, so that a run goes on exactly where it was.

mod model;
mod several;
mod shared;
mod store;
mod stream;
mod texts;

use serde_json::Value;

use crate::error::SaeError;

pub use model::{ModelActivations, PointActivations};
pub use several::Several;
pub use shared::Shared;
pub use store::StoreActivations;
pub use stream::{ActivationStream, StreamOptions};
pub use texts::{TextOptions, sequences, token_sequences};

/// Activations in pieces that can be had in any order.
pub trait ActivationSource: Send + Sync {
    /// The tensors of every piece: name and width. All have the same rows.
    fn tensors(&self) -> &[(String, usize)];

    /// How many pieces there are.
    fn pieces(&self) -> u64;

    /// How many rows a piece has.
    fn rows(&self, piece: u64) -> u64;

    /// The rows of some pieces, one after the other; for each of the tensors.
    fn load(&self, pieces: &[u64]) -> Result<Vec<Vec<f32>>, SaeError>;

    /// What tells this source from another one.
    fn fingerprint(&self) -> Value;
}
