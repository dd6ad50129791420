//! Setting a trainer up.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use tenterhook_hooks::{HookManager, ParamInfo, PassSetup, TrainState};
use tenterhook_nn::GradBuffers;

use super::Trainer;
use super::control::Outside;
use super::ranks::Agreed;
use crate::config::{OnCheckpointFailure, OnNonFinite, RanksSection, TrainSection, ValidateEvery};
use crate::data::{Loader, Mixture};
use crate::error::TrainError;
use crate::interrupt::Interrupt;
use crate::model::TrainModel;
use crate::optim::{Clip, Optimizer};
use crate::progress::Progress;
use crate::run::Run;
use crate::schedule::{Schedule, ScheduleConfig};
use crate::watchdog::Whereabouts;
use crate::world::World;

/// How a run goes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The seed of all randomness.
    pub seed: u64,
    /// How many optimizer steps are taken.
    pub total_steps: u64,
    /// How many epochs that is, when it was given so.
    pub total_epochs: Option<u64>,
    /// How long the schedule is, when the run is cut short by `fast_dev_run`.
    pub schedule_steps: Option<u64>,
    /// When to validate.
    pub validate_every: Option<ValidateEvery>,
    /// Whether to validate once before the first step.
    pub validate_first: bool,
    /// At most so many batches of every validation set.
    pub validate_batches: Option<u64>,
    /// A checkpoint to go on from after every so many steps.
    pub checkpoint_every: Option<u64>,
    /// How many of those are kept.
    pub keep_checkpoints: usize,
    /// Whether checkpoints are written while training goes on.
    pub async_checkpoints: bool,
    /// What happens when a checkpoint cannot be written.
    pub on_checkpoint_failure: OnCheckpointFailure,
    /// How gradients are clipped.
    pub clip: Clip,
    /// Batches per step.
    pub grad_accumulation: u64,
    /// What happens when something is NaN or infinite.
    pub on_non_finite: OnNonFinite,
    /// After so many skipped steps in a row the run ends; 0 never.
    pub max_skipped: u64,
    /// A row of the log every so many steps.
    pub log_every: u64,
    /// Warns when nothing has moved for so long.
    pub watchdog: Option<Duration>,
    /// Whether failures of hooks come with their backtraces.
    pub debug: bool,
    /// How several processes train together.
    pub ranks: RanksSection,
}

impl Settings {
    /// So many steps, and the defaults for the rest.
    pub fn steps(total_steps: u64) -> Self {
        Self {
            seed: 42,
            total_steps,
            total_epochs: None,
            schedule_steps: None,
            validate_every: None,
            validate_first: false,
            validate_batches: None,
            checkpoint_every: None,
            keep_checkpoints: 2,
            async_checkpoints: false,
            on_checkpoint_failure: OnCheckpointFailure::Stop,
            clip: Clip::None,
            grad_accumulation: 1,
            on_non_finite: OnNonFinite::Stop,
            max_skipped: 10,
            log_every: 1,
            watchdog: Some(Duration::from_secs(60)),
            debug: false,
            ranks: RanksSection::default(),
        }
    }

    /// What a configuration says, for this data.
    pub fn from_config(section: &TrainSection, seed: u64, data: &Mixture) -> Self {
        let clip = match (section.grad_clip, section.grad_clip_value) {
            (Some(norm), _) => Clip::Norm(norm),
            (None, Some(value)) => Clip::Value(value),
            (None, None) => Clip::None,
        };
        let mut settings = Self {
            seed,
            validate_every: section.validate_every,
            validate_first: section.validate_first,
            validate_batches: section.validate_batches,
            checkpoint_every: section.checkpoint_every,
            keep_checkpoints: usize::try_from(section.keep_checkpoints).unwrap_or(usize::MAX),
            async_checkpoints: section.async_checkpoints,
            on_checkpoint_failure: section.on_checkpoint_failure,
            clip,
            grad_accumulation: section.grad_accumulation,
            on_non_finite: section.on_non_finite,
            max_skipped: section.max_skipped,
            log_every: section.log_every,
            watchdog: (section.watchdog > 0).then(|| Duration::from_secs(section.watchdog)),
            debug: section.debug,
            ..Self::steps(section.steps.unwrap_or(0))
        };
        if let Some(epochs) = section.epochs {
            settings.set_epochs(epochs, data);
        }
        if section.fast_dev_run.is_on() {
            let few = section.fast_dev_run.batches;
            settings.schedule_steps = Some(settings.total_steps);
            settings.total_steps = settings.total_steps.min(few);
            settings.validate_batches = Some(settings.validate_batches.map_or(few, |most| most.min(few)));
            if let Some(ValidateEvery::Steps(steps)) = &mut settings.validate_every {
                *steps = (*steps).min(settings.total_steps.max(1)); // or there would be none of it
            }
        }
        settings
    }

    /// So many passes over the data, and the defaults for the rest.
    pub fn epochs(epochs: u64, data: &Mixture) -> Self {
        let mut settings = Self::steps(0);
        settings.set_epochs(epochs, data);
        settings
    }

