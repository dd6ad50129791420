//! What callers can do with a trainer beside training: hooks, learning rates, the state.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tenterhook_hooks::{
    AttachError, BoxError, Hook, HookError, HookInfo, HookManager, HookOptions, HookRegistry, TrainState,
};

use super::Trainer;
use crate::config::redacted;
use crate::error::TrainError;
use crate::hooks::{GradCoverage, IdentityUpdate};
use crate::interrupt::Interrupt;
use crate::optim::Optimizer;
use tenterhook_record::metrics::Number;

impl Trainer {
    /// The hooks.
    pub fn hooks(&self) -> &HookManager {
        &self.hooks
    }

    /// Attaches a hook, and returns its id.
    pub fn add_hook(&mut self, hook: impl Hook) -> Result<String, AttachError> {
        self.add_hook_with(hook, HookOptions::default())
    }

    /// The same with options.
    pub fn add_hook_with(&mut self, hook: impl Hook, options: HookOptions) -> Result<String, AttachError> {
        self.attach(Box::new(hook), options)
    }

    fn attach(&mut self, hook: Box<dyn Hook>, options: HookOptions) -> Result<String, AttachError> {
        self.make_way(hook.kind());
        let only_on_first = hook.only_on_first_rank();
        let id = self.hooks.register_boxed(hook, options)?;
        if only_on_first {
            self.note_only_on_first(id.clone());
        }
        Ok(id)
    }

    /// Attaches a hook by its kind and options, as they stand in a configuration.
    pub fn add_hook_from(&mut self, registry: &HookRegistry, spec: &Value) -> Result<String, AttachError> {
        let (hook, options) = registry.build(spec)?;
        let id = self.attach(hook, options)?;
        self.hook_options.insert(id.clone(), redacted(spec.clone()));
        Ok(id)
    }

    /// The hooks that every run has, unless it has others of their kinds.
    pub(super) fn add_usual_hooks(&mut self) -> Result<(), AttachError> {
        for kind in [IdentityUpdate::KIND, GradCoverage::KIND] {
            // Under a given id, which is free again when another one takes its place.
            self.add_builtin(json!({ "kind": kind, "id": kind }))?;
            self.usual_hooks.push(kind);
        }
        Ok(())
    }

    fn make_way(&mut self, kind: &str) {
        if let Some(i) = self.usual_hooks.iter().position(|usual| *usual == kind) {
            // It may have been removed already.
            let _ = self.hooks.remove_hook(self.usual_hooks.remove(i));
        }
    }

    /// Prints a line every so many batches: the kind `console_log`.
    pub fn add_console_logging(&mut self, log_every_n_batches: u64) -> Result<String, AttachError> {
        self.add_builtin(json!({ "kind": "console_log", "log_every_n_batches": log_every_n_batches }))
    }

    /// Writes a line of JSON every so many batches: the kind `json_log`.
    pub fn add_json_logging(&mut self, log_every_n_batches: u64) -> Result<String, AttachError> {
        self.add_builtin(json!({ "kind": "json_log", "log_every_n_batches": log_every_n_batches }))
    }

    /// Saves a checkpoint every so many epochs: the kind `model_checkpoint`.
    pub fn add_checkpointing(&mut self, save_every_n_epochs: u64) -> Result<String, AttachError> {
        self.add_builtin(json!({
            "kind": "model_checkpoint",
            "save_every_n_epochs": save_every_n_epochs,
            "save_on_train_epoch_end": true,
            "save_top_k": -1,
        }))
    }

    fn add_builtin(&mut self, spec: Value) -> Result<String, AttachError> {
        self.add_hook_from(&crate::hooks::registry(), &spec)
    }

    /// Removes a hook.
    pub fn remove_hook(&mut self, id: &str) -> Result<(), AttachError> {
        self.hooks.remove_hook(id)
    }

    /// Switches a hook on.
    pub fn enable_hook(&mut self, id: &str) -> Result<(), AttachError> {
        self.hooks.enable_hook(id)
    }

