//! The hook that keeps count of latents and keeps weights where they belong.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::Tensor;
use serde_json::Value;
use tenterhook_hooks::{BatchInfo, Cx, Hook, HookResult, NamedGrads};
use tenterhook_nn::Param;
use tenterhook_nn::ops::sparse::{Activity, row_norms};
use tenterhook_train::World;
use tenterhook_train::optim::{clip_scale, grad_norms};

use super::latents::{Numbers, Pending};
use super::task::{Entry, SaeTask};
use crate::layer::Bias;

/// Does for a [`SaeTask`] what is not in its loss: clips the gradients of each autoencoder, keeps decoders and thresholds where they
/// belong, counts for how long latents have not fired, gives dead ones a new start, publishes metrics. What it counts survives a restart.
pub struct SaeKeeper {
    task: Arc<SaeTask>,
    world: World,
}

impl SaeKeeper {
    /// The kind's name.
    pub const KIND: &'static str = "sae_training";

    /// The keeper of this task.
    pub fn new(task: Arc<SaeTask>) -> Self {
        Self { task, world: World::alone() }
    }

    /// The same on one rank of several: what counts is what latents did on all of them.
    pub fn in_world(self, world: World) -> Self {
        Self { world, ..self }
    }

    /// What the batches of a step have shown, on all ranks.
    fn of_all_ranks(&self, pending: &mut Pending, entry: &Entry, step: u64) -> HookResult {
        if self.world.is_alone() {
            return Ok(());
        }
        let said = (pending.tokens, pending.activity.fired.clone(), pending.activity.least);
        let place = format!("the latents of `{}` in step {step}", entry.name);
        let all = self.world.meet(&place, said)?;
        (pending.tokens, pending.activity) = (0, Activity::default());
        all.into_iter().for_each(|(tokens, fired, least)| pending.add(tokens, Activity { fired, least }));
        Ok(())
    }

    /// The weights of rank 0, on all ranks.
    fn weights_of_first(&self, entry: &Entry) -> HookResult {
        for param in entry.params().filter(|_| !self.world.is_alone()) {
            let mut values = param.value().flatten_all()?.to_vec1::<f32>()?;
            self.world.broadcast(&mut values);
            param.var().set(&Tensor::from_vec(values, param.value().shape(), param.value().device())?)?;
        }
        Ok(())
    }
}

impl Hook for SaeKeeper {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn on_train_batch_start(&mut self, _batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        if cx.clock().micro_batch == 0 {
            self.task.live().iter_mut().for_each(|(_, pending)| *pending = Pending::default());
        }
        Ok(())
    }

    fn update(&mut self, grads: &mut NamedGrads, _cx: &mut Cx) -> HookResult {
        let options = self.task.options();
        for entry in &self.task.entries {
            if options.unit_norm_decoder {
                remove_radial_part(entry, grads)?;
            }
            let Some(norm) = options.clip_norm else { continue };
            let own: NamedGrads = entry
                .params()
                .filter_map(|param| Some((param.name().to_string(), grads.get(param.name())?.clone())))
                .collect();
            let scale = clip_scale(grad_norms(&own)?.total, norm);
            if scale < 1.0 {
                for (name, grad) in own.iter() {
                    grads.set(name, (grad * scale)?)?;
                }
            }
        }
        Ok(())
    }

    fn on_after_optimizer_step(&mut self, optimizer_idx: usize, cx: &mut Cx) -> HookResult {
        if cx.state().is_some_and(|state| optimizer_idx + 1 < state.optimizers.len()) {
            return Ok(());
        }
        let options = self.task.options();
        for (index, entry) in self.task.entries.iter().enumerate() {
            if options.unit_norm_decoder {
                let rows = entry.layer.w_dec.value();
                let norms = row_norms(rows)?.clamp(1e-8, f64::INFINITY)?.unsqueeze(1)?;
                entry.layer.w_dec.var().set(&rows.broadcast_div(&norms)?)?;
            }
            if let Bias::Jump { threshold, .. } = &entry.layer.bias {
                threshold.var().set(&threshold.value().relu()?)?;
            }
            let mut live = self.task.live();
            let (latents, pending) = &mut live[index];
            self.of_all_ranks(pending, entry, cx.clock().step)?;
            latents.take(pending, options.topk_threshold_lr);
            let dead = latents.dead(options.dead_after_tokens);
            if let (Some(dead), Some((inputs, squares))) = (dead, pending.missed.take()) {
                // Rank 0 chooses, among the inputs that it has.
                let random = cx.random().named(&entry.name);
                let chosen = match self.world.is_first() {
                    true => entry.resample(&dead, &inputs, &squares, random),
                    false => Ok(()),
                };
                self.world.all_well("new starts", chosen)?;
                self.weights_of_first(entry)?;
                latents
                    .since_fired
                    .iter_mut()
                    .zip(dead.iter())
                    .filter(|(_, dead)| **dead)
                    .for_each(|(since, _)| *since = 0);
            }
        }
        Ok(())
    }

