//! Sparse autoencoders: formats, training, evaluation, steering.

mod cfg_json;
mod config;
mod error;
mod files;
mod init;
mod layer;
mod normalize;
mod sae;
pub mod training;

pub use config::{Architecture, Normalize, Reshape, SaeConfig};
pub use error::SaeError;
pub use files::{CFG, WEIGHTS};
pub use init::FreshWeights;
pub use layer::{Encoded, SaeLayer};
pub use sae::Sae;