    /// Sets the number of steps to so many passes over the data, with the accumulation as it is.
    pub fn set_epochs(&mut self, epochs: u64, data: &Mixture) {
        self.total_epochs = Some(epochs);
        self.total_steps =
            epochs.saturating_mul(data.batches_per_epoch().div_ceil(self.grad_accumulation.max(1)));
    }
}

/// A trainer of a kind: `simple` for one process, `accelerate` for as many as were started together, see [`World::join`].
pub fn get_trainer(
    kind: &str,
    model: Arc<dyn TrainModel>,
    data: Mixture,
    optimizers: Vec<Optimizer>,
    settings: Settings,
) -> Result<Trainer, TrainError> {
    match kind {
        "simple" => Trainer::new(model, data, optimizers, settings),
        // The same trainer with the same events, whatever the number of processes.
        "accelerate" => Ok(Trainer::new(model, data, optimizers, settings)?.with_world(World::join()?)),
        other => Err(TrainError::Setup(format!(
            "no trainer is called `{other}`; there are `simple` and `accelerate`"
        ))),
    }
}

impl Trainer {
    /// A trainer without validation or a record; they are added afterwards. Of hooks it has those that every run should have, under
    /// their kinds: `identity_update` and `grad_coverage`. They can be removed, and one of the same kind that is added takes their place.
    pub fn new(
        model: Arc<dyn TrainModel>,
        data: Mixture,
        optimizers: Vec<Optimizer>,
        settings: Settings,
    ) -> Result<Self, TrainError> {
        if settings.grad_accumulation == 0 || settings.log_every == 0 {
            return Err(TrainError::Setup(
                "`grad_accumulation` and `log_every` must be at least 1".to_string(),
            ));
        }
        let schedule = Schedule::new(&ScheduleConfig::default(), settings.total_steps)?;
        let hooks = HookManager::new(model.points().clone());
        hooks.set_debug(settings.debug);
        let groups: Vec<usize> = optimizers.iter().map(|optimizer| optimizer.groups().len()).collect();
        let progress = Progress::new(data.cursor(), &groups);
        let first = model.params().iter().next();
        let device = first.map_or(Device::Cpu, |param| param.value().device().clone());
        let params = model
            .params()
            .iter()
            .map(|param| ParamInfo { name: param.name().to_string(), value: param.value().clone() });
        let state = TrainState {
            device: device.clone(),
            total_steps: Some(settings.total_steps),
            total_epochs: settings.total_epochs,
            batches_per_epoch: data.batches_per_epoch(),
            model_params: model.params().element_count(),
            params: params.collect(),
            ..TrainState::default()
        };
        let mut trainer = Self {
            buffers: GradBuffers::new(model.params()),
            events: hooks.events(PassSetup::train(0)),
            model,
            hooks,
            data,
            validation: Vec::new(),
            optimizers,
            schedule,
            settings,
            run: None,
            interrupt: Interrupt::default(),
            device,
            progress,
            state,
            errors: Vec::new(),
            hook_options: BTreeMap::new(),
            usual_hooks: Vec::new(),
            whereabouts: Arc::new(Whereabouts::default()),
            saver: None,
            before_validation: None,
            resumed_from: None,
            logs_to_keep: None,
            outside: Outside::default(),
            leaving: false,
            world: World::alone(),
            agreed: Agreed::default(),
            began_at: 0,
        };
        trainer.state.optimizers = trainer.describe_optimizers();
        trainer.add_usual_hooks().map_err(|error| TrainError::Setup(error.to_string()))?;
        Ok(trainer)
    }

    /// The same with a schedule for the learning rates.
    pub fn with_schedule(mut self, config: &ScheduleConfig) -> Result<Self, TrainError> {
        let steps = self.settings.schedule_steps.unwrap_or(self.settings.total_steps);
        self.schedule = Schedule::new(config, steps)?;
        Ok(self)
    }

    /// The same with sets to validate on. The first one's loss is `val/loss`, that of a further one `val/<name>/loss`.
    pub fn with_validation(mut self, sets: Vec<Loader>) -> Self {
        self.validation = sets;
        self
    }

    /// The same with a record on the disk: metrics, checkpoints, what hooks did.
    pub fn with_run(mut self, run: Run) -> Self {
        self.state.run_id = run.id().to_string();
        self.state.run_dir = Some(run.path().to_path_buf());
        self.run = Some(run);
        self
    }

    /// The same for a rank that keeps no record: it knows the run's id and directory, which rank 0 has made.
    pub fn with_record_of_first(mut self, run_id: String, dir: PathBuf) -> Self {
        (self.state.run_id, self.state.run_dir) = (run_id, Some(dir));
        self
    }

    /// The same, listening to this flag.
    pub fn with_interrupt(mut self, interrupt: Interrupt) -> Self {
        self.interrupt = interrupt;
        self
    }
}
