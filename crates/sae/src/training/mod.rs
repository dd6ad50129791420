//! Training autoencoders with the project's own trainer.
//!
//! [`SaeTask`] is what is trained: one autoencoder, or several side by side on the activations of one pass. [`trainer`] puts it together
//! with data, an optimizer and the hook that keeps count of latents; everything else (checkpoints, resuming, logs, schedules, further
//! hooks) is the trainer's.

mod build;
mod keeper;
mod latents;
mod losses;
mod options;
mod resample;
mod task;

pub use build::{RunOptions, trainer};
pub use keeper::SaeKeeper;
pub use options::{SaeTraining, SparsityLoss};
pub use task::SaeTask;
