//! Layers that differentiate and carry their points.
//!
//! [`ops`] are free functions on candle tensors, each with a forward and a backward: fused and threaded on the CPU, composed of
//! candle ops on other devices. [`layers`] are what models are made of: weights and points under one path, handed out by a [`Scope`].

pub mod layers;
pub mod ops;
mod param;
mod scope;
mod stack;

pub use param::{CoverageError, GradBuffers, Param, Params, backward, check_coverage};
pub use scope::{Init, RandomWeights, Scope, Weights};
pub use stack::on_deep_stack;
