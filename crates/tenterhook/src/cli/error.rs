//! Errors of commands, with the exit code each means.

use std::fmt;

use tenterhook_hooks::{AttachError, Refused};
use tenterhook_lens::{LensError, StoreError};
use tenterhook_models::error::ModelError;
use tenterhook_record::run::RunError;
use tenterhook_train::config::Problems;
use tenterhook_train::{Together, WorldError};

use crate::training::BeginError;

/// What a command failed with.
#[derive(Debug)]
pub(super) struct CliError {
    message: String,
    exit_code: u8,
}

impl CliError {
    /// Wrong usage, configuration or file, found before any work was done.
    pub(super) fn bad_input(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit_code: 2 }
    }

    /// The work itself failed.
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit_code: 1 }
    }

    /// The same, which others have told already, or will.
    pub(super) fn untold(self) -> Self {
        Self { message: String::new(), ..self }
    }

    /// The same with something before it.
    pub(super) fn of(self, whose: &str) -> Self {
        Self { message: format!("{whose}: {}", self.message), ..self }
    }

    /// An end with this exit code that somebody else has told about.
    pub(super) fn with_code(exit_code: u8) -> Self {
        Self { message: String::new(), exit_code }
    }

    pub(super) fn is_untold(&self) -> bool {
        self.message.is_empty()
    }

    pub(super) fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<WorldError> for CliError {
    fn from(error: WorldError) -> Self {
        Self::bad_input(error.to_string())
    }
}

impl<E: Into<CliError>> From<Together<E>> for CliError {
    fn from(error: Together<E>) -> Self {
        match error {
            Together::Own(error) => error.into(),
            Together::Others(error) => error.into(),
        }
    }
}

impl From<ModelError> for CliError {
    fn from(error: ModelError) -> Self {
        Self::bad_input(error.to_string())
    }
}

impl From<AttachError> for CliError {
    fn from(error: AttachError) -> Self {
        Self::bad_input(error.to_string())
    }
}

impl From<LensError> for CliError {
    fn from(error: LensError) -> Self {
        match error {
            LensError::Model(_) | LensError::Attach(_) | LensError::BadInput(_) => {
                Self::bad_input(error.to_string())
            }
            LensError::Store(error) => error.into(),
            // It was asked for something that cannot be: a head that is not there, an edit of what is cached.
            LensError::Hook(ref failure) if failure.original_error.is::<Refused>() => {
                Self::bad_input(error.to_string())
            }
            _ => Self::failed(error.to_string()),
        }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        match error.is_bad_input() {
            true => Self::bad_input(error.to_string()),
            false => Self::failed(error.to_string()),
        }
    }
}

impl From<candle_core::Error> for CliError {
    fn from(error: candle_core::Error) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<tenterhook_hooks::BoxError> for CliError {
    fn from(error: tenterhook_hooks::BoxError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<Problems> for CliError {
    fn from(problems: Problems) -> Self {
        Self::bad_input(problems.to_string())
    }
}

impl From<BeginError> for CliError {
    fn from(error: BeginError) -> Self {
        Self::bad_input(error.to_string())
    }
}

impl From<RunError> for CliError {
    fn from(error: RunError) -> Self {
        Self::bad_input(error.to_string())
    }
}
