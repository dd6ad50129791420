//! The record of a run: its directory, metadata, metrics and checkpoints. No tensors.

pub mod checkpoints;
pub mod disk;
pub mod fault;
pub mod name;
