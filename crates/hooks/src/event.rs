//! What happens in a run, as hooks are told of it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::cx::Cx;
use crate::error::HookResult;
use crate::grads::NamedGrads;
use crate::hook::Hook;
use crate::kinds::monitor::Histogram;

/// Values by name, such as `loss` or `val/accuracy`.
pub type Metrics = BTreeMap<String, f64>;

/// A batch on its way through training or validation.
#[derive(Clone, Copy, Debug)]
pub struct BatchInfo<'a> {
    /// The tensors, and which examples they are.
    pub batch: &'a Batch,
    /// Its number in the epoch, or in the validation of its set.
    pub batch_idx: u64,
    /// The number of the loader it came from.
    pub dataloader_idx: usize,
    /// The name of that loader.
    pub dataloader_name: &'a str,
    /// Empty when the batch starts; at its end `loss` and what was published meanwhile.
    pub metrics: &'a Metrics,
    /// Whether an optimizer step follows the backward of this batch, or has followed: with gradient accumulation not every batch
    /// makes a step.
    pub completes_step: bool,
}

/// Which batch it is, such as ``batch 3 of `train` (examples 5, 9)``.
impl fmt::Display for BatchInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMED: usize = 8;
        let examples = self.batch.examples();
        let shown = examples.iter().take(NAMED).map(u64::to_string).collect::<Vec<_>>().join(", ");
        let more = if examples.len() > NAMED { ", ..." } else { "" };
        write!(f, "batch {} of `{}` (examples {shown}{more})", self.batch_idx, self.dataloader_name)
    }
}

/// Gradients were clipped, or would have been had they been larger.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipInfo {
    /// The global norm before.
    pub before: f64,
    /// The global norm after.
    pub after: f64,
}

/// A checkpoint on the disk.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointInfo<'a> {
    /// Its directory.
    pub path: &'a Path,
    /// The name of that directory.
    pub name: &'a str,
    /// After which step.
    pub step: u64,
    /// The ids of the hooks that asked for it; empty when the trainer saved by itself.
    pub requested_by: &'a [String],
}

/// One line of the record: what was measured at a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricsRow {
    /// How many optimizer steps have been taken.
    pub step: u64,
    /// In which epoch.
    pub epoch: u64,
    /// The numbers.
    pub values: Metrics,
    /// The histograms, which only some logs can hold.
    pub histograms: BTreeMap<String, Histogram>,
}

/// How a run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// It is running.
    #[default]
    Training,
    /// It did all its steps.
    Completed,
    /// A hook asked for the end.
    Stopped,
    /// A signal ended it; it can go on.
    Interrupted,
    /// It failed.
    Error,
}

impl RunStatus {
    /// The word in records.
    pub fn as_str(self) -> &'static str {
        match self {
            RunStatus::Training => "training",
            RunStatus::Completed => "completed",
            RunStatus::Stopped => "stopped",
            RunStatus::Interrupted => "interrupted",
            RunStatus::Error => "error",
        }
    }
}

