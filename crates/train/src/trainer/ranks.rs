//! What ranks tell each other while they train: wishes of one that all follow, what is logged, whether their weights are still the same.
//!
//! A trainer that is alone does none of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenterhook_hooks::{HookError, Metrics, NamedGrads, RunStatus};
use tenterhook_nn::Param;
use tenterhook_record::metrics::Number;

use super::Trainer;
use super::step::Loaded;
use crate::checkpoint::as_safetensors;
use crate::error::TrainError;
use crate::optim::read;
use crate::progress::{Stop, Waiting};
use crate::watchdog::Phase;
use crate::world::{World, WorldError, sum_all};

/// What ranks have agreed on, and what this one has still to tell.
#[derive(Default)]
pub(super) struct Agreed {
    /// Somebody asked the run to leave.
    interrupted: bool,
    /// A hook asked for a validation.
    pub(super) validate: bool,
    /// A hook asked for the end.
    stop: bool,
    /// How often an update hook has failed here, and left the gradients as they were.
    failed_updates: u64,
    /// The step after which weights were last compared.
    checked_at: Option<u64>,
    /// Failures of hooks that rank 0 has not heard of.
    errors: Vec<Value>,
    /// Hooks of which there is to be one only.
    only_on_first: Vec<String>,
    /// Since the last row: the time in which this rank waited for others, and that of sums.
    waited: Duration,
    summed: Duration,
}

/// What a rank wants and has, between two steps.
#[derive(Serialize, Deserialize)]
struct Wishes {
    interrupted: bool,
    stop: Option<Stop>,
    validate: bool,
    /// Checkpoints that hooks asked for; rank 0 writes them.
    waiting: Vec<Waiting>,
    errors: Vec<Value>,
    /// What must be the same everywhere.
    standing: String,
    weights: Option<String>,
}

/// What a rank brings to a step.
#[derive(Serialize, Deserialize)]
struct Brought {
    /// Per batch, how much this rank's part of it counts, and its tokens.
    parts: Vec<(Number, u64)>,
    /// Hooks that rank 0 was asked to switch on or off.
    switched: Vec<(String, bool)>,
}

/// How this rank's part of a batch stands to the whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchShare {
    /// Which share of the loss, and of the gradients, is this rank's.
    pub(super) share: f64,
    /// The tokens of the whole batch.
    pub(super) tokens: u64,
}

/// What was found for a batch of a validation set.
#[derive(Serialize, Deserialize)]
pub(super) struct Evaluated {
    pub(super) batch: u64,
    /// How much it counts in the mean.
    pub(super) weight: Number,
    pub(super) values: BTreeMap<String, Number>,
}

impl Trainer {
    /// The same trainer as one rank of a world. Rank 0 keeps the record and has the hooks that write, show or send something; all others
    /// have these switched off.
    pub fn with_world(mut self, world: World) -> Self {
        (self.state.rank, self.state.world_size) = (world.rank(), world.size());
        self.world = world;
        self.silence_others();
        self
    }

    /// The world it trains in.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Of this hook there may be one only.
    pub(super) fn note_only_on_first(&mut self, id: String) {
        self.agreed.only_on_first.push(id);
        self.silence_others();
    }

    /// Switches off, on all ranks but the first, what there may be one of only.
    pub(super) fn silence_others(&self) {
        if !self.world.is_first() {
            for id in &self.agreed.only_on_first {
                let _ = self.hooks.disable_hook(id); // it may have been removed
            }
        }
    }

    /// Whether a hook works on this rank at all.
    pub(super) fn has_here(&self, hook: &str) -> bool {
        self.world.is_first() || !self.agreed.only_on_first.iter().any(|id| id == hook)
    }

