//! The loop: read it, and you know every event.

mod build;
mod captures;
mod control;
mod manage;
mod non_finite;
mod place;
mod ranks;
mod resume;
mod row;
mod step;
mod validate;

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::Device;
use serde_json::Value;
use tenterhook_hooks::{
    Clock, Event, Events, HookError, HookManager, Pass, PassSetup, Request, RunStatus, TrainState,
};
use tenterhook_nn::{GradBuffers, on_deep_stack};
use tenterhook_record::fault;

pub use build::{Settings, get_trainer};
pub use captures::write_captured;
pub use step::StepOutcome;

use crate::checkpoint::Saver;
use crate::data::{Loader, Mixture};
use crate::error::TrainError;
use crate::interrupt::Interrupt;
use crate::model::TrainModel;
use crate::optim::Optimizer;
use crate::progress::{Progress, Stage, Stop, Waiting};
use crate::run::{LogEnds, Run};
use crate::schedule::Schedule;
use crate::watchdog::{Phase, Watchdog, Whereabouts};
use crate::world::World;
use control::Outside;
use place::{Moment, Written};
use ranks::Agreed;

/// Trains a model, and tells hooks everything that happens.
///
/// One batch after the other goes through the model; when enough of them make a step, the optimizers take it. Validation and checkpoints
/// come between steps. Killed at any moment, a run with a record goes on from its last checkpoint, bit for bit.
pub struct Trainer {
    model: Arc<dyn TrainModel>,
    hooks: HookManager,
    data: Mixture,
    validation: Vec<Loader>,
    optimizers: Vec<Optimizer>,
    schedule: Schedule,
    settings: Settings,
    run: Option<Run>,
    interrupt: Interrupt,
    device: Device,
    buffers: Arc<GradBuffers>,
    progress: Progress,
    state: TrainState,
    /// The events of this step.
    events: Events,
    errors: Vec<HookError>,
    /// The options of hooks that were made by a registry, for the record.
    hook_options: BTreeMap<String, Value>,
    /// The hooks that every trainer has, as long as nothing took their place. Their ids are their kinds.
    usual_hooks: Vec<&'static str>,
    whereabouts: Arc<Whereabouts>,
    saver: Option<Saver<Written>>,
    /// How things stood before a validation began: what is saved when it is cut short.
    before_validation: Option<Moment>,
    resumed_from: Option<(std::path::PathBuf, String)>,
    /// How much of the logs belongs to the checkpoint that was restored.
    logs_to_keep: Option<LogEnds>,
    outside: Outside,
    /// Whether the run is doing its last save.
    leaving: bool,
    world: World,
    agreed: Agreed,
    /// The step that this process began after.
    began_at: u64,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Completed, stopped by a hook, or interrupted.
    pub status: RunStatus,
    /// Why, when a hook asked for the end.
    pub reason: Option<String>,
    /// Whether a hook failed, or a checkpoint could not be written, on the way.
    pub degraded: bool,
    /// Steps taken.
    pub steps: u64,
}

impl Trainer {
    /// Trains until the steps are done, a hook asks for the end, or somebody interrupts. Whatever happens, hooks hear of the end.
    pub fn train(&mut self) -> Result<Finished, TrainError> {
        let scope = fault::Scope::current();
        let train = || {
            let _inside = scope.enter();
            self.train_here()
        };
        on_deep_stack(train).map_err(|error| TrainError::Setup(format!("no thread: {error}")))?
    }

    fn train_here(&mut self) -> Result<Finished, TrainError> {
        let limit = self.settings.watchdog;
        let watched = limit.map(|limit| Watchdog::start(limit, self.whereabouts.clone(), self.hooks.clone()));
        let no_thread = |error: std::io::Error| {
            self.world.fail("no thread");
            TrainError::Setup(format!("no thread: {error}"))
        };
        let _watchdog = watched.transpose().map_err(no_thread)?;
        let result = self.start().and_then(|()| self.work());
        let result = self.part(result);
        self.finish(result)
    }

