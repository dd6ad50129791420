//! Layers that carry their weights and their points.

mod embedding;
mod linear;
mod norm;

pub use embedding::Embedding;
pub use linear::{Input, Linear, LinearSpec};
pub use norm::{Norm, NormPoints, NormSpec};