    fn on_train_batch_end(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        let options = self.task.options();
        if !batch.completes_step || !cx.clock().step.is_multiple_of(options.metrics_every) {
            return Ok(());
        }
        let live = self.task.live();
        for (entry, (latents, pending)) in self.task.entries.iter().zip(live.iter()) {
            for (name, value) in &pending.metrics {
                cx.log(entry.metric(name), *value);
            }
            let dead =
                latents.dead_count(options.dead_after_tokens) as f64 / latents.since_fired.len() as f64;
            cx.log(entry.metric("dead_share"), dead);
        }
        Ok(())
    }

    fn save_state(&self) -> HookResult<Option<Value>> {
        let live = self.task.live();
        let numbers: Vec<Numbers> = live
            .iter()
            .map(|(latents, _)| Numbers {
                topk_threshold: latents.topk_threshold,
                scaling_factor: latents.scaling_factor,
            })
            .collect();
        Ok(Some(serde_json::to_value(numbers)?))
    }

    fn load_state(&mut self, state: Value) -> HookResult {
        let numbers: Vec<Numbers> = serde_json::from_value(state)?;
        let mut live = self.task.live();
        if numbers.len() != live.len() {
            return Err(format!(
                "it was saved with {} autoencoders, and there are {}",
                numbers.len(),
                live.len()
            )
            .into());
        }
        for ((latents, _), Numbers { topk_threshold, scaling_factor }) in live.iter_mut().zip(numbers) {
            (latents.topk_threshold, latents.scaling_factor) = (topk_threshold, scaling_factor);
        }
        Ok(())
    }

    fn save_tensors(&self) -> HookResult<Vec<(String, Tensor)>> {
        let live = self.task.live();
        let entries = self.task.entries.iter().zip(live.iter());
        entries.map(|(entry, (latents, _))| Ok((entry.count_name(), latents.to_tensor()?))).collect()
    }

    fn load_tensors(&mut self, tensors: Vec<(String, Tensor)>) -> HookResult {
        let tensors: BTreeMap<String, Tensor> = tensors.into_iter().collect();
        let mut live = self.task.live();
        for (entry, (latents, _)) in self.task.entries.iter().zip(live.iter_mut()) {
            let name = entry.count_name();
            let counts = tensors.get(&name).ok_or_else(|| format!("`{name}` is missing"))?;
            latents.set_counts(counts)?;
        }
        Ok(())
    }
}

impl Entry {
    fn count_name(&self) -> String {
        if self.name.is_empty() { "since_fired".to_string() } else { format!("{}.since_fired", self.name) }
    }

    fn params(&self) -> impl Iterator<Item = &Param> {
        let layer = &self.layer;
        let others: Vec<&Param> = match &layer.bias {
            Bias::Plain(b_enc) => vec![b_enc],
            Bias::Jump { b_enc, threshold } => vec![b_enc, threshold],
            Bias::Gated { b_gate, b_mag, r_mag } => vec![b_gate, b_mag, r_mag],
        };
        [&layer.w_enc, &layer.w_dec, &layer.b_dec].into_iter().chain(others)
    }
}

/// Takes out of the decoder's gradient what would only change the length of its rows.
fn remove_radial_part(entry: &Entry, grads: &mut NamedGrads) -> HookResult {
    let param = &entry.layer.w_dec;
    let Some(grad) = grads.get(param.name()) else { return Ok(()) };
    let rows = param.value();
    let along = (grad * rows)?.sum_keepdim(1)?;
    let tangent = (grad - rows.broadcast_mul(&along)?)?;
    grads.set(param.name(), tangent)
}
