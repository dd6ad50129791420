//! Hooks that are switched on and off from outside, and what hooks do for those who look on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::Value;
use tenterhook_hooks::HookInfo;
use tenterhook_record::run::{HookChange, HookRequest};

use super::Trainer;
use crate::error::TrainError;
use crate::run::Run;

/// How often the receipts are written while a run goes on.
const BETWEEN_RECEIPTS: Duration = Duration::from_secs(1);

/// What somebody outside of the process has to do with the run.
pub(super) struct Outside {
    /// Changes of hooks that are made again at their steps: those of the run that is repeated, or of this one after its checkpoint.
    again: VecDeque<HookChange>,
    /// Hooks that were switched on or off since the last step: other ranks do the same.
    pub(super) switched: Vec<(String, bool)>,
    began: Instant,
    receipts_at: Instant,
}

impl Default for Outside {
    fn default() -> Self {
        let now = Instant::now();
        Self { again: VecDeque::new(), switched: Vec::new(), began: now, receipts_at: now }
    }
}

impl Trainer {
    /// Makes these changes of hooks again, each before the step at which it was made. Call it before [`train`](Trainer::train), for a
    /// run that repeats another one.
    pub fn repeat_changes(&mut self, changes: &[HookChange]) {
        let made = changes.iter().filter(|change| change.refused.is_none());
        self.outside.again = made.cloned().collect();
    }

    /// What was changed after the checkpoint that a run goes on from is changed again.
    pub(super) fn repeat_own_changes(&mut self) {
        let Some(run) = &self.run else { return };
        let step = self.progress.step;
        let later = run.record().hook_changes.iter().filter(|change| change.step >= step);
        let later: Vec<HookChange> = later.cloned().collect();
        self.repeat_changes(&later);
    }

    /// Before a step: switches hooks on and off as they were when this was first done, and as somebody asks now.
    pub(super) fn heed_requests(&mut self) -> Result<(), TrainError> {
        let step = self.progress.step;
        while let Some(change) = self.outside.again.pop_front_if(|change| change.step <= step) {
            match self.switch(&change.hook, change.enabled) {
                Some(problem) => {
                    tracing::warn!("step {step}: a change of the record is not made again: {problem}")
                }
                None => self.note_change(change)?,
            }
        }
        let requests = self.run.as_mut().map(Run::requests).unwrap_or_default();
        for (id, request) in requests {
            match request {
                Ok(request) => self.heed(&id, &request)?,
                Err(problem) => tracing::warn!("the request control/{id}.json is left out: {problem}"),
            }
            self.run.iter_mut().for_each(|run| run.request_done(&id));
            self.outside.receipts_at -= BETWEEN_RECEIPTS; // whoever asked wants to see it
        }
        Ok(())
    }

    fn heed(&mut self, id: &str, request: &HookRequest) -> Result<(), TrainError> {
        if self.run.as_ref().is_some_and(|run| run.knows_request(id)) {
            return Ok(()); // it was heeded just before the process was killed
        }
        let (step, HookRequest { hook, enabled, by }) = (self.progress.step, request);
        let refused = self.switch(hook, *enabled);
        match &refused {
            None => {
                tracing::info!("step {step}: hook `{hook}` is {}: {by}", if *enabled { "on" } else { "off" })
            }
            Some(problem) => tracing::warn!("step {step}: a request of {by}: {problem}"),
        }
        self.note_change(HookChange::new(step, id, request, refused))
    }

    fn note_change(&mut self, change: HookChange) -> Result<(), TrainError> {
        self.run.as_mut().map_or(Ok(()), |run| run.note_change(change))
    }

    /// Returns why it cannot be done.
    pub(super) fn switch(&mut self, hook: &str, on: bool) -> Option<String> {
        if !self.has_here(hook) {
            return None;
        }
        self.outside.switched.push((hook.to_string(), on));
        let switched = if on { self.hooks.enable_hook(hook) } else { self.hooks.disable_hook(hook) };
        switched.err().map(|error| error.to_string())
    }

    /// Writes what hooks did so far, for those who look on; not more often than they would notice.
    pub(super) fn show_receipts(&mut self) {
        let now = Instant::now();
        if self.run.is_none() || now.duration_since(self.outside.receipts_at) < BETWEEN_RECEIPTS {
            return;
        }
        self.outside.receipts_at = now;
        let receipts: Value = self.hooks.list_hooks().iter().map(|hook| self.with_share(hook)).collect();
        if let Some(run) = &self.run {
            run.show_receipts(&receipts);
        }
    }

    /// A hook's receipt, with its share of the time since this start of the run.
    pub(super) fn with_share(&self, hook: &HookInfo) -> Value {
        let mut receipt = serde_json::to_value(hook).unwrap_or_default();
        let seconds = self.outside.began.elapsed().as_secs_f64();
        if let (Some(nanoseconds), Some(fields)) =
            (receipt["nanoseconds"].as_f64(), receipt.as_object_mut().filter(|_| seconds > 0.0))
        {
            fields.insert("share".to_string(), (nanoseconds / 1e9 / seconds).into());
        }
        receipt
    }

    /// The clock of shares starts with the training.
    pub(super) fn start_share(&mut self) {
        self.outside.began = Instant::now();
    }
}
