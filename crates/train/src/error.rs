//! What can end a run.

use tenterhook_hooks::Ended;
use tenterhook_record::checkpoints::CheckpointError;

use crate::data::DataError;
use crate::optim::OptimError;
use crate::schedule::ScheduleError;

/// What ended a run, or kept it from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A hook failed whose policy is to abort, or a hook asked for it.
    #[error(transparent)]
    Hook(#[from] Ended),
    /// Something was NaN or infinite. The weights are as they were before the step.
    #[error("{0}")]
    NonFinite(String),
    /// The data could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// An optimizer refused.
    #[error(transparent)]
    Optimizer(#[from] OptimError),
    /// The schedule makes no sense for this run.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A checkpoint could not be written.
    #[error("the checkpoint could not be written: {0}")]
    Save(String),
    /// A checkpoint does not fit this run, or is damaged.
    #[error("{0}")]
    Checkpoint(#[from] CheckpointError),
    /// A checkpoint was read and does not fit.
    #[error("checkpoint {path}: {problem}")]
    Unfit {
        /// The checkpoint, or a file of it.
        path: String,
        /// What does not fit.
        problem: String,
    },
    /// The run's record could not be written.
    #[error("the run's record: {0}")]
    Record(String),
    /// The trainer was set up in a way that cannot work.
    #[error("{0}")]
    Setup(String),
    /// Another rank failed, or the ranks do not do the same any more.
    #[error(transparent)]
    World(#[from] crate::world::WorldError),
    /// The tensor engine failed.
    #[error(transparent)]
    Engine(#[from] candle_core::Error),
}
