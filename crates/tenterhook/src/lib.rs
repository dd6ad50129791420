//! One hook system for training neural networks and for understanding them.
//!
//! This crate is the front door: it re-exports the parts and holds the command line. The guide is in the repository's `docs` directory.
//!
//! - [`hooks`]: the spine: points, hooks, passes, receipts;
//! - [`nn`]: ops and layers that differentiate and carry their points;
//! - [`models`]: transformers of the families on Hugging Face, with their files;
//! - [`lens`]: language models with hooks: inference, generation, caches of activations;
//! - [`sae`]: sparse autoencoders;
//! - [`train`]: the trainer, optimizers, data, configurations, the built-in hooks;
//! - [`record`]: what runs leave on the disk;
//! - [`training`]: runs from configurations, where models and trainer meet;
//! - [`pages`]: HTML pages with plots;
//! - [`demo`]: the demonstration: induction heads form, and are ablated.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use tenterhook::hooks::{PassSetup, hook_fn};
//! use tenterhook::models::{Transformer, config::TransformerConfig};
//!
//! let model = Transformer::init(TransformerConfig::gpt2(50, 16, 8, 2, 2), 42, DType::F32, &Device::Cpu)?;
//! let hooks = model.hook_manager();
//! hooks.register(hook_fn::edit("blocks.1.hook_attn_out", |_, x, _| Ok(Some((x * 0.5)?))))?;
//!
//! let pass = hooks.pass(PassSetup::default());
//! model.forward(&Tensor::new(&[[1u32, 2, 3]], &Device::Cpu)?, &pass)?;
//! assert_eq!(pass.report().hooks[0].receipt.edits, 1); // what the hook really did
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use tenterhook_hooks as hooks;
pub use tenterhook_lens as lens;
pub use tenterhook_models as models;
pub use tenterhook_nn as nn;
pub use tenterhook_record as record;
pub use tenterhook_sae as sae;
pub use tenterhook_train as train;

pub mod cli;
pub mod demo;
pub mod pages;
pub mod training;

/// The guide's code, which is run with the documentation tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/concepts.md")]
    mod concepts {}
    #[doc = include_str!("../../../docs/first-hook.md")]
    mod first_hook {}
    #[doc = include_str!("../../../docs/own-model.md")]
    mod own_model {}
    #[doc = include_str!("../../../docs/training.md")]
    mod training {}
    #[doc = include_str!("../../../docs/capture-and-patch.md")]
    mod capture_and_patch {}
    #[doc = include_str!("../../../docs/sae.md")]
    mod sae {}
}
