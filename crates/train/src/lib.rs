//! Training: the loop, optimizers, data, configuration, checkpoints and the built-in hooks.
//!
//! A [`Trainer`] trains any [`TrainModel`] on a [`data::Mixture`] of loaders with some [`optim::Optimizer`]s, and tells its hooks
//! everything that happens. With a [`Run`] it leaves a record on the disk and can be killed at any moment. [`config`] reads the
//! same from TOML; `tenterhook::training` puts both together for the models of this project.
//!
//! - [`data`]: sets of examples, the order they come in, how several are mixed;
//! - [`optim`], [`schedule`]: the steps, and how large they are;
//! - [`hooks`]: the built-in hooks, a file each;
//! - [`config`]: configurations, with every problem at once;
//! - [`World`]: several processes that train one model.
//!
//! ```
//! use std::sync::Arc;
//!
//! use candle_core::{DType, Device, Result, Tensor};
//! use tenterhook_hooks::{Batch, Pass, PointTable};
//! use tenterhook_nn::{Init, Param, Params, RandomWeights, Scope};
//! use tenterhook_train::data::{InMemory, Loader, Mixture, Strategy};
//! use tenterhook_train::optim::{Kind, Optimizer, OptimizerConfig};
//! use tenterhook_train::{Settings, TrainModel, get_trainer};
//!
//! /// y = slope * x
//! struct Line(Arc<PointTable>, Params, Param);
//!
//! impl TrainModel for Line {
//!     fn points(&self) -> &Arc<PointTable> {
//!         &self.0
//!     }
//!     fn params(&self) -> &Params {
//!         &self.1
//!     }
//!     fn forward(&self, batch: &Batch, pass: &Pass) -> Result<Tensor> {
//!         batch.get("inputs")?.matmul(self.2.at(pass))
//!     }
//!     fn loss(&self, output: &Tensor, batch: &Batch) -> Result<Tensor> {
//!         (output - batch.get("targets")?)?.sqr()?.mean_all()
//!     }
//! }
//!
//! let scope = Scope::new(RandomWeights { seed: 42 }, DType::F32, &Device::Cpu);
//! let slope = scope.param("slope", &[1, 1], Init::Zeros)?;
//! let (points, params) = scope.finish();
//! let model = Arc::new(Line(points, params, slope));
//!
//! let x = Tensor::new(&[[1f32], [2.0]], &Device::Cpu)?;
//! let data = InMemory::new(vec![("targets".to_string(), (&x * 3.0)?), ("inputs".to_string(), x)])?;
//! let data = Mixture::new(vec![Loader::new("line", Arc::new(data), 2)], Strategy::Sequential, 42)?;
//! let optimizers = Optimizer::build(&[OptimizerConfig::new(Kind::Sgd, 0.1)], model.params(), false)?;
//! let mut trainer = get_trainer("simple", model.clone(), data, optimizers, Settings::steps(50))?;
//! trainer.train()?;
//! assert!((model.2.value().max_all()?.to_scalar::<f32>()? - 3.0).abs() < 1e-3);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

mod checkpoint;
pub mod config;
pub mod data;
mod error;
pub mod hooks;
mod interrupt;
mod model;
pub mod optim;
mod progress;
mod run;
pub mod schedule;
mod trainer;
mod watchdog;
mod world;

pub use error::TrainError;
pub use interrupt::Interrupt;
pub use model::{Evaluation, TrainModel};
pub use run::{Run, RunFacts, versions};
pub use trainer::{Finished, Settings, StepOutcome, Trainer, get_trainer, write_captured};
pub use world::{Share, Together, World, WorldError};
