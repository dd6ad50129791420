//! Checkpoints at safe places: after a step, with its validation and the end of its epoch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use tenterhook_hooks::{CheckpointInfo, Event, RunStatus, SavedHook};
use tenterhook_record::checkpoints::{self, CheckpointError, Manifest};
use tenterhook_record::fault;
use tenterhook_record::metrics::Number;
use tenterhook_record::name::{check_run_name, file_safe};

use super::Trainer;
use crate::checkpoint::{Saver, Snapshot, State, Weights, is_interim};
use crate::config::OnCheckpointFailure;
use crate::error::TrainError;
use crate::progress::{Place, Progress, Stage};
use crate::run::LogEnds;
use crate::watchdog::Phase;

/// What came of the checkpoints of one place.
pub(super) struct Written {
    step: u64,
    place: Place,
    result: Result<(), String>,
}

impl Written {
    fn failed(snapshot: &Snapshot, error: TrainError) -> Self {
        let State { progress, .. } = &snapshot.state;
        Self { step: progress.step, place: progress.place.clone(), result: Err(error.to_string()) }
    }

    pub(super) fn into_result(self) -> Result<(), String> {
        self.result
    }
}

/// What events can change while the weights stand still.
pub(super) struct Moment {
    progress: Progress,
    hooks: Vec<SavedHook>,
    logs: Option<LogEnds>,
}

impl Trainer {
    /// Does what hooks asked for, and saves when it is time to.
    pub(super) fn settle(&mut self) -> Result<(), TrainError> {
        self.announce_finished_saves()?;
        if matches!(self.progress.stage, Stage::Validate | Stage::EpochEnd) {
            return Ok(());
        }
        if *self.validation_asked() && self.validation_is_due(false) {
            self.go_to(self.progress.stage, true);
            return Ok(());
        }
        self.progress.place = Place::default();
        if self.run.is_none() {
            self.progress.waiting.clear();
            return Ok(());
        }
        self.progress.plan_waiting();
        let every = self.settings.checkpoint_every;
        let due = every.is_some_and(|n| self.progress.step > 0 && self.progress.step.is_multiple_of(n));
        if due && !self.progress.has_own_save() {
            self.plan_own_save();
        }
        if self.progress.place == Place::default() {
            return Ok(());
        }
        let snapshot = self.snapshot()?;
        self.carry_out(snapshot)
    }

    /// A run can be resumed from its first moment, and a disk that cannot be written is found before the work and not after it.
    pub(super) fn save_at_start(&mut self) -> Result<(), TrainError> {
        if self.run.is_none() {
            return Ok(());
        }
        self.plan_own_save();
        let snapshot = self.snapshot()?;
        self.carry_out_now(snapshot)
    }

    /// Before leaving in good order: everything is on the disk.
    pub(super) fn save_at_end(&mut self, status: RunStatus) -> Result<(), TrainError> {
        if self.run.is_none() {
            return Ok(());
        }
        self.drain_saves()?;
        if status == RunStatus::Interrupted {
            return self.save_interim();
        }
        self.leaving = true;
        self.progress.place = Place::default();
        self.progress.plan_waiting();
        if !self.progress.has_own_save() {
            self.plan_own_save();
        }
        if self.progress.place == Place::default() {
            return Ok(());
        }
        let snapshot = self.snapshot()?;
        self.carry_out_now(snapshot)
    }

    /// Checkpoints that hooks asked for in the last events of the run.
    pub(super) fn save_last_wishes(&mut self, status: RunStatus) -> Result<(), TrainError> {
        // An interrupted run goes on, and its hooks will ask again.
        if self.run.is_none() || status == RunStatus::Interrupted || self.progress.waiting.is_empty() {
            return Ok(());
        }
        self.progress.place = Place::default();
        self.progress.plan_waiting();
        let snapshot = self.snapshot()?;
        self.carry_out_now(snapshot)
    }

    /// The run is about to fail, and everything up to this step is good.
    pub(super) fn save_before_failure(&mut self) -> Result<(), TrainError> {
        if self.run.is_none() {
            return Ok(());
        }
        self.drain_saves()?;
        self.save_interim()
    }

