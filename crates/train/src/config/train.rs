//! The `[train]` section.

use crate::data::Strategy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::forms::{FastDevRun, TimeLimit, ValidateEvery};

/// What happens when a checkpoint, or a row of the log, cannot be written. The last checkpoint of a run has to be written in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnCheckpointFailure {
    /// Training stops.
    #[default]
    Stop,
    /// It is logged, and training goes on.
    Continue,
}

/// What happens when the loss or a gradient is NaN or infinite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnNonFinite {
    /// Training stops.
    #[default]
    Stop,
    /// The weights are left as they are, and training goes on.
    Skip,
}

/// How long and how the run trains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainSection {
    /// Optimizer steps of the whole run; either this or `epochs`.
    pub steps: Option<u64>,
    /// Passes over the training data; either this or `steps`.
    pub epochs: Option<u64>,
    /// Validates after so many steps, or after every "epoch"; by default only at the end.
    pub validate_every: Option<ValidateEvery>,
    /// At most so many batches of every validation set; by default all.
    pub validate_batches: Option<u64>,
    /// Validates once before the first step.
    pub validate_first: bool,
    /// Writes a checkpoint to resume from after so many steps; by default only at the beginning, at the end and when interrupted.
    pub checkpoint_every: Option<u64>,
    /// How many checkpoints to resume from are kept.
    pub keep_checkpoints: u64,
    /// Writes checkpoints beside the training.
    pub async_checkpoints: bool,
    /// What happens when a checkpoint, or a row of the log, cannot be written: "stop" or "continue".
    pub on_checkpoint_failure: OnCheckpointFailure,
    /// Scales the gradients down to this norm over all of them.
    pub grad_clip: Option<f64>,
    /// Clips every element of the gradients to plus and minus this.
    pub grad_clip_value: Option<f64>,
    /// Batches whose gradients are averaged for one step.
    pub grad_accumulation: u64,
    /// What happens when the loss or a gradient is NaN or infinite: "stop" or "skip".
    pub on_non_finite: OnNonFinite,
    /// Skipped steps in a row after which training stops anyway.
    pub max_skipped: u64,
    /// How several training sets are mixed: "sequential", "round_robin", "weighted" or "alternating".
    pub loader_strategy: Strategy,
    /// Stops after this time: seconds, "1h30m", "90s" or "00:12:00:00" (days first).
    pub max_time: Option<TimeLimit>,
    /// Runs only a few batches of everything: true is 3, or a number.
    pub fast_dev_run: FastDevRun,
    /// Records the metrics of every n-th step.
    pub log_every: u64,
    /// Reports a step that takes longer than so many seconds; 0 never.
    pub watchdog: u64,
    /// Threads for computing; by default one per core.
    pub threads: Option<usize>,
    /// The same numbers on every run.
    pub deterministic: bool,
    /// Logs more, and hook errors with their backtraces.
    pub debug: bool,
    /// Where to compute; by default the CPU.
    pub device: Option<String>,
}

impl Default for TrainSection {
    fn default() -> Self {
        Self {
            steps: None,
            epochs: None,
            validate_every: None,
            validate_batches: None,
            validate_first: false,
            checkpoint_every: None,
            keep_checkpoints: 2,
            async_checkpoints: false,
            on_checkpoint_failure: OnCheckpointFailure::Stop,
            grad_clip: None,
            grad_clip_value: None,
            grad_accumulation: 1,
            on_non_finite: OnNonFinite::Stop,
            max_skipped: 10,
            loader_strategy: Strategy::Sequential,
            max_time: None,
            fast_dev_run: FastDevRun::default(),
            log_every: 1,
            watchdog: 60,
            threads: None,
            deterministic: true,
            debug: false,
            device: None,
        }
    }
}

impl TrainSection {
    /// What is wrong with the values: key and message.
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, message: &str| problems.push((key.to_string(), message.to_string()));
        match (self.steps, self.epochs) {
            (None, None) => wrong("", "either `steps` or `epochs` is needed, such as steps = 1000"),
            (Some(_), Some(_)) => wrong("epochs", "`steps` is given too; remove one of them"),
            _ => {}
        }
        let validate_steps = match self.validate_every {
            Some(ValidateEvery::Steps(steps)) => Some(steps),
            _ => None,
        };
        for (key, value) in [
            ("steps", self.steps),
            ("epochs", self.epochs),
            ("validate_every", validate_steps),
            ("validate_batches", self.validate_batches),
            ("checkpoint_every", self.checkpoint_every),
            ("keep_checkpoints", Some(self.keep_checkpoints)),
            ("grad_accumulation", Some(self.grad_accumulation)),
            ("max_skipped", Some(self.max_skipped)),
            ("log_every", Some(self.log_every)),
            ("threads", self.threads.map(|threads| threads as u64)),
        ] {
            if value == Some(0) {
                wrong(key, "is 0, it must be at least 1");
            }
        }
        for (key, value) in [("grad_clip", self.grad_clip), ("grad_clip_value", self.grad_clip_value)] {
            if value.is_some_and(|value| !(value.is_finite() && value > 0.0)) {
                wrong(key, "must be above 0; leave it out to clip nothing");
            }
        }
        if self.grad_clip.is_some() && self.grad_clip_value.is_some() {
            wrong("grad_clip_value", "`grad_clip` is given too; remove one of them");
        }
        if !self.deterministic {
            wrong(
                "deterministic",
                "is false, and there is nothing to gain: results never depend on threads; leave it out",
            );
        }
        if self.device.as_deref().is_some_and(str::is_empty) {
            wrong("device", "is empty");
        }
        problems
    }
}
