//! What a checkpoint holds, and how it is written and read.

mod read;
mod saver;
mod snapshot;

pub(crate) use read::read;
pub(crate) use saver::Saver;
pub(crate) use snapshot::{Snapshot, State, Weights, as_safetensors, is_interim};

/// The version of `state.json`.
const STATE_FORMAT: u64 = 1;
const STATE: &str = "state.json";
const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const HOOKS: &str = "hooks.safetensors";
