//! Training: the loop, optimizers, data, configuration, checkpoints and the built-in hooks.
//!
//! A [`Trainer`] trains any [`TrainModel`] on a [`data::Mixture`] of loaders with some [`optim::Optimizer`]s, and tells its hooks
//! everything that happens. With a [`Run`] it leaves a record on the disk and can be killed at any moment. [`config`] reads the
//! same from TOML; `tenterhook::training` puts both together for the models of this project.
//!
//! - [`data`]: sets of examples, the order they come in, how several are mixed;
//! - [`optim`], [`schedule`]: the steps, and how large they are;
//! - [`hooks`]: the built-in hooks, a file each;
//! - [`config`]: configurations, with every problem at once.

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

pub use error::TrainError;
pub use interrupt::Interrupt;
pub use model::{Evaluation, TrainModel};
pub use run::{Run, RunFacts, versions};
pub use trainer::{Finished, Settings, StepOutcome, Trainer, get_trainer, write_captured};
