//! One hook system for training neural networks and for understanding them.
//!
//! This crate is the front door: it re-exports the parts and holds the command line.
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