    /// Switches a hook off; it keeps its place and its state.
    pub fn disable_hook(&mut self, id: &str) -> Result<(), AttachError> {
        self.hooks.disable_hook(id)
    }

    /// All hooks in the order in which they run.
    pub fn list_hooks(&self) -> Vec<HookInfo> {
        self.hooks.list_hooks()
    }

    /// The state that hooks read.
    pub fn state(&self) -> &TrainState {
        &self.state
    }

    /// The optimizers, with what they keep for every parameter.
    pub fn optimizers(&self) -> &[Optimizer] {
        &self.optimizers
    }

    /// The failures of hooks so far, the first thousand of them.
    pub fn errors(&self) -> &[HookError] {
        &self.errors
    }

    /// The flag that asks the run to save and leave.
    pub fn interrupt(&self) -> Interrupt {
        self.interrupt.clone()
    }

    /// Steps taken so far.
    pub fn step(&self) -> u64 {
        self.progress.step
    }

    /// The checkpoint that was restored, if one was.
    pub fn resumed_from(&self) -> Option<&Path> {
        self.resumed_from.as_ref().map(|(path, _)| path.as_path())
    }

    /// Whether a hook asked for the end of this run, now or before it was resumed, and why.
    pub fn stopped(&self) -> Option<&str> {
        self.progress.stop.as_ref().map(|stop| stop.reason.as_str())
    }

    /// The learning rates of this step: the schedule's share of every group's own, and what hooks made of it.
    pub(super) fn apply_schedule(&mut self) -> Result<(), TrainError> {
        let factor = self.schedule.factor(self.progress.step);
        for (optimizer, scales) in self.optimizers.iter_mut().zip(&self.progress.lr_scale) {
            for (i, scale) in scales.iter().enumerate() {
                let lr = optimizer.groups()[i].base_lr * factor * scale.0;
                optimizer.set_lr(Some(i), lr)?;
            }
        }
        Ok(())
    }

    pub(super) fn scale_lr(
        &mut self,
        hook: &str,
        optimizer: Option<usize>,
        group: Option<usize>,
        factor: f64,
    ) -> Result<(), TrainError> {
        self.change_lr(hook, optimizer, group, |_, scale| scale * factor)
    }

    pub(super) fn set_lr(
        &mut self,
        hook: &str,
        optimizer: Option<usize>,
        group: Option<usize>,
        lr: f64,
    ) -> Result<(), TrainError> {
        let factor = self.schedule.factor(self.progress.step);
        self.change_lr(hook, optimizer, group, |base, _| match base * factor {
            0.0 => 1.0, // a rate of zero stays zero whatever it is multiplied with
            now => lr / now,
        })
    }

    fn change_lr(
        &mut self,
        hook: &str,
        optimizer: Option<usize>,
        group: Option<usize>,
        change: impl Fn(f64, f64) -> f64,
    ) -> Result<(), TrainError> {
        let (mut met, scales) = (false, &mut self.progress.lr_scale);
        for (i, one) in
            self.optimizers.iter().enumerate().filter(|(i, _)| optimizer.is_none_or(|only| only == *i))
        {
            for (j, settings) in
                one.groups().iter().enumerate().filter(|(j, _)| group.is_none_or(|only| only == *j))
            {
                scales[i][j] = Number(change(settings.base_lr, scales[i][j].0));
                met = true;
            }
        }
        match met {
            true => self.apply_schedule(),
            false => {
                self.refuse(hook, &format!("there is no optimizer {optimizer:?} with a group {group:?}"));
                Ok(())
            }
        }
    }

    /// A hook asked for something that cannot be: a failure of that hook, and not the end of the run.
    fn refuse(&mut self, hook_id: &str, problem: &str) {
        let kind = self.hooks.list_hooks().into_iter().find(|hook| hook.id == hook_id).map(|hook| hook.kind);
        let error = HookError {
            hook_id: hook_id.to_string(),
            hook_type: kind.unwrap_or_default(),
            event: "request",
            point: None,
            original_error: Arc::from(BoxError::from(problem)),
            backtrace: None,
        };
        tracing::warn!("{error}");
        self.note_errors(vec![error]);
    }
}
