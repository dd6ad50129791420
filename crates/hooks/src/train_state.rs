//! The state of a run, as hooks may read it.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::event::{Metrics, RunStatus};

/// The state of a run, read-only. Hooks get it through [`Cx::state`](crate::Cx::state).
#[derive(Clone, Debug)]
pub struct TrainState {
    /// The run's id.
    pub run_id: String,
    /// The run's directory; a trainer without a record has none.
    pub run_dir: Option<PathBuf>,
    /// The number of this process among those that train together; 0 writes the record.
    pub rank: usize,
    /// How many processes train together.
    pub world_size: usize,
    /// How the run stands.
    pub status: RunStatus,
    /// Where the tensors are.
    pub device: Device,
    /// How many optimizer steps have been taken.
    pub step: u64,
    /// The epoch.
    pub current_epoch: u64,
    /// The batch inside the epoch.
    pub current_batch_idx: u64,
    /// How many steps there will be, when that is known.
    pub total_steps: Option<u64>,
    /// How many epochs there will be, when that is given.
    pub total_epochs: Option<u64>,
    /// How many batches an epoch has.
    pub batches_per_epoch: u64,
    /// Tokens, or examples where there are no tokens, seen in training so far.
    pub tokens_seen: u64,
    /// The loss of the last step.
    pub latest_loss: Option<f64>,
    /// The mean loss of the steps of this epoch.
    pub avg_loss: Option<f64>,
    /// How many numbers the model holds.
    pub model_params: usize,
    /// The model's parameters by name.
    pub params: Arc<[ParamInfo]>,
    /// The parameters that do not train at the moment, sorted by name.
    pub frozen: Vec<String>,
    /// The optimizers and their groups.
    pub optimizers: Vec<OptimizerInfo>,
    /// The last value of every metric of the run.
    pub metrics: Metrics,
}

impl Default for TrainState {
    fn default() -> Self {
        Self {
            run_id: String::new(),
            run_dir: None,
            rank: 0,
            world_size: 1,
            status: RunStatus::default(),
            device: Device::Cpu,
            step: 0,
            current_epoch: 0,
            current_batch_idx: 0,
            total_steps: None,
            total_epochs: None,
            batches_per_epoch: 0,
            tokens_seen: 0,
            latest_loss: None,
            avg_loss: None,
            model_params: 0,
            params: Arc::from([]),
            frozen: Vec::new(),
            optimizers: Vec::new(),
            metrics: Metrics::new(),
        }
    }
}

impl TrainState {
    /// The current learning rate of the first group of the first optimizer.
    pub fn lr(&self) -> Option<f64> {
        self.optimizers.first()?.groups.first().map(|group| group.lr)
    }
}

/// A parameter of the model.
#[derive(Clone, Debug)]
pub struct ParamInfo {
    /// Its name in model files.
    pub name: String,
    /// Its value. It shares the model's storage: it changes with the next step, and whoever keeps it copies it.
    pub value: Tensor,
}

impl ParamInfo {
    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        self.value.dims()
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.value.dtype()
    }
}

/// An optimizer.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerInfo {
    /// Such as `adamw`, or the name that it was given.
    pub kind: String,
    /// Its parameter groups.
    pub groups: Vec<GroupInfo>,
}

/// Parameters that share their settings.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupInfo {
    /// Such as `decay` or `no_decay`.
    pub name: String,
    /// The learning rate of the next step.
    pub lr: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// The momentum of SGD, the first beta of AdamW.
    pub momentum: f64,
    /// The names of its parameters.
    pub params: Vec<String>,
}