    /// Saves where the run stands because it is cut off here, unless a checkpoint of this step is there already. An interim checkpoint is
    /// none that the run knows of, and goes when the next one is there: a run that was cut off ends up with the checkpoints of one that
    /// was not.
    fn save_interim(&mut self) -> Result<(), TrainError> {
        self.leaving = true;
        let cut_short = self.before_validation.take();
        if self.progress.known.iter().any(|known| known.step == self.progress.step) {
            return Ok(());
        }
        // A validation that was cut short will be done again, by hooks that know nothing of this one.
        let moment = cut_short.map_or_else(|| self.moment(), Ok)?;
        self.progress = moment.progress.clone();
        let progress = Progress { place: Place::default(), ..moment.progress.clone() };
        let snapshot = self.snapshot_of(Moment { progress, ..moment })?;
        self.enter(Phase::Save)?;
        self.sync_metrics()?;
        let written = write_interim(&snapshot, &self.checkpoints_dir());
        self.announce(written)
    }

    fn plan_own_save(&mut self) {
        let name = self.progress.usual_name();
        self.progress.plan_save(&name, "");
        self.progress.prune(self.settings.keep_checkpoints);
    }

    pub(super) fn moment(&self) -> Result<Moment, TrainError> {
        let ids = self.hooks.list_hooks().into_iter().map(|hook| hook.id);
        let hooks = ids.map(|id| self.hooks.save_hook(&id).map_err(|error| format!("hook `{id}`: {error}")));
        let hooks = hooks.collect::<Result<Vec<_>, _>>().map_err(TrainError::Save)?;
        let published = self.events.metrics().into_iter().filter(|(name, _)| !name.starts_with("time/"));
        let published = published.map(|(name, value)| (name, Number(value))).collect();
        let validation_asked = self.progress.validation_asked || self.agreed.validate;
        let progress =
            Progress { clock: self.events.clock(), published, validation_asked, ..self.progress.clone() };
        let logs = self.run.as_ref().map(|run| run.log_ends());
        Ok(Moment { progress, hooks, logs })
    }

    pub(super) fn snapshot(&self) -> Result<Snapshot, TrainError> {
        self.snapshot_of(self.moment()?)
    }

    /// The run at a moment since which the weights have not changed. They are the model's own: they are written before the next step, or
    /// copied.
    fn snapshot_of(&self, moment: Moment) -> Result<Snapshot, TrainError> {
        let params = self.model.params();
        let tensors = params.iter().map(|param| (param.name().to_string(), param.value().clone())).collect();
        let weights = Weights { tensors, files: self.model.files() };
        let beside = self.hooks.validation_weights().map(|(id, mut tensors)| {
            // What the hook does not average is as in the model.
            let others = params.iter().filter(|param| !tensors.iter().any(|(name, _)| name == param.name()));
            let others: Vec<_> =
                others.map(|param| (param.name().to_string(), param.value().clone())).collect();
            tensors.extend(others);
            (file_safe(&id), Weights { tensors, files: self.model.files() })
        });
        let mut optimizer = Vec::new();
        for one in &self.optimizers {
            optimizer.extend(one.state_tensors()?);
        }
        let optimizers = self.optimizers.iter().map(|one| one.state_json()).collect();
        let Moment { progress, hooks, logs } = moment;
        let state = State::new(&self.state.run_id, self.settings.seed, progress, optimizers);
        let mut state = state.with_logs(logs);
        state.ranks = self.world.size();
        Ok(Snapshot { weights, beside, optimizer, hooks, state })
    }

    /// Writes and removes what this place asks for: now, or while training goes on.
    fn carry_out(&mut self, snapshot: Snapshot) -> Result<(), TrainError> {
        if !self.settings.async_checkpoints {
            return self.carry_out_now(snapshot);
        }
        self.enter(Phase::Save)?;
        if let Err(error) = self.sync_metrics() {
            return self.announce(Written::failed(&snapshot, error));
        }
        let dir = self.checkpoints_dir();
        let snapshot = snapshot.detach()?;
        if self.saver.is_none() {
            let saver = Saver::start().map_err(|error| TrainError::Setup(format!("no thread: {error}")))?;
            self.saver = Some(saver);
        }
        if let Some(saver) = &self.saver {
            let scope = fault::Scope::current();
            saver.submit(move || {
                let _inside = scope.enter();
                write(&snapshot, &dir)
            });
        }
        self.announce_finished_saves()
    }

    fn carry_out_now(&mut self, snapshot: Snapshot) -> Result<(), TrainError> {
        self.enter(Phase::Save)?;
        let written = match self.sync_metrics() {
            Ok(()) => write(&snapshot, &self.checkpoints_dir()),
            Err(error) => Written::failed(&snapshot, error),
        };
        self.announce(written)
    }

    /// The log reaches the disk before a checkpoint that says how long it is.
    fn sync_metrics(&mut self) -> Result<(), TrainError> {
        self.run.as_mut().map_or(Ok(()), |run| run.sync())
    }