    /// All ranks begin with the weights of rank 0.
    pub(super) fn begin_together(&mut self) -> Result<(), TrainError> {
        if self.world.is_alone() {
            return Ok(());
        }
        self.silence_others(); // a checkpoint may have switched them on
        let model = self.model.clone();
        let describe = |param: &Param| {
            format!("{} {:?} {:?}", param.name(), param.value().dims(), param.value().dtype())
        };
        let own = model.params().iter().map(describe).collect();
        let all: Vec<Vec<String>> = self.world.meet("the parameters", own)?;
        if let Some(rank) = all.iter().position(|one| *one != all[0]) {
            let differs = all[rank].iter().find(|param| !all[0].contains(param));
            let what =
                differs.map_or_else(|| "some are missing".to_string(), |param| format!("it has {param}"));
            return Err(self
                .world
                .come_apart(format!("rank {rank} has other parameters than rank 0: {what}"))
                .into());
        }
        for param in model.params().iter() {
            let tensor = [(param.name().to_string(), param.value().clone())];
            let mut bytes = as_safetensors(&tensor, []).map_err(candle_core::Error::wrap)?;
            self.world.broadcast(&mut bytes);
            if !self.world.is_first() {
                let read = candle_core::safetensors::load_buffer(&bytes, &self.device)?;
                read.get(param.name()).map_or(Ok(()), |value| param.var().set(value))?;
            }
        }
        self.come_together(true)
    }

    /// Ranks tell each other what each wants; then all want it. Now and then, or when told to, they compare their weights.
    pub(super) fn come_together(&mut self, compare: bool) -> Result<(), TrainError> {
        if self.world.is_alone() {
            return Ok(());
        }
        let step = self.progress.step;
        let every = [Some(self.settings.ranks.check_every), self.settings.checkpoint_every];
        let due = every.into_iter().flatten().any(|n| step.is_multiple_of(n));
        let compare = compare || (due && self.agreed.checked_at != Some(step));
        let wishes = Wishes {
            interrupted: self.interrupt.is_raised(),
            stop: self.progress.stop.clone(),
            validate: std::mem::take(&mut self.progress.validation_asked),
            waiting: self.progress.waiting.clone(),
            errors: std::mem::take(&mut self.agreed.errors),
            standing: self.standing(),
            weights: compare.then(|| self.hash_of_weights()).transpose()?,
        };
        let compared = if compare { ", with weights" } else { "" };
        let all = self.meet(&format!("the end of step {step}{compared}"), wishes)?;
        self.check_same("the state of the run", all.iter().map(|one| Some(&one.standing)))?;
        self.check_same("the weights", all.iter().map(|one| one.weights.as_ref()))?;
        if compare {
            self.agreed.checked_at = Some(step);
        }
        self.agreed.interrupted |= all.iter().any(|one| one.interrupted);
        self.agreed.validate |= all.iter().any(|one| one.validate);
        self.agreed.stop |= all.iter().any(|one| one.stop.is_some());
        if self.progress.stop.is_none() {
            self.progress.stop = all.iter().enumerate().find_map(|(rank, one)| {
                let Stop { hook_id, reason } = one.stop.clone()?;
                let whose = if rank > 0 { format!(" (on rank {rank})") } else { String::new() };
                Some(Stop { hook_id, reason: format!("{reason}{whose}") })
            });
        }
        let (waiting, errors): (Vec<_>, Vec<_>) =
            all.into_iter().skip(1).map(|one| (one.waiting, one.errors)).unzip();
        // The same hook asks on every rank; what another rank alone asks for is rank 0's to do as well.
        for wish in waiting.into_iter().flatten().filter(|_| self.world.is_first()) {
            if !self.progress.waiting.contains(&wish) {
                self.progress.waiting.push(wish);
            }
        }
        self.note_errors_of_others(errors.into_iter().flatten().collect());
        Ok(())
    }

    /// Whether somebody asked the run to leave; of several ranks, as far as all know of it.
    pub(super) fn is_interrupted(&self) -> bool {
        if self.world.is_alone() { self.interrupt.is_raised() } else { self.agreed.interrupted }
    }

    /// Whether a hook asked for the end, likewise.
    pub(super) fn is_stopped(&self) -> bool {
        if self.world.is_alone() { self.progress.stop.is_some() } else { self.agreed.stop }
    }

    /// Whether a hook asked for a validation, likewise.
    pub(super) fn validation_asked(&mut self) -> &mut bool {
        if self.world.is_alone() { &mut self.progress.validation_asked } else { &mut self.agreed.validate }
    }

