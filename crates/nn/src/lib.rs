//! Layers that differentiate and carry their points.
//!
//! [`ops`] are free functions on candle tensors, each with a forward and a backward: fused and threaded on the CPU, composed of
//! candle ops on other devices. [`layers`] are what models are made of: weights and points under one path, handed out by a [`Scope`].
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use tenterhook_hooks::{HookManager, PassSetup};
//! use tenterhook_nn::{Init, RandomWeights, Scope, backward, check_coverage};
//!
//! let root = Scope::new(RandomWeights { seed: 1 }, DType::F32, &Device::Cpu);
//! let weight = root.pp("fc").param("weight", &[3, 2], Init::Normal { std: 0.1 })?;
//! let (points, params) = root.finish();
//!
//! let pass = HookManager::new(points).pass(PassSetup::train(0));
//! let x = Tensor::new(&[[1f32, 2.0, 3.0]], &Device::Cpu)?;
//! let loss = x.matmul(weight.at(&pass))?.sqr()?.sum_all()?;
//! let grads = backward(&loss, &params, None)?;
//! check_coverage(&grads, &params)?; // no gradient can be missing without a word
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod layers;
pub mod ops;
pub mod parallel;
mod param;
mod scope;
mod stack;

pub use param::{CoverageError, GradBuffers, LossShare, Param, Params, backward, check_coverage};
pub use scope::{Init, RandomWeights, Scope, Weights};
pub use stack::on_deep_stack;
