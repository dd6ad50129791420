//! The loop: read it, and you know every event.

mod build;
mod captures;
mod manage;
mod non_finite;
mod place;
mod resume;
mod row;
mod step;
mod validate;

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::Device;
use serde_json::Value;
use tenterhook_hooks::{
    Clock, Event, Events, HookError, HookManager, PassSetup, Request, RunStatus, TrainState,
};
use tenterhook_nn::{GradBuffers, on_deep_stack};

pub use build::{Settings, get_trainer};
pub use step::StepOutcome;

use crate::checkpoint::{Saver, Snapshot};
use crate::data::{Loader, Mixture};
use crate::error::TrainError;
use crate::interrupt::Interrupt;
use crate::model::TrainModel;
use crate::optim::Optimizer;
use crate::progress::{Progress, Stage, Stop, Waiting};
use crate::run::Run;
use crate::schedule::Schedule;
use crate::watchdog::{Phase, Watchdog, Whereabouts};
use place::Written;

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
    whereabouts: Arc<Whereabouts>,
    saver: Option<Saver<Written>>,
    /// How the hooks stood before a validation began: what is saved when it is cut short.
    before_validation: Option<Snapshot>,
    resumed_from: Option<(std::path::PathBuf, String)>,
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
        on_deep_stack(|| self.train_here())
            .map_err(|error| TrainError::Setup(format!("no thread: {error}")))?
    }

    fn train_here(&mut self) -> Result<Finished, TrainError> {
        let limit = self.settings.watchdog;
        let watched = limit.map(|limit| Watchdog::start(limit, self.whereabouts.clone(), self.hooks.clone()));
        let _watchdog =
            watched.transpose().map_err(|error| TrainError::Setup(format!("no thread: {error}")))?;
        let result = self.start().and_then(|()| self.work());
        self.finish(result)
    }

    fn work(&mut self) -> Result<RunStatus, TrainError> {
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            match self.progress.stage {
                Stage::EpochStart => self.start_epoch()?,
                Stage::Step => self.next_step()?,
                Stage::Validate => self.validate()?,
                Stage::EpochEnd => self.end_epoch()?,
            }
            self.settle()?;
        }
    }

    fn start(&mut self) -> Result<(), TrainError> {
        self.state.status = RunStatus::Training;
        if self.resumed_from.is_none() {
            self.begin_events();
        }
        self.record_hooks()?;
        self.announce_resume()?;
        self.fire(Event::TrainStart)?;
        match self.resumed_from {
            Some(_) => self.announce_saves_of_resumed(),
            None => self.save_at_start(),
        }
    }

    fn start_epoch(&mut self) -> Result<(), TrainError> {
        if self.progress.cursor.batch == 0 {
            (self.progress.loss_sum.0, self.progress.loss_count) = (0.0, 0);
        }
        self.begin_events();
        self.progress.epoch_over = false;
        let first = self.settings.validate_first && self.progress.step == 0 && !self.validation.is_empty();
        self.progress.stage = match first && self.progress.validated_at.is_none() {
            true => Stage::Validate,
            false => Stage::Step,
        };
        self.fire(Event::EpochStart(self.progress.cursor.epoch))
    }

    fn next_step(&mut self) -> Result<(), TrainError> {
        let before = self.progress.clone();
        let batches = self.load_batches()?;
        let outcome = match self.step_on(&batches) {
            Err(error @ TrainError::NonFinite(_)) => {
                self.progress = Progress { degraded: self.progress.degraded, ..before };
                self.save_before_failure()?;
                return Err(error);
            }
            outcome => outcome?,
        };
        self.log_step(&outcome)?;
        self.progress.epoch_over =
            self.progress.cursor.batch >= self.data.batches_per_epoch() || self.steps_are_done();
        self.progress.stage = match (self.validation_is_due(), self.progress.epoch_over) {
            (true, _) => Stage::Validate,
            (false, true) => Stage::EpochEnd,
            (false, false) => Stage::Step,
        };
        Ok(())
    }

    fn end_epoch(&mut self) -> Result<(), TrainError> {
        let epoch = self.progress.cursor.epoch;
        if self.progress.cursor.batch >= self.data.batches_per_epoch() {
            self.progress.cursor.next_epoch();
        }
        self.progress.epoch_over = false;
        self.progress.stage = Stage::EpochStart;
        self.fire(Event::EpochEnd(epoch))?;
        self.log_rest()
    }

    /// Whether the run is over, and how. The last epoch is ended in good order, a validation that is due is done, but nobody who
    /// interrupts has to wait for either.
    fn ended(&mut self) -> Result<Option<RunStatus>, TrainError> {
        if self.interrupt.is_raised() {
            return Ok(Some(RunStatus::Interrupted));
        }
        let between = matches!(self.progress.stage, Stage::EpochStart | Stage::Step);
        if !between {
            return Ok(None);
        }
        if self.progress.stop.is_some() {
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
        let status = *result.as_ref().unwrap_or(&RunStatus::Error);
        self.state.status = status;
        let mut failure = None;
        if let Err(error) = &result {
            // Hooks hear of the failure whatever other hooks make of it.
            failure = self.fire(Event::Exception(&error.to_string())).err();
        }
        failure = self.fire(Event::TrainEnd(status)).err().or(failure);
        self.whereabouts.enter(Phase::Idle, self.progress.step);
        let reason = match (&result, &self.progress.stop) {
            (Err(error), _) => Some(error.to_string()),
            (Ok(RunStatus::Stopped), Some(stop)) => Some(format!("hook `{}`: {}", stop.hook_id, stop.reason)),
            _ => None,
        };
        let captures = self.write_captures();
        self.close_record(status, reason.clone())?;
        result?;
        captures?;
        match failure {
            Some(error) => Err(error),
            None => {
                Ok(Finished { status, reason, degraded: self.progress.degraded, steps: self.progress.step })
            }
        }
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

    /// Takes what hooks asked for: learning rates and freezing at once, the rest for the next safe place.
    fn serve(&mut self) -> Result<(), TrainError> {
        self.collect();
        for (hook, request) in self.events.take_requests() {
            match request {
                Request::SetLr { optimizer, group, lr } => self.set_lr(optimizer, group, lr)?,
                Request::ScaleLr { optimizer, group, factor } => self.scale_lr(optimizer, group, factor)?,
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

    /// Takes failures and wishes for an end.
    fn collect(&mut self) {
        let errors = self.events.take_errors();
        if !errors.is_empty() {
            self.progress.degraded = true;
            if let Some(run) = &mut self.run {
                run.note_errors(&errors, self.progress.step);
            }
            self.errors.extend(errors);
            self.errors.truncate(1000);
        }
        if let Some(tenterhook_hooks::Control::Stop { hook_id, reason }) = self.events.control() {
            self.progress.stop.get_or_insert(Stop { hook_id, reason });
        }
    }
}
