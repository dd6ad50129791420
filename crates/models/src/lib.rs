//! Models with hooks: one configurable decoder, read from and written as Hugging Face model directories, and an MLP.

pub mod config;
mod description;
pub mod error;
pub mod files;
pub mod hub;
mod mlp;
mod model;
mod next_token;
pub mod tokenizer;
mod transformer;

pub use description::{ActivationName, ModelDescription, ModelKind, Precision};
pub use mlp::Mlp;
pub use model::Model;
pub use next_token::{next_token_accuracy, next_token_loss};
pub use transformer::{HeadWeights, KvCache, NormWeights, Transformer};
