//! Models with hooks: one configurable decoder, read from and written as Hugging Face model directories, and an MLP.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use tenterhook_hooks::PassSetup;
//! use tenterhook_models::{Transformer, config::TransformerConfig};
//!
//! // `Transformer::load(dir, ..)` reads GPT-2, GPT-NeoX, Llama, Mistral, Qwen2, Qwen3, Gemma 2 and Phi-3.
//! let model = Transformer::init(TransformerConfig::gpt2(50, 16, 8, 2, 2), 42, DType::F32, &Device::Cpu)?;
//! let hooks = model.hook_manager();
//! let seen = hooks.register_capture_hook("blocks.*.attn.hook_pattern", None, None, false, true)?;
//! model.forward(&Tensor::new(&[[1u32, 2, 3]], &Device::Cpu)?, &hooks.pass(PassSetup::default()))?;
//! assert_eq!(hooks.get_captured_states(&seen)?[0].shape(), [1, 2, 3, 3]);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

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