    /// A meeting, with the time that it took.
    fn meet<T: Serialize + DeserializeOwned>(&mut self, at: &str, what: T) -> Result<Vec<T>, TrainError> {
        self.enter(Phase::Ranks)?;
        let began = Instant::now();
        let all = self.world.meet(at, what)?;
        self.agreed.waited += began.elapsed();
        Ok(all)
    }

    /// What the others cost since the last row: seconds in which this rank waited for them, and seconds of sums.
    pub(super) fn publish_cost_of_ranks(&mut self) {
        if self.world.is_alone() {
            return;
        }
        let Agreed { waited, summed, .. } = &mut self.agreed;
        let (waited, summed) = (std::mem::take(waited), std::mem::take(summed));
        self.events.log("time/ranks_wait_s", waited.as_secs_f64());
        self.events.log("time/ranks_sum_s", summed.as_secs_f64());
    }

    /// At the end: all have come to it, or hear who has not.
    pub(super) fn part(&mut self, result: Result<RunStatus, TrainError>) -> Result<RunStatus, TrainError> {
        let result = result.and_then(|status| self.come_together(true).map(|()| status));
        if let Err(error) = &result {
            self.world.fail(&error.to_string()); // but for what others have told
        }
        result
    }

    /// After the last events and saves: what went wrong in them on another rank stands in the record, and is not lost.
    pub(super) fn last_words(
        &mut self,
        result: Result<RunStatus, TrainError>,
    ) -> Result<RunStatus, TrainError> {
        if self.world.is_alone() || self.world.is_over() {
            return result;
        }
        let problem = result.as_ref().err().map(|error| error.to_string());
        let errors = std::mem::take(&mut self.agreed.errors);
        let all = self.meet("the end", (problem, errors))?;
        let failed = all.iter().enumerate().find_map(|(rank, (problem, _))| Some((rank, problem.clone()?)));
        self.note_errors_of_others(all.into_iter().skip(1).flat_map(|(_, errors)| errors).collect());
        match (result, failed) {
            (Ok(_), Some((rank, problem))) => {
                let host = self.world.hosts()[rank].clone();
                Err(WorldError::Failed { rank, host, problem }.into())
            }
            (result, _) => result,
        }
    }

    /// The step, the place in the data, what hooks have made of learning rates and frozen parameters, and how often they failed to change gradients.
    fn standing(&self) -> String {
        let progress = &self.progress;
        let lrs: Vec<Vec<f64>> =
            progress.lr_scale.iter().map(|scales| scales.iter().map(|scale| scale.0).collect()).collect();
        let failed = self.agreed.failed_updates;
        let all = json!([progress.step, progress.cursor, lrs, progress.frozen, failed]);
        blake3::hash(all.to_string().as_bytes()).to_hex()[..16].to_string()
    }

