//! Understanding language models: inference with hooks, capture, interventions, analyses. Needs no trainer.
//!
//! ```
//! use candle_core::{DType, Device};
//! use tenterhook_hooks::hook_fn;
//! use tenterhook_lens::{CacheOptions, LanguageModel};
//! use tenterhook_models::{Transformer, config::TransformerConfig};
//!
//! // `LanguageModel::from_pretrained("path/to/gpt2")` reads a Hugging Face directory with its tokenizer.
//! let lm = LanguageModel::new(Transformer::init(TransformerConfig::gpt2(50, 16, 8, 2, 2), 42, DType::F32, &Device::Cpu)?)?;
//! let ids = lm.batch_of(&[1, 2, 3])?;
//!
//! let half = hook_fn::edit("*", |_, x, _| Ok(Some((x * 0.5)?)));
//! lm.layers().register_hook("transformer.h.0.attn", half)?;
//! let (logits, cache, report) = lm.run_with_cache(&ids, &CacheOptions::points("blocks.*.hook_resid_post"))?;
//! assert_eq!((logits.dims(), cache.len()), (&[1, 3, 50][..], 2));
//! assert_eq!(report.hooks[0].receipt.edits, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod analysis;
mod cache;
pub mod controllers;
mod detectors;
mod error;
mod generate;
mod inference;
mod language_model;
mod layers;
pub mod patching;
pub mod steering;
pub mod store;
mod tokens;

pub use cache::{ActivationCache, CacheOptions};
pub use detectors::LayerActivationDetector;
pub use error::LensError;
pub use generate::{GenerateOptions, Generation, NewToken, Sampling};
pub use inference::{Inference, InferenceOptions, PaddingSide};
pub use language_model::LanguageModel;
pub use layers::{LayerInfo, Layers};
pub use store::{
    CaptureToOptions, Captured, LocalStore, LongTexts, RowBatch, ShuffleOptions, StoreCapture, StoreError,
    StoreOptions, StoreReader, StoreSummary, StoreWriter,
};
