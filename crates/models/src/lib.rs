//! Transformers with hooks: one configurable decoder, read from and written as Hugging Face model directories.

pub mod config;
pub mod error;
pub mod files;
pub mod tokenizer;
mod transformer;

pub use transformer::{KvCache, Transformer, next_token_loss};
