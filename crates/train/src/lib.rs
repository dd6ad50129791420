//! Training: the loop, optimizers, data, configuration, checkpoints and the built-in hooks.

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
pub use trainer::{Finished, Settings, StepOutcome, Trainer, get_trainer};
