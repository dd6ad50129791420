//! Keeping the best checkpoints.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{AttachError, BatchInfo, Cx, Hook, HookResult, Metrics, Request};

use crate::hooks::checkpoint_names::{claim, hold, remove};
use crate::hooks::console::Console;
use crate::hooks::monitored::{Exact, Goal, absent, after_validation, is_validation, latest};
use crate::hooks::none_of;
use crate::hooks::template::Template;

/// What a [`ModelCheckpoint`] saves and keeps.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelCheckpointOptions {
    /// How many checkpoints are kept: the best ones by `monitor`, without it the newest; 0 none, -1 all.
    pub save_top_k: i64,
    /// The metric that says which is best.
    pub monitor: Option<String>,
    /// Whether small ("min") or large ("max") values are better.
    pub mode: Goal,
    /// Also keeps the newest, as `last-<step>`.
    pub save_last: bool,
    /// Saves at the end of epochs; otherwise after validation.
    pub save_on_train_epoch_end: bool,
    /// Saves in every n-th epoch: 1 unless `save_every_n_steps` is given.
    pub save_every_n_epochs: Option<u64>,
    /// Saves after every n-th step; a `monitor` of validation makes it validate there.
    pub save_every_n_steps: Option<u64>,
    /// The name of a checkpoint, such as `epoch_{epoch}_loss_{val/loss:.2f}`: fields are `epoch`, `step` and every metric. By default
    /// `best-{step:08}`.
    pub filename: Option<String>,
    /// Writes a field of `filename` as `name=value`.
    pub auto_insert_metric_name: bool,
}

impl Default for ModelCheckpointOptions {
    fn default() -> Self {
        Self {
            save_top_k: 1,
            monitor: None,
            mode: Goal::Min,
            save_last: false,
            save_on_train_epoch_end: false,
            save_every_n_epochs: None,
            save_every_n_steps: None,
            filename: None,
            auto_insert_metric_name: true,
        }
    }
}

/// The best model so far, for whoever wants to tell: read it with `cx.board().get::<BestModel>()`.
#[derive(Clone, Debug, PartialEq)]
pub struct BestModel {
    /// The id of the hook that found it.
    pub hook_id: String,
    /// The metric.
    pub metric: String,
    /// Its value.
    pub score: f64,
    /// After which step.
    pub step: u64,
    /// The name of the checkpoint.
    pub name: String,
}

/// Asks for checkpoints, keeps the best k of them and has the rest removed.
///
/// A new best one is left on the board as [`BestModel`] and published as `<id>/best_score`. Of equal ones the older stays. NaN is never kept.
pub struct ModelCheckpoint {
    options: ModelCheckpointOptions,
    template: Template,
    state: State,
    console: Console,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    /// The best first, of equal ones the older; without a metric the newest first.
    kept: Vec<Kept>,
    last: Option<String>,
    /// The step that was looked at last: one step makes one candidate, however many events it has.
    looked_at: Option<u64>,
    /// A validation was asked for, and its result makes a candidate.
    awaits_validation: bool,
    said_nan: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    name: String,
    score: Option<Exact>,
}

impl ModelCheckpoint {
    /// The kind's name.
    pub const KIND: &'static str = "model_checkpoint";

    /// Options that make no sense are an error, and so is a `filename` that cannot be read.
    pub fn new(options: ModelCheckpointOptions) -> Result<Self, AttachError> {
        let mut problems = Vec::new();
        if options.save_top_k < -1 {
            problems.push(format!("`save_top_k` is {}, it must be -1 (all), 0 or more", options.save_top_k));
        }
        if options.save_top_k == 0 && !options.save_last {
            problems.push("`save_top_k` is 0 and `save_last` is false: nothing would be saved".to_string());
        }
        for (name, every) in [
            ("save_every_n_epochs", options.save_every_n_epochs),
            ("save_every_n_steps", options.save_every_n_steps),
        ] {
            if every == Some(0) {
                problems.push(format!("`{name}` is 0, it must be at least 1"));
            }
        }
        let filename = options.filename.as_deref().unwrap_or("best-{step:08}");
        let template = Template::parse(filename).map_err(|problem| format!("`filename`: {problem}"));
        problems.extend(template.clone().err());
        none_of(problems.clone(), Self::KIND)?;
        let template =
            template.map_err(|_| AttachError::BadOptions { kind: Self::KIND.to_string(), problems })?;
        Ok(Self { options, template, state: State::default(), console: Console::default() })
    }

