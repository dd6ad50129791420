//! Sparse autoencoders: formats, training, evaluation, steering.
//!
//! [`Sae`] reads and writes the directories of SAELens and gives the same numbers. [`training`] trains them with the project's own trainer
//! and hooks, on [activations](source) straight from a model or from a store; [`evaluate`] says how good they are, [`top_texts`] what
//! their latents are active on, and the hook kind `sae` ([`SaeHook`]) puts them into a model.
//!
//! ```
//! use std::sync::Arc;
//!
//! use candle_core::{DType, Device, Tensor};
//! use tenterhook_sae::training::{RunOptions, SaeTask, SaeTraining, trainer};
//! use tenterhook_sae::{Architecture, SaeConfig};
//! use tenterhook_train::data::InMemory;
//!
//! // Activations as rows; `source` takes them from a model or a store.
//! let x = Tensor::arange(0f32, 64.0, &Device::Cpu)?.reshape((16, 4))?.sin()?;
//! let data = Arc::new(InMemory::new(vec![("inputs".to_string(), x.clone())])?);
//! let config = SaeConfig::new(4, 8, Architecture::TopK { k: 2, rescale_acts_by_decoder_norm: true });
//! let task = Arc::new(SaeTask::single(config, SaeTraining::default(), 42)?);
//! trainer(&task, data, &RunOptions::new(20, 8))?.train()?;
//!
//! let latents = task.to_sae(0)?.encode(&x)?.acts;
//! assert_eq!(latents.dims(), [16, 8]);
//! let active = latents.ne(0f32)?.to_dtype(DType::F32)?.sum(1)?;
//! assert!(active.max(0)?.to_scalar::<f32>()? <= 2.0);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

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
