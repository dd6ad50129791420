//! A task, data and an optimizer as a trainer.

use std::sync::Arc;

use tenterhook_hooks::{HookOptions, OnError};
use tenterhook_train::data::{Dataset, Loader, Mixture, Strategy};
use tenterhook_train::optim::{Kind, Optimizer, OptimizerConfig};
use tenterhook_train::schedule::ScheduleConfig;
use tenterhook_train::{Settings, TrainModel, Trainer, World};

use super::keeper::SaeKeeper;
use super::task::SaeTask;
use crate::error::SaeError;

/// How long and how fast.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Optimizer steps.
    pub steps: u64,
    /// Activations per step.
    pub batch: usize,
    /// The learning rate of Adam.
    pub lr: f64,
    /// How slowly the two moments of Adam forget.
    pub betas: [f64; 2],
    /// How the learning rate changes.
    pub schedule: ScheduleConfig,
    /// The seed of everything that is random.
    pub seed: u64,
    /// Whether the examples come in a random order. A source that shuffles by itself wants none.
    pub shuffle: bool,
    /// A checkpoint after every so many steps, where there is a run to keep it.
    pub checkpoint_every: Option<u64>,
    /// The processes that train together. Each has its part of every batch.
    pub world: World,
}

impl RunOptions {
    /// So many steps of so many activations, with SAELens' defaults for the rest.
    pub fn new(steps: u64, batch: usize) -> Self {
        Self {
            steps,
            batch,
            lr: 3e-4,
            betas: [0.9, 0.999],
            schedule: ScheduleConfig::default(),
            seed: 42,
            shuffle: false,
            checkpoint_every: None,
            world: World::alone(),
        }
    }
}

/// A trainer for this task on this data: Adam without decay, and a [`SaeKeeper`]. Further hooks, a run's record and a validation set can
/// be added as to any trainer.
pub fn trainer(
    task: &Arc<SaeTask>,
    data: Arc<dyn Dataset>,
    options: &RunOptions,
) -> Result<Trainer, SaeError> {
    if options.batch == 0 {
        return Err(SaeError::bad("a batch of 0 activations: it must have at least 1"));
    }
    if options.batch < options.world.size() {
        let (batch, ranks) = (options.batch, options.world.size());
        return Err(SaeError::bad(format!(
            "a batch of {batch} activations for {ranks} ranks: each needs one at least"
        )));
    }
    let loader = Loader {
        shuffle: options.shuffle,
        seed: options.seed,
        drop_last: true,
        ..Loader::new("activations", data, options.batch)
    };
    let data = Mixture::new(vec![loader], Strategy::Sequential, options.seed)?;
    let adam = OptimizerConfig {
        betas: options.betas,
        weight_decay: Some(0.0),
        ..OptimizerConfig::new(Kind::AdamW, options.lr)
    };
    let optimizers =
        Optimizer::build(&[adam], task.params(), false).map_err(|error| SaeError::bad(error.to_string()))?;
    let settings = Settings {
        seed: options.seed,
        checkpoint_every: options.checkpoint_every,
        ..Settings::steps(options.steps)
    };
    let trainer = Trainer::new(task.clone(), data, optimizers, settings)?;
    let mut trainer = trainer.with_schedule(&options.schedule)?.with_world(options.world.clone());
    let keeper = HookOptions { on_error: OnError::Abort, builtin: true, ..HookOptions::id(SaeKeeper::KIND) };
    trainer.add_hook_with(SaeKeeper::new(task.clone()).in_world(options.world.clone()), keeper)?;
    Ok(trainer)
}
