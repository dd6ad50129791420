//! What can go wrong when a model is looked into.

use tenterhook_hooks::{AttachError, Control, HookError, Pass};
use tenterhook_models::error::ModelError;

use crate::store::StoreError;

/// What an inference, a generation or an analysis failed with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LensError {
    /// The model or its tokenizer cannot be read, or not found.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A hook cannot be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A hook whose policy is to abort failed.
    #[error(transparent)]
    Hook(HookError),
    /// A hook asked for the end.
    #[error("hook `{hook_id}` asked to abort: {reason}")]
    Aborted {
        /// Who asked.
        hook_id: String,
        /// Why.
        reason: String,
    },
    /// What was asked for makes no sense, or does not fit the model.
    #[error("{0}")]
    BadInput(String),
    /// A store of activations cannot be written or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The tensor engine failed.
    #[error(transparent)]
    Engine(#[from] candle_core::Error),
}

impl LensError {
    /// Why a pass failed: what a hook has to say says more than the engine's error.
    pub fn of_pass(error: candle_core::Error, pass: &Pass) -> Self {
        match (pass.fatal(), pass.control()) {
            (Some(error), _) => Self::Hook(error),
            (None, Some(Control::Abort { hook_id, reason })) => Self::Aborted { hook_id, reason },
            _ => Self::Engine(error),
        }
    }
}
