//! What hooks may ask of a trainer.

/// Something a hook asks the trainer to do, at the next safe place.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Sets the learning rate. A schedule goes on from there: its further factors apply to the new rate.
    SetLr {
        /// Of one optimizer, or of all.
        optimizer: Option<usize>,
        /// Of one parameter group, or of all.
        group: Option<usize>,
        /// The new rate.
        lr: f64,
    },
    /// Multiplies the learning rate.
    ScaleLr {
        /// Of one optimizer, or of all.
        optimizer: Option<usize>,
        /// Of one parameter group, or of all.
        group: Option<usize>,
        /// By how much.
        factor: f64,
    },
    /// Saves a checkpoint.
    Save {
        /// The name of its directory; without one, the trainer's usual name.
        name: Option<String>,
    },
    /// Removes a checkpoint, after all saves that were asked for before.
    Remove {
        /// The name of its directory.
        name: String,
    },
    /// Validates, also when it is not due.
    Validate,
    /// Stops training these parameters. They keep their optimizer state.
    Freeze(Vec<String>),
    /// Trains these parameters again.
    Unfreeze(Vec<String>),
}
