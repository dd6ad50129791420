//! Sparse autoencoders: formats, training, evaluation, steering.
//!
//! [`Sae`] reads and writes the directories of SAELens and gives the same numbers. [`training`] trains them with the project's own trainer
//! and hooks, on [activations](source) straight from a model or from a store; [`evaluate`] says how good they are, [`top_texts`] what
//! their latents are active on, and the hook kind `sae` ([`SaeHook`]) puts them into a model.

mod cfg_json;
mod config;
mod error;
mod evaluate;
mod files;
mod hook;
mod init;
mod layer;
mod names;
mod normalize;
mod sae;
pub mod source;
mod top;
pub mod training;

pub use config::{Architecture, Normalize, Reshape, SaeConfig};
pub use error::SaeError;
pub use evaluate::{CrossEntropy, EvalOptions, Evaluated, evaluate};
pub use files::{CFG, WEIGHTS};
pub use hook::{LatentEdit, LatentRef, SaeHook, SaeOptions, register_kinds};
pub use init::FreshWeights;
pub use layer::{Encoded, SaeLayer};
pub use names::ConceptNames;
pub use sae::Sae;
pub use top::{LatentTop, TopOptions, TopText, top_texts};
