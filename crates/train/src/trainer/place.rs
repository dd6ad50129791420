//! Checkpoints at safe places: after a step, with its validation and the end of its epoch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use tenterhook_hooks::{CheckpointInfo, Event, RunStatus};
use tenterhook_record::checkpoints;
use tenterhook_record::name::{check_run_name, file_safe};

use super::Trainer;
use crate::checkpoint::{Saver, Snapshot, State, Weights};
use crate::config::OnCheckpointFailure;
use crate::error::TrainError;
use crate::progress::{Place, Stage};
use crate::watchdog::Phase;

/// What came of the checkpoints of one place.
pub(super) struct Written {
    step: u64,
    place: Place,
    result: Result<(), String>,
}

impl Written {
    pub(super) fn into_result(self) -> Result<(), String> {
        self.result
    }
}

impl Trainer {
    /// Does what hooks asked for, and saves when it is time to.
    pub(super) fn settle(&mut self) -> Result<(), TrainError> {
        self.announce_finished_saves()?;
        if matches!(self.progress.stage, Stage::Validate | Stage::EpochEnd) {
            return Ok(());
        }
        if self.validation_asked && self.progress.stage == Stage::Step && self.validation_is_due() {
            self.progress.stage = Stage::Validate;
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
        if let Some(mut snapshot) = self.before_validation.take() {
            // Validation was cut short: it will be done again, by hooks that know nothing of this one.
            self.progress = snapshot.state.progress.clone();
            self.progress.place = Place::default();
            self.plan_own_save();
            snapshot.state.progress = self.progress.clone();
            return self.carry_out_now(snapshot);
        }
        self.progress.place = Place::default();
        if status != RunStatus::Interrupted {
            self.progress.plan_waiting();
        }
        if !self.progress.has_own_save() {
            self.plan_own_save();
        }
        if self.progress.place == Place::default() {
            return Ok(());
        }
        let snapshot = self.snapshot()?;
        self.carry_out_now(snapshot)
    }

    /// The run is about to fail, and everything up to this step is good.
    pub(super) fn save_before_failure(&mut self) -> Result<(), TrainError> {
        if self.run.is_none() || self.progress.has_own_save() {
            return Ok(());
        }
        self.drain_saves()?;
        self.progress.place = Place::default();
        self.plan_own_save();
        let snapshot = self.snapshot()?;
        self.carry_out_now(snapshot)
    }

    fn plan_own_save(&mut self) {
        let name = self.progress.usual_name();
        self.progress.plan_save(&name, "");
        self.progress.prune(self.settings.keep_checkpoints);
    }

    /// The run at this moment. Its weights are the model's own: they are written before the next step, or copied.
    pub(super) fn snapshot(&self) -> Result<Snapshot, TrainError> {
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
        let ids = self.hooks.list_hooks().into_iter().map(|hook| hook.id);
        let hooks = ids.map(|id| self.hooks.save_hook(&id).map_err(|error| format!("hook `{id}`: {error}")));
        let hooks = hooks.collect::<Result<Vec<_>, _>>().map_err(TrainError::Save)?;
        let optimizers = self.optimizers.iter().map(|one| one.state_json()).collect();
        let mut state = State::new(&self.state.run_id, self.settings.seed, self.progress.clone(), optimizers);
        state.metrics_bytes = self.run.as_ref().map(|run| run.metrics_bytes());
        Ok(Snapshot { weights, beside, optimizer, hooks, state })
    }

    /// Writes and removes what this place asks for: now, or while training goes on.
    fn carry_out(&mut self, snapshot: Snapshot) -> Result<(), TrainError> {
        if !self.settings.async_checkpoints {
            return self.carry_out_now(snapshot);
        }
        self.sync_metrics()?;
        let dir = self.checkpoints_dir();
        let snapshot = snapshot.detach()?;
        if self.saver.is_none() {
            let saver = Saver::start().map_err(|error| TrainError::Setup(format!("no thread: {error}")))?;
            self.saver = Some(saver);
        }
        if let Some(saver) = &self.saver {
            saver.submit(move || write(&snapshot, &dir));
        }
        self.announce_finished_saves()
    }

    fn carry_out_now(&mut self, snapshot: Snapshot) -> Result<(), TrainError> {
        self.whereabouts.enter(Phase::Save, self.progress.step);
        self.sync_metrics()?;
        let written = write(&snapshot, &self.checkpoints_dir());
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
            Ok(()) => self.announce_saves(written.step, &written.place.saves),
            Err(problem) => {
                self.progress.known.retain(|known| !written.place.saves.contains(&known.name));
                if self.settings.on_checkpoint_failure == OnCheckpointFailure::Stop {
                    return Err(TrainError::Save(problem));
                }
                tracing::warn!(
                    "step {}: the checkpoint could not be written, training goes on: {problem}",
                    written.step
                );
                self.progress.degraded = true;
                if let Some(run) = &mut self.run {
                    run.note_failure("checkpoint", &problem, written.step);
                }
                Ok(())
            }
        }
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
    let work = || -> Result<(), String> {
        for name in &place.saves {
            if checkpoints::Manifest::read(&dir.join(name)).is_err() {
                snapshot.write(dir, name).map_err(|error| error.to_string())?;
            }
        }
        // Names that hooks kept come back with a checkpoint, and that may come from anywhere.
        let inside = |name: &&String| check_run_name(name).is_ok() && dir.join(name).exists();
        for name in place.removes.iter().filter(inside) {
            if let Err(error) = checkpoints::remove(&dir.join(name)) {
                tracing::warn!("checkpoint {name} could not be removed: {error}");
            }
        }
        Ok(())
    };
    let result =
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("the writer panicked".to_string()));
    Written { step: snapshot.state.progress.step, place, result }
}
