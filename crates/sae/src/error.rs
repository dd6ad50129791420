//! What can go wrong with a sparse autoencoder.

use std::path::{Path, PathBuf};

use tenterhook_hooks::AttachError;
use tenterhook_lens::LensError;
use tenterhook_models::error::{ModelError, Problems};
use tenterhook_train::TrainError;
use tenterhook_train::data::DataError;

/// What reading, training or using a sparse autoencoder failed with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaeError {
    /// A `cfg.json` that is wrong or asks for something that is not supported.
    #[error("{}: {problems}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// All that is wrong with it.
        problems: Problems,
    },
    /// A file cannot be read or written, or holds something else.
    #[error(transparent)]
    Files(#[from] ModelError),
    /// The language model failed, or was asked for something it has not.
    #[error(transparent)]
    Lens(Box<LensError>),
    /// The training failed.
    #[error(transparent)]
    Train(Box<TrainError>),
    /// The data does not fit.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A hook or a point does not fit.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// What was asked for makes no sense.
    #[error("{0}")]
    BadInput(String),
    /// The tensor engine failed.
    #[error(transparent)]
    Engine(#[from] candle_core::Error),
}

impl From<LensError> for SaeError {
    fn from(error: LensError) -> Self {
        Self::Lens(Box::new(error))
    }
}

impl From<TrainError> for SaeError {
    fn from(error: TrainError) -> Self {
        Self::Train(Box::new(error))
    }
}

impl SaeError {
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::BadInput(message.into())
    }

    pub(crate) fn about(path: &Path, problem: impl std::fmt::Display) -> Self {
        Self::BadInput(format!("{}: {problem}", path.display()))
    }
}
