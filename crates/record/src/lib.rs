//! The record of a run: its directory, metadata, metrics and checkpoints. No tensors.

pub mod checkpoints;
#[cfg(all(test, debug_assertions))]
mod crash;
pub mod disk;
pub mod fault;
pub mod metrics;
pub mod name;