    fn announce_finished_saves(&mut self) -> Result<(), TrainError> {
        let done = self.saver.as_ref().map(Saver::take_done).unwrap_or_default();
        done.into_iter().try_for_each(|written| self.announce(written))
    }

    /// Waits for checkpoints that are still being written.
    pub(super) fn drain_saves(&mut self) -> Result<(), TrainError> {
        let done = self.saver.as_ref().map(Saver::drain).unwrap_or_default();
        done.into_iter().try_for_each(|written| self.announce(written))
    }

    fn announce(&mut self, written: Written) -> Result<(), TrainError> {
        match written.result {
            Ok(()) => {
                let Place { saves, removes } = &written.place;
                tracing::debug!(step = written.step, "checkpoints: written {saves:?}, removed {removes:?}");
                self.announce_saves(written.step, saves)
            }
            Err(problem) => {
                self.progress.known.retain(|known| !written.place.saves.contains(&known.name));
                self.on_failed_write("checkpoint", written.step, TrainError::Save(problem))
            }
        }
    }

    /// A checkpoint or a row of the log could not be written: the run ends or goes on, as its user wants it. When it is about to leave
    /// there is nothing to go on with.
    pub(super) fn on_failed_write(
        &mut self,
        what: &str,
        step: u64,
        error: TrainError,
    ) -> Result<(), TrainError> {
        if self.leaving || self.settings.on_checkpoint_failure == OnCheckpointFailure::Stop {
            return Err(error);
        }
        tracing::warn!("step {step}: {error}; training goes on");
        self.progress.degraded = true;
        if let Some(run) = &mut self.run {
            run.note_failure(what, &error.to_string(), step);
        }
        Ok(())
    }

    pub(super) fn announce_saves(&mut self, step: u64, names: &[String]) -> Result<(), TrainError> {
        for name in names {
            let owners = self.progress.known.iter().find(|known| known.name == *name);
            let requested_by: Vec<String> = owners
                .into_iter()
                .flat_map(|known| known.owners.iter().map(|owner| owner.id.clone()))
                .filter(|id| !id.is_empty())
                .collect();
            let path = self.checkpoints_dir().join(name);
            let info = CheckpointInfo { path: &path, name, step, requested_by: &requested_by };
            self.fire(Event::CheckpointSave(&info))?;
        }
        Ok(())
    }

    pub(super) fn checkpoints_dir(&self) -> PathBuf {
        self.run.as_ref().map(|run| run.checkpoints()).unwrap_or_default()
    }
}

/// Writes what is missing, then removes what nobody wants: never the other way round.
pub(super) fn write(snapshot: &Snapshot, dir: &Path) -> Written {
    let place = snapshot.state.progress.place.clone();
    let work = || -> Result<(), CheckpointError> {
        for name in &place.saves {
            if Manifest::read(&dir.join(name)).is_err() {
                snapshot.write(dir, name)?;
            }
        }
        let interim = if place.saves.is_empty() { Vec::new() } else { interim_ones(dir)? };
        // Names that hooks kept come back with a checkpoint, and that may come from anywhere.
        let inside = place.removes.iter().filter(|name| check_run_name(name).is_ok());
        let named = inside.map(|name| dir.join(name)).filter(|path| path.exists());
        named.chain(interim).for_each(|path| remove(&path));
        Ok(())
    };
    guarded(snapshot, place.clone(), work)
}

/// Writes a checkpoint of a run that is cut off, in place of an older one.
fn write_interim(snapshot: &Snapshot, dir: &Path) -> Written {
    let name = format!("{}-interim", snapshot.state.progress.usual_name());
    let work = || {
        let older = interim_ones(dir)?;
        snapshot.write_interim(dir, &name)?;
        older.iter().for_each(|path| remove(path));
        Ok(())
    };
    guarded(snapshot, Place { saves: vec![name.clone()], removes: Vec::new() }, work)
}

fn guarded(snapshot: &Snapshot, place: Place, work: impl FnOnce() -> Result<(), CheckpointError>) -> Written {
    let result = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the writer panicked".to_string()),
    };
    Written { step: snapshot.state.progress.step, place, result }
}

fn interim_ones(dir: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let is_interim = |path: &PathBuf| Manifest::read(path).is_ok_and(|manifest| is_interim(&manifest));
    Ok(checkpoints::list(dir)?.into_iter().map(|one| one.path).filter(is_interim).collect())
}

fn remove(checkpoint: &Path) {
    if let Err(error) = checkpoints::remove(checkpoint) {
        tracing::warn!("checkpoint {} could not be removed: {error}", checkpoint.display());
    }
}
