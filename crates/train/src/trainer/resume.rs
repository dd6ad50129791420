//! Going on from a checkpoint.

use std::path::Path;

use tenterhook_hooks::{CheckpointInfo, Event};

use super::Trainer;
use super::place::write;
use crate::checkpoint;
use crate::config::BatchOf;
use crate::error::TrainError;
use crate::progress::Place;
use crate::run::Run;

impl Trainer {
    /// Takes everything back from a checkpoint that has been verified: weights, optimizers, data position, hooks. Call it before
    /// [`train`](Trainer::train), with the same hooks attached as when it was saved. After an error another one can be restored.
    pub fn restore(&mut self, checkpoint: &Path) -> Result<(), TrainError> {
        self.load(checkpoint)?;
        self.take_up_record()
    }

    /// The same trainer with the record of the run that its checkpoint was [restored](Trainer::restore) from.
    pub fn go_on_with(mut self, run: Run) -> Result<Self, TrainError> {
        self = self.with_run(run);
        self.take_up_record()?;
        Ok(self)
    }

    /// Brings the record to where the checkpoint was.
    fn take_up_record(&mut self) -> Result<(), TrainError> {
        if let (Some(run), Some(ends)) = (&mut self.run, self.logs_to_keep) {
            run.cut_logs(ends)?;
        }
        if let (Some(run), Some((_, checkpoint))) = (&mut self.run, &self.resumed_from) {
            run.note_resumed(checkpoint, self.progress.step)?;
        }
        self.repeat_own_changes();
        self.finish_place()
    }

    fn load(&mut self, checkpoint: &Path) -> Result<(), TrainError> {
        let loaded = checkpoint::read(checkpoint, self.model.params(), &self.device)?;
        let unfit = |problem: String| TrainError::Unfit { path: checkpoint.display().to_string(), problem };
        let state = loaded.state;
        let logs_to_keep = state.log_ends();
        let groups: Vec<usize> = self.optimizers.iter().map(|optimizer| optimizer.groups().len()).collect();
        if let Some(problem) = state.progress.problem(&groups) {
            return Err(unfit(problem));
        }
        self.data.check(&state.progress.cursor).map_err(|error| unfit(error.to_string()))?;
        if state.optimizers.len() != self.optimizers.len() {
            let (saved, now) = (state.optimizers.len(), self.optimizers.len());
            return Err(unfit(format!("it was saved with {saved} optimizers, and there are {now}")));
        }
        for (optimizer, json) in self.optimizers.iter_mut().zip(&state.optimizers) {
            optimizer.load_state(&loaded.optimizer, json).map_err(|error| unfit(error.to_string()))?;
        }
        if state.seed != self.settings.seed {
            return Err(unfit(format!(
                "it was saved with the seed {}, and this run has {}",
                state.seed, self.settings.seed
            )));
        }
        if self.settings.ranks.batch == BatchOf::EachRank && state.ranks != self.world.size() {
            return Err(unfit(format!(
                "it was saved by {} ranks, and there are {}: with `ranks.batch = \"each_rank\"` the steps would be of another size, and the place in the data another one. Start as many ranks again",
                state.ranks,
                self.world.size()
            )));
        }
        let here: Vec<String> = self.hooks.list_hooks().into_iter().map(|hook| hook.id).collect();
        for id in here.iter().filter(|id| !state.hooks.iter().any(|saved| saved.id == **id)) {
            tracing::warn!("hook `{id}` is not in the checkpoint: it begins anew");
        }
        for saved in state.hooks {
            let id = saved.id.clone();
            if !here.contains(&id) {
                // Most have gathered nothing, such as the progress bar, which comes later or not at all.
                if saved.state.is_some() || !saved.tensors.is_empty() {
                    tracing::warn!(
                        "hook `{id}` is in the checkpoint and not in this run: what it had gathered is left out"
                    );
                }
                continue;
            }
            self.hooks.load_hook(saved).map_err(|error| unfit(format!("hook `{id}`: {error}")))?;
        }
        self.logs_to_keep = logs_to_keep;
        self.progress = state.progress;
        self.restore_events();
        self.state.metrics =
            self.progress.metrics.iter().map(|(name, value)| (name.clone(), value.0)).collect();
        let name = checkpoint.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        self.resumed_from = Some((checkpoint.to_path_buf(), name));
        Ok(())
    }

    /// Begins a run of its own from a checkpoint of another: weights, optimizers, data position and hooks, but not that run's checkpoints,
    /// nor its end, and with the learning rates of its own configuration.
    pub fn restore_fork(&mut self, checkpoint: &Path) -> Result<(), TrainError> {
        let run = self.run.take();
        let rates: Vec<Vec<f64>> = self
            .optimizers
            .iter()
            .map(|one| one.groups().iter().map(|group| group.base_lr).collect())
            .collect();
        let restored = self.restore(checkpoint);
        self.run = run;
        for (optimizer, rates) in self.optimizers.iter_mut().zip(&rates) {
            optimizer.set_base_lrs(rates);
        }
        (self.progress.stop, self.progress.degraded) = (None, false);
        self.progress.known.clear();
        self.progress.waiting.clear();
        self.progress.place = Place::default();
        restored
    }

    /// Takes only the weights of a checkpoint, for validation.
    pub fn restore_weights(&mut self, checkpoint: &Path) -> Result<(), TrainError> {
        let loaded = checkpoint::read(checkpoint, self.model.params(), &self.device)?;
        self.progress.step = loaded.state.progress.step;
        self.progress.cursor.epoch = loaded.state.progress.cursor.epoch;
        Ok(())
    }

    /// A run that is killed between two checkpoints of one place leaves the second one out; it is written now, with what is in the first.
    fn finish_place(&mut self) -> Result<(), TrainError> {
        if self.run.is_none() {
            return Ok(());
        }
        let written = write(&self.snapshot()?, &self.checkpoints_dir());
        written.into_result().map_err(TrainError::Save)
    }

    /// Between two steps hooks are told the time of the last one, and what they published waits for the next row of the log.
    fn restore_events(&mut self) {
        self.begin_events();
        self.events.set_clock(self.progress.clock);
        let published = std::mem::take(&mut self.progress.published);
        published.into_iter().for_each(|(name, value)| self.events.log(name, value.0));
    }

    pub(super) fn announce_resume(&mut self) -> Result<(), TrainError> {
        let Some((path, name)) = self.resumed_from.clone() else { return Ok(()) };
        let info = CheckpointInfo { path: &path, name: &name, step: self.progress.step, requested_by: &[] };
        self.fire(Event::CheckpointLoad(&info))
    }

    /// What hooks did when this place was first announced is not in the checkpoint.
    pub(super) fn announce_saves_of_resumed(&mut self) -> Result<(), TrainError> {
        if self.run.is_none() {
            return Ok(());
        }
        let names = self.progress.place.saves.clone();
        self.announce_saves(self.progress.step, &names)
    }
}
