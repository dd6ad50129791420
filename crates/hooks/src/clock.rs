//! What a pass is: when, in which mode, at which positions.

use std::any::Any;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::rows::Rows;

/// Where in a run a pass happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// The optimizer step, or the number of the forward where there is no training.
    pub step: u64,
    /// The epoch.
    pub epoch: u64,
    /// The batch inside the epoch.
    pub batch: u64,
    /// The micro-batch inside the step, with gradient accumulation.
    pub micro_batch: u64,
}

/// What the forward is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Dropout is on.
    Train,
    /// Dropout is off.
    #[default]
    Eval,
    /// The same inside a training run, on data that is not trained on.
    Validate,
    /// The prompt of a generation, all positions at once.
    Prefill,
    /// One further token of a generation.
    Decode,
}

/// Which gradients the pass is made for. Without any, no tape is kept and no gradient hook is armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gradients {
    /// None: inference.
    #[default]
    Off,
    /// Only at the points where gradient hooks listen; the weights are constants.
    Activations,
    /// At the points and for every parameter: training.
    Parameters,
}

/// How a pass is set up. Everything has a default: an inference pass of step 0.
#[derive(Clone, Default)]
pub struct PassSetup {
    /// Where in the run it happens.
    pub clock: Clock,
    /// What it is for.
    pub mode: Mode,
    /// Which gradients it is made for.
    pub gradients: Gradients,
    /// The absolute position of the first token, when earlier ones are in a cache.
    pub first_position: usize,
    /// Whether keys and values of this pass are kept for later ones.
    pub keeps_cache: bool,
    /// Where the tokens of each sequence stand, when some of the batch is padding.
    pub rows: Option<Arc<Rows>>,
    /// Which example of a larger batch is the first of this one, where several processes have parts of it. Randomness goes by examples, so
    /// that it is the same however a batch is divided.
    pub first_row: usize,
    /// The seed of all randomness in the pass.
    pub seed: u64,
    /// What layers of other crates need to find in the pass, one value per type.
    pub extensions: Vec<Arc<dyn Any + Send + Sync>>,
}

impl PassSetup {
    /// A training pass at this step.
    pub fn train(step: u64) -> Self {
        Self {
            clock: Clock { step, batch: step, ..Clock::default() },
            mode: Mode::Train,
            gradients: Gradients::Parameters,
            ..Self::default()
        }
    }

    /// An inference pass with this number.
    pub fn eval(step: u64) -> Self {
        Self { clock: Clock { step, batch: step, ..Clock::default() }, ..Self::default() }
    }

    /// The same with these gradients.
    pub fn gradients(self, gradients: Gradients) -> Self {
        Self { gradients, ..self }
    }

    /// The same with a value that layers can find by its type.
    pub fn with<T: Any + Send + Sync>(mut self, value: Arc<T>) -> Self {
        self.extensions.push(value);
        self
    }
}