    fn hash_of_weights(&self) -> Result<String, TrainError> {
        let mut hasher = blake3::Hasher::new();
        for param in self.model.params().iter() {
            let value = param.value().to_device(&Device::Cpu)?;
            hasher.update(param.name().as_bytes());
            match value.dtype() {
                DType::F32 => read(&value, |x: &[f32]| Ok(hasher.update(bytemuck::cast_slice(x)).count()))?,
                DType::F64 => read(&value, |x: &[f64]| Ok(hasher.update(bytemuck::cast_slice(x)).count()))?,
                _ => {
                    let bytes =
                        as_safetensors(&[(String::new(), value)], []).map_err(candle_core::Error::wrap)?;
                    hasher.update(&bytes).count()
                }
            };
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    fn check_same<'a>(
        &self,
        what: &str,
        mut all: impl Iterator<Item = Option<&'a String>>,
    ) -> Result<(), TrainError> {
        let first = all.next().flatten();
        match all.position(|one| one != first) {
            None => Ok(()),
            Some(other) => {
                let (rank, step) = (other + 1, self.progress.step);
                let host = &self.world.hosts()[rank];
                let message = format!(
                    "after step {step}, {what} of rank {rank} on {host} differs from that of rank 0. A hook that decides by something of its own on every rank can do that (a clock, a random number, its part of the batch), and so can one that failed on that rank only"
                );
                Err(self.world.come_apart(message).into())
            }
        }
    }

    /// Keeps failures of hooks for rank 0, which writes them down.
    pub(super) fn keep_errors_for_first(&mut self, errors: &[HookError]) {
        self.agreed.failed_updates += errors.iter().filter(|error| error.event == "update").count() as u64;
        if self.world.is_first() {
            return;
        }
        let (step, rank) = (self.progress.step, self.world.rank());
        self.agreed.errors.extend(errors.iter().take(100).map(|error| {
            json!({
                "step": step,
                "rank": rank,
                "hook_id": error.hook_id,
                "hook_type": error.hook_type,
                "event": error.event,
                "point": error.point,
                "error": error.original_error.to_string(),
            })
        }));
    }

    fn note_errors_of_others(&mut self, errors: Vec<Value>) {
        if errors.is_empty() {
            return;
        }
        self.progress.degraded = true;
        for error in errors {
            if let Some(run) = &mut self.run {
                run.note(error);
            }
        }
    }

    /// Before the forwards of a step: how this rank's parts of its batches stand to the whole.
    pub(super) fn bring(&mut self, batches: &[Loaded]) -> Result<Vec<BatchShare>, TrainError> {
        let switched = std::mem::take(&mut self.outside.switched);
        if self.world.is_alone() {
            let share =
                |loaded: &Loaded| BatchShare { share: 1.0, tokens: loaded.batch.token_count() as u64 };
            return Ok(batches.iter().map(share).collect());
        }
        let part = |loaded: &Loaded| match loaded.counts {
            true => Ok((Number(self.model.loss_weight(&loaded.batch)?), loaded.batch.token_count() as u64)),
            false => Ok((Number(0.0), 0)),
        };
        let parts = batches.iter().map(part).collect::<candle_core::Result<_>>()?;
        let place = format!("step {}", self.progress.step);
        let all = self.meet(&place, Brought { parts, switched })?;
        if all.iter().any(|one| one.parts.len() != batches.len()) {
            return Err(self
                .world
                .come_apart(format!("in {place} not all ranks have as many batches"))
                .into());
        }
        if !self.world.is_first() {
            for (hook, on) in &all[0].switched {
                self.switch(hook, *on);
            }
        }
        let rank = self.world.rank();
        let share = |i: usize| {
            let whole: f64 = all.iter().map(|one| one.parts[i].0.0).sum();
            // Where nothing counts the loss is not a number, and that is told.
            let share = if whole > 0.0 { all[rank].parts[i].0.0 / whole } else { 1.0 / all.len() as f64 };
            BatchShare { share, tokens: all.iter().map(|one| one.parts[i].1).sum() }
        };
        Ok((0..batches.len()).map(share).collect())
    }

    /// After the forwards and backwards of a step: the losses of its whole batches. When that of a rank is not finite, all hear what that
    /// rank has found out, and the losses are those of the batches before.
    pub(super) fn losses_of_all(
        &mut self,
        losses: &[f64],
        shares: &[BatchShare],
        trouble: Option<String>,
    ) -> Result<(Vec<f64>, Option<String>), TrainError> {
        if self.world.is_alone() {
            return Ok((losses.to_vec(), trouble));
        }
        let part = |(loss, share): (&f64, &BatchShare)| Number(loss * share.share);
        let parts: Vec<Number> = losses.iter().zip(shares).map(part).collect();
        let all = self.meet(&format!("the losses of step {}", self.progress.step), (parts, trouble))?;
        let batches = all.iter().map(|(parts, _)| parts.len()).min().unwrap_or(0);
        let sums = (0..batches).map(|i| all.iter().map(|(parts, _)| parts[i].0).sum()).collect();
        let trouble = all.iter().enumerate().find_map(|(rank, (_, trouble))| Some((rank, trouble.as_ref()?)));
        Ok((sums, trouble.map(|(rank, trouble)| self.of_rank(rank, trouble))))
    }

    /// What a rank found out, on all of them; of several the first rank's.
    pub(super) fn trouble_of_all(&mut self, trouble: Option<String>) -> Result<Option<String>, TrainError> {
        if self.world.is_alone() {
            return Ok(trouble);
        }
        let all = self.world.meet(&format!("the trouble of step {}", self.progress.step), trouble)?;
        let first = all.iter().enumerate().find_map(|(rank, trouble)| Some((rank, trouble.as_ref()?)));
        Ok(first.map(|(rank, trouble)| self.of_rank(rank, trouble)))
    }

    fn of_rank(&self, rank: usize, what: &str) -> String {
        format!("rank {rank} on {}: {what}", self.world.hosts()[rank])
    }

    /// The gradients of the whole batch: the sums of those of all ranks. One that only some ranks have counts as zero on the others.
    pub(super) fn sum_gradients(&mut self, grads: &NamedGrads) -> Result<NamedGrads, TrainError> {
        let model = self.model.clone();
        let params = model.params();
        let present: Vec<bool> = params.iter().map(|param| grads.get(param.name()).is_some()).collect();
        let all = self.meet(&format!("the gradients of step {}", self.progress.step), present)?;
        let named = params.iter().enumerate().filter(|(i, _)| all.iter().any(|one| one[*i]));
        let named: Vec<_> = named.map(|(_, param)| param).collect();
        let own = named.iter().map(|param| match grads.get(param.name()) {
            Some(grad) => Ok(grad.clone()),
            None => param.value().zeros_like(),
        });
        let own: Vec<Tensor> = own.collect::<candle_core::Result<_>>()?;
        let began = Instant::now();
        let sums = sum_all(&self.world, &own, self.settings.ranks.bucket_bytes())?;
        self.agreed.summed += began.elapsed();
        Ok(named.iter().map(|param| param.name().to_string()).zip(sums).collect())
    }

    /// What hooks published on all ranks, as one: the mean of the numbers; of those named `.../max` and `.../min` the largest and the smallest.
    pub(super) fn metrics_of_all(&mut self, own: Metrics) -> Result<Metrics, TrainError> {
        if self.world.is_alone() {
            return Ok(own);
        }
        let numbers: BTreeMap<String, Number> =
            own.into_iter().map(|(name, value)| (name, Number(value))).collect();
        let all = self.meet(&format!("the row of step {}", self.progress.step), numbers)?;
        let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (name, Number(value)) in all.into_iter().flatten() {
            values.entry(name).or_default().push(value);
        }
        let one = |(name, values): (String, Vec<f64>)| (name.clone(), reduced(&name, &values));
        Ok(values.into_iter().map(one).collect())
    }

    /// What all ranks found for their batches of a validation set, in the order of the batches; nothing when one of them was interrupted.
    pub(super) fn evaluations_of_all(
        &mut self,
        own: Vec<Evaluated>,
        interrupted: bool,
    ) -> Result<Option<Vec<Evaluated>>, TrainError> {
        if self.world.is_alone() {
            return Ok((!interrupted).then_some(own));
        }
        let place = format!("the validation after step {}", self.progress.step);
        let all = self.meet(&place, (interrupted, own))?;
        if all.iter().any(|(interrupted, _)| *interrupted) {
            self.agreed.interrupted = true;
            return Ok(None);
        }
        let mut every: Vec<Evaluated> = all.into_iter().flat_map(|(_, found)| found).collect();
        every.sort_by_key(|one| one.batch);
        Ok(Some(every))
    }
}

/// One number of those that the ranks have.
fn reduced(name: &str, values: &[f64]) -> f64 {
    let first = values.first().copied().unwrap_or(f64::NAN);
    // The mean of equal numbers need not be that number.
    if values.iter().all(|value| value.to_bits() == first.to_bits()) {
        return first;
    }
    match name.rsplit('/').next() {
        _ if values.iter().any(|value| value.is_nan()) => f64::NAN,
        Some("max") => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        Some("min") => values.iter().copied().fold(f64::INFINITY, f64::min),
        _ => values.iter().sum::<f64>() / values.len() as f64,
    }
}

#[cfg(test)]
mod tests;
