//! Layers that differentiate and carry their points.
pub mod ops;
