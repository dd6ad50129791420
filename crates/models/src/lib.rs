//! Models with hooks: one configurable decoder, read from and written as Hugging Face model directories, and an MLP.

pub mod config;
pub mod error;
pub mod files;
mod mlp;
pub mod tokenizer;
mod transformer;

pub use mlp::Mlp;
pub use transformer::{KvCache, Transformer, next_token_loss};