    fn work(&mut self) -> Result<RunStatus, TrainError> {
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            let stage = self.progress.stage;
            match stage {
                Stage::EpochStart => self.start_epoch()?,
                Stage::Step => self.next_step()?,
                Stage::Validate => self.validate()?,
                Stage::EpochEnd => self.end_epoch()?,
            }
            if stage != Stage::Step {
                self.come_together(false)?; // a step does it itself
            }
            self.settle()?;
        }
    }

    fn start(&mut self) -> Result<(), TrainError> {
        self.start_share();
        self.began_at = self.progress.step;
        self.state.status = RunStatus::Training;
        if self.resumed_from.is_none() {
            self.begin_events();
        }
        self.begin_together()?;
        self.record_hooks()?;
        self.announce_resume()?;
        self.fire(Event::TrainStart)?;
        match self.resumed_from {
            Some(_) => self.announce_saves_of_resumed(),
            None => self.save_at_start(),
        }
    }

    fn start_epoch(&mut self) -> Result<(), TrainError> {
        if self.progress.cursor.batch >= self.data.batches_per_epoch() {
            self.progress.cursor.next_epoch();
        }
        if self.progress.cursor.batch == 0 {
            (self.progress.loss_sum.0, self.progress.loss_count) = (0.0, 0);
        }
        self.begin_events();
        let first = self.settings.validate_first && self.progress.step == 0 && !self.validation.is_empty();
        self.go_to(Stage::Step, first && self.progress.validated_at.is_none());
        self.fire(Event::EpochStart(self.progress.cursor.epoch))
    }

    fn next_step(&mut self) -> Result<(), TrainError> {
        self.heed_requests()?;
        // All but the metrics, of which there may be many and which no step changes before it is logged.
        let metrics = std::mem::take(&mut self.progress.metrics);
        let before = self.progress.clone();
        self.progress.metrics = metrics;
        let batches = self.load_batches()?;
        self.take_step(&batches, before)?;
        self.show_receipts();
        self.come_together(false)?;
        let epoch_over = self.progress.cursor.batch >= self.data.batches_per_epoch() || self.steps_are_done();
        let due = self.validation_is_due(epoch_over);
        self.go_to(if epoch_over { Stage::EpochEnd } else { Stage::Step }, due);
        Ok(())
    }

    fn end_epoch(&mut self) -> Result<(), TrainError> {
        self.progress.stage = Stage::EpochStart;
        self.fire(Event::EpochEnd(self.progress.cursor.epoch))?;
        self.log_rest()
    }

    /// On to a stage, maybe by way of a validation.
    fn go_to(&mut self, stage: Stage, validate: bool) {
        self.progress.after_validation = stage;
        self.progress.stage = if validate { Stage::Validate } else { stage };
    }

    /// Whether the run is over, and how. The last epoch is ended in good order, a validation that is due is done, but nobody who
    /// interrupts has to wait for either.
    fn ended(&mut self) -> Result<Option<RunStatus>, TrainError> {
        if self.is_interrupted() {
            return Ok(Some(RunStatus::Interrupted));
        }
        let between = matches!(self.progress.stage, Stage::EpochStart | Stage::Step);
        if !between {
            return Ok(None);
        }
        if self.is_stopped() {
            return Ok(Some(RunStatus::Stopped));
        }
        Ok((self.steps_are_done() && self.progress.stage == Stage::EpochStart)
            .then_some(RunStatus::Completed))
    }

    fn steps_are_done(&self) -> bool {
        self.progress.step >= self.settings.total_steps
    }

    fn finish(&mut self, result: Result<RunStatus, TrainError>) -> Result<Finished, TrainError> {
        let result = result.and_then(|status| self.save_at_end(status).map(|()| status));
        let result = self.drain_saves().and(result);
        let mut told = Ok(());
        self.state.status = *result.as_ref().unwrap_or(&RunStatus::Error);
        if let Err(error) = &result {
            told = self.fire(Event::Exception(&error.to_string()));
        }
        told = told.and(self.fire(Event::TrainEnd(self.state.status)));
        if std::mem::take(&mut self.progress.validation_asked) && result.is_ok() {
            tracing::warn!("a hook asked for a validation when the run was over: there is none");
        }
        let result = result.and_then(|status| {
            told?;
            self.save_last_wishes(status)?;
            Ok(status)
        });
        // Also what a run that failed had captured: it may be what it failed of.
        let captures = self.write_captures();
        let result = result.and_then(|status| captures.map(|()| status));
        let result = self.last_words(result);
        self.whereabouts.enter(Phase::Idle, self.progress.step);
        let status = *result.as_ref().unwrap_or(&RunStatus::Error);
        let reason = match (&result, &self.progress.stop) {
            (Err(error), _) => Some(error.to_string()),
            (Ok(RunStatus::Stopped), Some(stop)) => Some(format!("hook `{}`: {}", stop.hook_id, stop.reason)),
            _ => None,
        };
        let closed = self.close_record(status, reason.clone());
        result?; // what ended the run says more than that its record could not be closed
        closed?;
        Ok(Finished { status, reason, degraded: self.progress.degraded, steps: self.progress.step })
    }

    /// Something else begins: the watchdog hears of it, and a test may stop the run here.
    fn enter(&self, phase: Phase) -> Result<(), TrainError> {
        self.whereabouts.enter(phase, self.progress.step);
        fault::point(phase.point()).map_err(|error| TrainError::Setup(error.to_string()))
    }

    /// Begins the events of the next step.
    fn begin_events(&mut self) {
        self.hooks.board().end_step();
        self.collect();
        let setup = PassSetup { clock: self.clock(0), seed: self.settings.seed, ..PassSetup::train(0) };
        self.events = self.hooks.events(setup);
    }

    fn clock(&self, micro_batch: u64) -> Clock {
        let Progress { step, cursor, .. } = &self.progress;
        Clock { step: *step, epoch: cursor.epoch, batch: cursor.batch, micro_batch }
    }

    /// Tells all hooks, and does at once what they ask for and can be done at once.
    fn fire(&mut self, event: Event) -> Result<(), TrainError> {
        self.refresh_state();
        let told = self.events.fire(&self.state, event);
        self.serve()?;
        Ok(told?)
    }

    /// Takes over what hooks did at the points of a pass, and does what they asked for there.
    fn absorb(&mut self, pass: &Pass) -> Result<(), TrainError> {
        let absorbed = self.events.absorb(pass);
        self.serve()?;
        Ok(absorbed?)
    }

    /// Takes what hooks asked for: learning rates and freezing at once, the rest for the next safe place.
    fn serve(&mut self) -> Result<(), TrainError> {
        self.collect();
        for (hook, request) in self.events.take_requests() {
            tracing::debug!(hook, step = self.progress.step, "asks for {request:?}");
            match request {
                Request::SetLr { optimizer, group, lr } => self.set_lr(&hook, optimizer, group, lr)?,
                Request::ScaleLr { optimizer, group, factor } => {
                    self.scale_lr(&hook, optimizer, group, factor)?
                }
                Request::Freeze(names) => self.progress.frozen.extend(names),
                Request::Unfreeze(names) => names.iter().for_each(|name| {
                    self.progress.frozen.remove(name);
                }),
                Request::Validate => self.progress.validation_asked = true,
                Request::Save { name } => self.wait_for_place(hook, name, false),
                Request::Remove { name } => self.wait_for_place(hook, Some(name), true),
            }
        }
        Ok(())
    }

    fn wait_for_place(&mut self, hook_id: String, name: Option<String>, remove: bool) {
        self.progress.waiting.push(Waiting { hook_id, name, remove });
    }

    fn note_errors(&mut self, errors: Vec<HookError>) {
        if errors.is_empty() {
            return;
        }
        self.progress.degraded = true;
        self.keep_errors_for_first(&errors);
        if let Some(run) = &mut self.run {
            run.note_errors(&errors, self.progress.step);
        }
        self.errors.extend(errors);
        self.errors.truncate(1000);
    }

    /// Takes failures and wishes for an end.
    fn collect(&mut self) {
        self.note_errors(self.events.take_errors());
        if let Some(tenterhook_hooks::Control::Stop { hook_id, reason }) = self.events.control() {
            self.progress.stop.get_or_insert(Stop { hook_id, reason });
        }
    }
}
