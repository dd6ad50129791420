//! Training: the loop, optimizers, data, configuration, checkpoints and the built-in hooks.

pub mod hooks;