    fn is_due(&self, epoch: u64) -> bool {
        let options = &self.options;
        let by_default = options.save_every_n_steps.is_none() || options.save_on_train_epoch_end;
        let every = options.save_every_n_epochs.or(by_default.then_some(1));
        every.is_some_and(|every| (epoch + 1).is_multiple_of(every))
    }

    /// Looks whether the model of this step is worth keeping, and asks for what follows from that.
    fn consider(&mut self, score: Option<f64>, results: &Metrics, cx: &mut Cx) -> HookResult {
        let state = cx.state().ok_or("there is no run whose model could be saved")?;
        let (step, epoch) = (state.step, state.current_epoch);
        if self.state.looked_at.replace(step) == Some(step) {
            return Ok(());
        }
        if self.options.save_last {
            let name = claim(&format!("last-{step:08}"), step, cx);
            cx.request(Request::Save { name: Some(name.clone()) });
            self.state.last.replace(name).into_iter().for_each(|previous| remove(previous, step, cx));
        }
        if self.options.save_top_k == 0 {
            return Ok(());
        }
        let mut place = 0;
        if let Some(monitor) = &self.options.monitor {
            let score = score.ok_or_else(|| absent(monitor, results, cx))?;
            if score.is_nan() {
                if !std::mem::replace(&mut self.state.said_nan, true) {
                    tracing::warn!(hook = cx.hook_id(), step, "`{monitor}` is NaN: such a model is not kept");
                }
                return Ok(());
            }
            let goal = self.options.mode;
            let stays_ahead = |kept: &Kept| kept.score.is_some_and(|old| !goal.is_better(score, old.0, 0.0));
            place = self.state.kept.partition_point(stays_ahead);
        }
        let limit = usize::try_from(self.options.save_top_k).unwrap_or(usize::MAX);
        if place >= limit {
            return Ok(());
        }
        let name = claim(&self.render(epoch, step, results, cx)?, step, cx);
        cx.request(Request::Save { name: Some(name.clone()) });
        let score = score.filter(|_| self.options.monitor.is_some());
        self.state.kept.insert(place, Kept { name: name.clone(), score: score.map(Exact) });
        while self.state.kept.len() > limit {
            self.state.kept.pop().into_iter().for_each(|worst| remove(worst.name, step, cx));
        }
        if let (0, Some(metric), Some(score)) = (place, &self.options.monitor, score) {
            if cx.verbose() {
                let id = cx.hook_id();
                self.console
                    .line(&format!("{id}: new best `{metric}` {score} at step {step}, saved as {name}"));
            }
            cx.log(format!("{}/best_score", cx.hook_id()), score);
            let hook_id = cx.hook_id().to_string();
            cx.board().put_for_run(BestModel { hook_id, metric: metric.clone(), score, step, name });
        }
        Ok(())
    }

    fn render(&self, epoch: u64, step: u64, results: &Metrics, cx: &Cx) -> HookResult<String> {
        let mut metrics = cx.state().map(|state| state.metrics.clone()).unwrap_or_default();
        metrics.extend(cx.metrics());
        metrics.extend(results.clone());
        let named = self.options.auto_insert_metric_name && self.options.filename.is_some();
        Ok(self.template.render(epoch, step, &metrics, named)?)
    }
}

impl Hook for ModelCheckpoint {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn only_on_first_rank(&self) -> bool {
        true
    }

    fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
        let names = self.state.kept.iter().map(|kept| &kept.name).chain(&self.state.last);
        names.for_each(|name| hold(name, cx));
        Ok(())
    }

    fn on_train_batch_end(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        let step = cx.state().map_or(0, |state| state.step);
        let due = self.options.save_every_n_steps.is_some_and(|every| step.is_multiple_of(every));
        if !due || !batch.completes_step {
            return Ok(());
        }
        match &self.options.monitor {
            // The last result is about an older model.
            Some(monitor) if is_validation(monitor) => {
                cx.request(Request::Validate);
                if std::mem::replace(&mut self.state.awaits_validation, true) {
                    return Err(format!(
                        "`{monitor}` needs a validation, and none came when it was asked for"
                    )
                    .into());
                }
                Ok(())
            }
            monitor => {
                let score = monitor.as_ref().and_then(|name| latest(name, cx));
                self.consider(score, batch.metrics, cx)
            }
        }
    }

    fn on_validation_end(&mut self, metrics: &Metrics, cx: &mut Cx) -> HookResult {
        let asked_for = std::mem::take(&mut self.state.awaits_validation);
        let epoch = cx.state().map_or(0, |state| state.current_epoch);
        if asked_for || !self.options.save_on_train_epoch_end && self.is_due(epoch) {
            let score = self.options.monitor.as_ref().and_then(|name| after_validation(name, metrics, cx));
            self.consider(score, metrics, cx)?;
        }
        Ok(())
    }

    fn on_epoch_end(&mut self, epoch: u64, cx: &mut Cx) -> HookResult {
        if self.options.save_on_train_epoch_end && self.is_due(epoch) {
            let score = self.options.monitor.as_ref().and_then(|name| latest(name, cx));
            self.consider(score, &Metrics::new(), cx)?;
        }
        Ok(())
    }

    fn save_state(&self) -> HookResult<Option<serde_json::Value>> {
        Ok(Some(serde_json::to_value(&self.state)?))
    }

    fn load_state(&mut self, state: serde_json::Value) -> HookResult {
        self.state = serde_json::from_value(state)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::test_support::{acts, assert_resumes, options};
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tenterhook_hooks::{Event, HookOptions, MockTrainer};

    fn hook(json: Value) -> ModelCheckpoint {
        ModelCheckpoint::new(options(json)).unwrap()
    }

    /// A step and a validation for every loss, an epoch of two steps each; the checkpoints that are there in the end.
    fn kept(json: Value, losses: &[f64]) -> Vec<String> {
        let mut trainer = MockTrainer::new();
        trainer.attach(hook(json)).unwrap();
        for (i, loss) in losses.iter().enumerate() {
            trainer.step(loss * 10.0).unwrap();
            trainer.validate(&[("val/loss", *loss)]).unwrap();
            if i % 2 == 1 {
                trainer.next_epoch().unwrap();
            }
        }
        assert!(trainer.errors().is_empty(), "{:?}", trainer.errors());
        trainer.checkpoints().to_vec()
    }

    #[test]
    fn what_is_kept_follows_the_options() {
        const NAN: f64 = f64::NAN;
        let losses = [3.0, 1.0, 2.0, 1.0, 0.5];
        let table: [(Value, &[f64], &[&str]); 19] = [
            (json!({}), &losses, &["best-00000005"]),
            (json!({"save_top_k": 2}), &losses, &["best-00000004", "best-00000005"]),
            (json!({"save_top_k": -1}), &losses[..2], &["best-00000001", "best-00000002"]),
            (json!({"monitor": "val/loss"}), &losses[..4], &["best-00000002"]),
            (
                json!({"monitor": "val/loss", "save_top_k": 2}),
                &losses[..4],
                &["best-00000002", "best-00000004"],
            ),
            (json!({"monitor": "val/loss", "save_top_k": 2}), &losses, &["best-00000002", "best-00000005"]),
            (json!({"monitor": "val/loss", "mode": "max"}), &losses, &["best-00000001"]),
            // Of equal ones the older stays, whichever way is better.
            (json!({"monitor": "val/loss"}), &[1.0, 1.0, 1.0], &["best-00000001"]),
            (json!({"monitor": "val/loss", "mode": "max"}), &[1.0, 1.0, 1.0], &["best-00000001"]),
            (
                json!({"monitor": "val/loss", "save_top_k": 2}),
                &[2.0, NAN, 2.0, 2.0, 1.0],
                &["best-00000001", "best-00000005"],
            ),
            (json!({"monitor": "loss"}), &losses, &["best-00000005"]),
            (json!({"monitor": "val/loss"}), &[NAN, 2.0, NAN], &["best-00000002"]),
            (json!({"monitor": "val/loss"}), &[NAN, NAN], &[]),
            (json!({"save_top_k": 0, "save_last": true}), &losses, &["last-00000005"]),
            (
                json!({"monitor": "val/loss", "save_last": true}),
                &losses[..3],
                &["best-00000002", "last-00000003"],
            ),
            (json!({"save_on_train_epoch_end": true}), &losses, &["best-00000004"]),
            (json!({"save_every_n_epochs": 2}), &losses, &["best-00000004"]),
            (json!({"save_every_n_steps": 3}), &losses, &["best-00000003"]),
            (
                json!({"save_every_n_steps": 2, "monitor": "val/loss", "mode": "max"}),
                &losses,
                &["best-00000002"],
            ),
        ];
        for (options, losses, want) in table {
            assert_eq!(kept(options.clone(), losses), want, "{options} {losses:?}");
        }
    }

    #[test]
    fn names_come_from_the_template_and_never_meet() {
        let template = "epoch_{epoch}_loss_{val/loss:.2f}";
        let losses = [0.123, 0.5, 0.25];
        let table: [(Value, &[&str]); 3] = [
            (
                json!({"filename": template, "save_top_k": -1, "auto_insert_metric_name": false}),
                &["epoch_0_loss_0.12", "epoch_0_loss_0.50", "epoch_1_loss_0.25"],
            ),
            (
                json!({"filename": template, "save_top_k": 1, "monitor": "val/loss"}),
                &["epoch_epoch=0_loss_val_loss=0.12"],
            ),
            (
                json!({"filename": "{epoch}", "save_top_k": -1, "auto_insert_metric_name": false}),
                &["0", "0-v1", "1"],
            ),
        ];
        for (options, want) in table {
            assert_eq!(kept(options.clone(), &losses), want, "{options}");
        }
        // Newest of one epoch: the old one's name is free again only after it was removed.
        assert_eq!(kept(json!({"filename": "x"}), &[1.0, 1.0]), ["x-v1"]);
        assert_eq!(kept(json!({"filename": "x"}), &[1.0, 1.0, 1.0]), ["x"]);
    }

    #[test]
    fn two_hooks_never_remove_each_others_checkpoints() -> HookResult {
        let mut trainer = MockTrainer::new();
        trainer.attach(hook(json!({"monitor": "val/loss", "filename": "Best"})))?;
        trainer.attach(hook(json!({"monitor": "val/accuracy", "mode": "max", "filename": "best"})))?;
        for (loss, accuracy) in [(1.0, 0.5), (0.9, 0.4), (0.8, 0.3), (0.7, 0.2)] {
            trainer.step(1.0)?;
            trainer.validate(&[("val/loss", loss), ("val/accuracy", accuracy)])?;
            let names: std::collections::BTreeSet<String> =
                trainer.checkpoints().iter().map(|name| name.to_lowercase()).collect();
            assert_eq!(names.len(), 2, "{:?}", trainer.checkpoints());
            assert!(names.contains("best-v1"), "the second hook's only one: {names:?}");
        }
        Ok(())
    }

    #[test]
    fn a_new_best_is_told() -> HookResult {
        let mut trainer = MockTrainer::new();
        let mut hook = hook(json!({"monitor": "val/loss"}));
        let (console, lines) = Console::buffer();
        hook.console = console;
        trainer.attach_with(hook, HookOptions { verbose: true, ..HookOptions::id("keep") })?;
        for loss in [2.0, 1.0, 1.5] {
            trainer.step(9.0)?;
            trainer.validate(&[("val/loss", loss)])?;
        }
        let best = trainer.hooks().board().get::<BestModel>().ok_or("nothing on the board")?;
        let want = BestModel {
            hook_id: "keep".into(),
            metric: "val/loss".into(),
            score: 1.0,
            step: 2,
            name: "best-00000002".into(),
        };
        assert_eq!((&*best, trainer.metric("keep/best_score")), (&want, Some(1.0)));
        let lines = lines.lock().unwrap().clone();
        assert!(
            lines.ends_with("keep: new best `val/loss` 1 at step 2, saved as best-00000002\n"),
            "{lines}"
        );
        Ok(())
    }

    #[test]
    fn a_metric_that_is_not_there_is_an_error_and_the_last_is_still_saved() -> HookResult {
        let mut trainer = MockTrainer::new();
        trainer.attach(hook(json!({"monitor": "val/los", "save_last": true})))?;
        trainer.step(1.0)?;
        trainer.validate(&[("val/loss", 1.0)])?;
        assert!(trainer.errors()[0].to_string().contains("`val/los`; there are `val/loss`"));
        assert_eq!(trainer.checkpoints(), ["last-00000001"]);

        let mut trainer = MockTrainer::new();
        trainer.attach(hook(json!({"filename": "{val/los}"})))?;
        trainer.validate(&[("val/loss", 1.0)])?;
        assert!(trainer.errors()[0].to_string().contains("nearest: `val/loss`"));
        Ok(())
    }

    #[test]
    fn a_validation_is_asked_for_and_one_step_makes_one_candidate() -> HookResult {
        let mut trainer = MockTrainer::new();
        trainer.attach(hook(json!({
            "monitor": "val/loss", "save_every_n_steps": 1, "save_every_n_epochs": 1, "save_top_k": -1, "save_last": true,
        })))?;
        trainer.step(1.0)?;
        assert_eq!(trainer.requests(), [Request::Validate]);
        trainer.validate(&[("val/loss", 1.0)])?;
        trainer.validate(&[("val/loss", 1.0)])?;
        trainer.fire(Event::EpochEnd(0))?;
        assert_eq!(trainer.checkpoints(), ["last-00000001", "best-00000001"]);
        trainer.step(1.0)?;
        trainer.step(1.0)?;
        assert!(trainer.errors()[0].to_string().contains("none came"));
        Ok(())
    }

    #[test]
    fn senseless_options_are_all_named() {
        let error = ModelCheckpoint::new(options(json!({
            "save_top_k": 0, "save_every_n_epochs": 0, "save_every_n_steps": 0, "filename": "{",
        })));
        let Some(AttachError::BadOptions { problems, .. }) = error.err() else { panic!("accepted") };
        assert_eq!(problems.len(), 4);
        assert!(ModelCheckpoint::new(options(json!({"save_top_k": -2}))).is_err());
    }

    proptest! {
        #[test]
        fn p05_decisions_survive_a_restart(
            acts in acts(), cut in 0..40usize, top in -1..4i64, last: bool, epochs: bool,
            steps in prop::option::of(1..4u64), monitor in prop::option::of(prop::sample::select(vec!["loss", "val/loss"])),
        ) {
            let options = json!({
                "save_top_k": top, "save_last": last || top == 0, "monitor": monitor, "save_every_n_steps": steps,
                "save_on_train_epoch_end": epochs, "filename": "{epoch}-{loss:.1f}", "save_every_n_epochs": 2,
            });
            assert_resumes(|| Box::new(hook(options.clone())), &acts, cut);
        }

        /// Against the plain definition: sort all by score, then by age, take k.
        #[test]
        fn the_best_k_are_kept(scores in prop::collection::vec(prop::sample::select(vec![1.0, 2.0, 3.0, f64::NAN]), 0..20), k in 1..5usize) {
            let names = kept(json!({"monitor": "val/loss", "save_top_k": k}), &scores);
            let mut want: Vec<(usize, f64)> = scores.iter().copied().enumerate().filter(|(_, score)| !score.is_nan()).collect();
            want.sort_by(|a, b| a.1.total_cmp(&b.1));
            let mut want: Vec<String> = want.iter().take(k).map(|(i, _)| format!("best-{:08}", i + 1)).collect();
            want.sort();
            prop_assert_eq!(names, want);
        }
    }
}
