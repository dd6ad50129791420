//! A source whose activations several processes make together.

use std::sync::Arc;

use serde_json::Value;
use tenterhook_train::World;

use super::ActivationSource;
use crate::error::SaeError;

/// Every rank computes its part of the pieces that all want, and gets the rest from the others. All of them must ask for the same at the same time, as an
/// [`ActivationStream`](super::ActivationStream) does.
pub struct Shared {
    source: Arc<dyn ActivationSource>,
    world: World,
}

impl Shared {
    /// The same activations, made by all ranks of a world.
    pub fn new(source: Arc<dyn ActivationSource>, world: World) -> Self {
        Self { source, world }
    }
}

impl ActivationSource for Shared {
    fn tensors(&self) -> &[(String, usize)] {
        self.source.tensors()
    }

    fn pieces(&self) -> u64 {
        self.source.pieces()
    }

    fn rows(&self, piece: u64) -> u64 {
        self.source.rows(piece)
    }

    fn load(&self, pieces: &[u64]) -> Result<Vec<Vec<f32>>, SaeError> {
        let own = self.source.load(&pieces[self.world.share().of(pieces.len())]);
        let own =
            self.world.all_well("activations", own).map_err(|error| SaeError::bad(error.to_string()))?;
        let all = |numbers: Vec<f32>| match self.world.gather_numbers(&numbers) {
            Ok(parts) => Ok(parts.concat()),
            Err(error) => Err(SaeError::bad(error.to_string())),
        };
        own.into_iter().map(all).collect()
    }

    fn fingerprint(&self) -> Value {
        self.source.fingerprint()
    }
}