/// One event of a run with what it carries. Each is a method of [`Hook`] of the same name, where it is described.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // said once, at the methods
pub enum Event<'a> {
    TrainStart,
    EpochStart(u64),
    TrainBatchStart(&'a BatchInfo<'a>),
    AfterForward(&'a BatchInfo<'a>),
    BeforeBackward(f64),
    AfterBackward(&'a NamedGrads),
    GradientClip(ClipInfo),
    BeforeOptimizerStep(usize),
    AfterOptimizerStep(usize),
    TrainBatchEnd(&'a BatchInfo<'a>),
    ValidationStart(u64),
    ValidationBatchStart(&'a BatchInfo<'a>),
    ValidationBatchEnd(&'a BatchInfo<'a>),
    ValidationEnd(&'a Metrics),
    CheckpointSave(&'a CheckpointInfo<'a>),
    CheckpointLoad(&'a CheckpointInfo<'a>),
    EpochEnd(u64),
    Metrics(&'a MetricsRow),
    Exception(&'a str),
    TrainEnd(RunStatus),
}

/// To which part of a run an event belongs: it decides whether `every`, `sample_rate` and `start_after_epoch` hold it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Beginnings and ends of runs, checkpoints, failures: every enabled hook is told.
    Run,
    /// Epochs and validation: held back by `start_after_epoch`.
    Epoch,
    /// Inside a step: held back by all three.
    Step,
}

impl Event<'_> {
    /// The name of the method.
    pub fn name(&self) -> &'static str {
        match self {
            Event::TrainStart => "on_train_start",
            Event::EpochStart(_) => "on_epoch_start",
            Event::TrainBatchStart(_) => "on_train_batch_start",
            Event::AfterForward(_) => "on_after_forward",
            Event::BeforeBackward(_) => "on_before_backward",
            Event::AfterBackward(_) => "on_after_backward",
            Event::GradientClip(_) => "on_gradient_clip",
            Event::BeforeOptimizerStep(_) => "on_before_optimizer_step",
            Event::AfterOptimizerStep(_) => "on_after_optimizer_step",
            Event::TrainBatchEnd(_) => "on_train_batch_end",
            Event::ValidationStart(_) => "on_validation_start",
            Event::ValidationBatchStart(_) => "on_validation_batch_start",
            Event::ValidationBatchEnd(_) => "on_validation_batch_end",
            Event::ValidationEnd(_) => "on_validation_end",
            Event::CheckpointSave(_) => "on_checkpoint_save",
            Event::CheckpointLoad(_) => "on_checkpoint_load",
            Event::EpochEnd(_) => "on_epoch_end",
            Event::Metrics(_) => "on_metrics",
            Event::Exception(_) => "on_exception",
            Event::TrainEnd(_) => "on_train_end",
        }
    }

    /// Whether the run is over after it.
    pub(crate) fn is_end(&self) -> bool {
        matches!(self, Event::Exception(_) | Event::TrainEnd(_))
    }

    pub(crate) fn scope(&self) -> Scope {
        match self {
            Event::TrainBatchStart(_)
            | Event::AfterForward(_)
            | Event::BeforeBackward(_)
            | Event::AfterBackward(_)
            | Event::GradientClip(_)
            | Event::BeforeOptimizerStep(_)
            | Event::AfterOptimizerStep(_)
            | Event::TrainBatchEnd(_) => Scope::Step,
            Event::EpochStart(_)
            | Event::ValidationStart(_)
            | Event::ValidationBatchStart(_)
            | Event::ValidationBatchEnd(_)
            | Event::ValidationEnd(_)
            | Event::EpochEnd(_) => Scope::Epoch,
            // A row of a step belongs to the step; a row of a validation does not.
            Event::Metrics(row) if row.values.contains_key("loss") => Scope::Step,
            Event::Metrics(_) => Scope::Epoch,
            _ => Scope::Run,
        }
    }

    pub(crate) fn tell(&self, hook: &mut dyn Hook, cx: &mut Cx) -> HookResult {
        match *self {
            Event::TrainStart => hook.on_train_start(cx),
            Event::EpochStart(epoch) => hook.on_epoch_start(epoch, cx),
            Event::TrainBatchStart(batch) => hook.on_train_batch_start(batch, cx),
            Event::AfterForward(batch) => hook.on_after_forward(batch, cx),
            Event::BeforeBackward(loss) => hook.on_before_backward(loss, cx),
            Event::AfterBackward(grads) => hook.on_after_backward(grads, cx),
            Event::GradientClip(clip) => hook.on_gradient_clip(clip, cx),
            Event::BeforeOptimizerStep(i) => hook.on_before_optimizer_step(i, cx),
            Event::AfterOptimizerStep(i) => hook.on_after_optimizer_step(i, cx),
            Event::TrainBatchEnd(batch) => hook.on_train_batch_end(batch, cx),
            Event::ValidationStart(epoch) => hook.on_validation_start(epoch, cx),
            Event::ValidationBatchStart(batch) => hook.on_validation_batch_start(batch, cx),
            Event::ValidationBatchEnd(batch) => hook.on_validation_batch_end(batch, cx),
            Event::ValidationEnd(metrics) => hook.on_validation_end(metrics, cx),
            Event::CheckpointSave(checkpoint) => hook.on_checkpoint_save(checkpoint, cx),
            Event::CheckpointLoad(checkpoint) => hook.on_checkpoint_load(checkpoint, cx),
            Event::EpochEnd(epoch) => hook.on_epoch_end(epoch, cx),
            Event::Metrics(row) => hook.on_metrics(row, cx),
            Event::Exception(error) => hook.on_exception(error, cx),
            Event::TrainEnd(status) => hook.on_train_end(status, cx),
        }
    }
}
