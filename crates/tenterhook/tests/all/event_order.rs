//! Every event of a run, in the order in which it is promised.

use tenterhook::hooks::{BatchInfo, Cx, Hook, HookResult, hook_fn};
use tenterhook::train::config::ValidateEvery;
use tenterhook::train::data::{Loader, Mixture, Strategy};
use tenterhook::train::optim::{Clip, Kind, Optimizer, OptimizerConfig, Patterns};
use tenterhook::train::{Settings, TrainModel, Trainer};

use crate::recorder::Recorder;
use crate::small::{Chain, Notes, attach, examples, record_in, trainer_of};

/// Accumulation, clipping, two optimizers, two loaders, two sets to validate on, checkpoints and a second epoch.
fn trainer_with_everything() -> Trainer {
    let model = Chain::new(2);
    let loaders = vec![Loader::new("long", examples(4), 2), Loader::new("short", examples(2), 2)];
    let data = Mixture::new(loaders, Strategy::RoundRobin, 0).unwrap();
    let optimizer = |params: &str| OptimizerConfig {
        params: Patterns::new([params]),
        ..OptimizerConfig::new(Kind::AdamW, 1e-2)
    };
    let optimizers = [optimizer("layers.0.*"), optimizer("*")];
    let optimizers = Optimizer::build(&optimizers, model.params(), false).unwrap();
    let mut settings = Settings {
        grad_accumulation: 2,
        clip: Clip::Norm(0.1),
        validate_every: Some(ValidateEvery::Epoch),
        checkpoint_every: Some(3),
        ..Settings::steps(0)
    };
    settings.set_epochs(2, &data);
    let sets = vec![Loader::new("near", examples(2), 2), Loader::new("far", examples(2), 2)];
    Trainer::new(model, data, optimizers, settings).unwrap().with_validation(sets)
}

/// An epoch has three batches: two make the first step, the one that is left the second.
const EXPECTED: &str = "
on_train_start
on_checkpoint_save step-00000000
  on_epoch_start 0
    on_train_batch_start long 0
      value at layers.1.hook_out
      on_after_forward long 0
      on_before_backward
      gradient at layers.1.hook_out
      on_after_backward
    on_train_batch_end long 0
    on_train_batch_start short 1
      value at layers.1.hook_out
      on_after_forward short 1
      on_before_backward
      gradient at layers.1.hook_out
      on_after_backward
      update
      on_gradient_clip
      on_before_optimizer_step 0
      on_before_optimizer_step 1
      on_after_optimizer_step 0
      on_after_optimizer_step 1
    on_train_batch_end short 1
    on_metrics 1
    on_train_batch_start long 2
      value at layers.1.hook_out
      on_after_forward long 2
      on_before_backward
      gradient at layers.1.hook_out
      on_after_backward
      update
      on_gradient_clip
      on_before_optimizer_step 0
      on_before_optimizer_step 1
      on_after_optimizer_step 0
      on_after_optimizer_step 1
    on_train_batch_end long 2
    on_metrics 2
    on_validation_start 0
      on_validation_batch_start near 0
      value at layers.1.hook_out
      on_validation_batch_end near 0
      on_validation_batch_start far 0
      value at layers.1.hook_out
      on_validation_batch_end far 0
    on_validation_end
    on_metrics 2
  on_epoch_end 0
  on_epoch_start 1
    on_train_batch_start long 0
      value at layers.1.hook_out
      on_after_forward long 0
      on_before_backward
      gradient at layers.1.hook_out
      on_after_backward
    on_train_batch_end long 0
    on_train_batch_start short 1
      value at layers.1.hook_out
      on_after_forward short 1
      on_before_backward
      gradient at layers.1.hook_out
      on_after_backward
      update
      on_gradient_clip
      on_before_optimizer_step 0
      on_before_optimizer_step 1
      on_after_optimizer_step 0
      on_after_optimizer_step 1
    on_train_batch_end short 1
    on_metrics 3
    on_checkpoint_save step-00000003
    on_train_batch_start long 2
      value at layers.1.hook_out
      on_after_forward long 2
      on_before_backward
      gradient at layers.1.hook_out
      on_after_backward
      update
      on_gradient_clip
      on_before_optimizer_step 0
      on_before_optimizer_step 1
      on_after_optimizer_step 0
      on_after_optimizer_step 1
    on_train_batch_end long 2
    on_metrics 4
    on_validation_start 1
      on_validation_batch_start near 0
      value at layers.1.hook_out
      on_validation_batch_end near 0
      on_validation_batch_start far 0
      value at layers.1.hook_out
      on_validation_batch_end far 0
    on_validation_end
    on_metrics 4
  on_epoch_end 1
on_checkpoint_save step-00000004
on_train_end completed
";

#[test]
fn a_run_fires_every_event_in_order() {
    let (dir, notes) = (tempfile::tempdir().unwrap(), Notes::default());
    let mut trainer = trainer_with_everything().with_run(record_in(dir.path()));
    attach(&mut trainer, Recorder::new(&notes).at("layers.1.hook_out"));
    trainer.train().unwrap();
    let expected: Vec<&str> = EXPECTED.trim().lines().map(str::trim).collect();
    assert_eq!(notes.take(), expected);
}

/// The events of one step, without the names of loaders.
fn of_step(notes: Vec<String>) -> Vec<String> {
    let start = notes.iter().position(|line| line.starts_with("on_train_batch_start")).unwrap();
    let end = notes.iter().position(|line| line.starts_with("on_metrics")).unwrap();
    notes[start..=end].iter().map(|line| line.replace(" training_step ", " train ")).collect()
}

#[test]
fn a_step_alone_fires_the_same_events() {
    let settings = Settings { clip: Clip::Value(0.01), ..Settings::steps(1) };
    let notes = Notes::default();
    let fresh = || {
        let mut trainer = trainer_of(&Chain::new(2), settings.clone());
        attach(&mut trainer, Recorder::new(&notes).at("layers.0"));
        trainer
    };
    fresh().train().unwrap();
    let in_a_run = of_step(notes.take());
    assert_eq!(in_a_run.len(), 12, "{in_a_run:?}");

    let mut alone = fresh();
    let batch = || examples(2).batch(&[0, 1], &candle_core::Device::Cpu).unwrap();
    let outcome = alone.training_step(batch()).unwrap();
    assert_eq!(notes.take().len(), 12, "a step and nothing else");
    assert!(outcome.loss.is_finite() && outcome.grad_norm.is_some());
    alone.training_step(batch()).unwrap();
    let second = of_step(notes.take());
    assert_eq!((alone.step(), second[0].as_str()), (2, "on_train_batch_start train 1"));

    let mut once = fresh();
    once.training_step(batch()).unwrap();
    assert_eq!(of_step(notes.take()), in_a_run);
}

/// Writes down what the events of batches carry.
struct Payload(Notes);

impl Payload {
    fn note(&self, event: &str, batch: &BatchInfo) -> HookResult {
        let shape = batch.batch.get("inputs")?.dims().to_vec();
        let mut names: Vec<&str> = batch.metrics.keys().map(String::as_str).collect();
        names.retain(|name| *name != "val/loss");
        self.0.add(format!(
            "{event}: {} {} {} {:?} {shape:?} {names:?} {}",
            batch.dataloader_idx,
            batch.dataloader_name,
            batch.batch_idx,
            batch.batch.examples(),
            batch.completes_step
        ));
        Ok(())
    }
}

impl Hook for Payload {
    fn kind(&self) -> &str {
        "payload"
    }

    fn on_train_batch_start(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        cx.log("mine", 1.0);
        self.note("start", batch)
    }

    fn on_after_forward(&mut self, batch: &BatchInfo, _cx: &mut Cx) -> HookResult {
        self.note("forward", batch)
    }

    fn on_train_batch_end(&mut self, batch: &BatchInfo, _cx: &mut Cx) -> HookResult {
        self.note("end", batch)
    }

    fn on_validation_batch_end(&mut self, batch: &BatchInfo, _cx: &mut Cx) -> HookResult {
        self.note("validated", batch)
    }
}

#[test]
fn batch_events_carry_the_batch_where_it_is_from_and_the_metrics() {
    let notes = Notes::default();
    let mut trainer = trainer_with_everything();
    attach(&mut trainer, Payload(notes.clone()));
    trainer.train().unwrap();
    let heard = notes.take();
    let first = [
        "start: 0 long 0 [0, 1] [2, 3] [] false",
        "forward: 0 long 0 [0, 1] [2, 3] [\"mine\"] false",
        "end: 0 long 0 [0, 1] [2, 3] [\"loss\", \"mine\"] false",
        "start: 1 short 1 [0, 1] [2, 3] [] true",
        "forward: 1 short 1 [0, 1] [2, 3] [\"loss\", \"mine\"] true",
        "end: 1 short 1 [0, 1] [2, 3] [\"loss\", \"mine\"] true",
        "start: 0 long 2 [2, 3] [2, 3] [] true",
    ];
    assert_eq!(heard[..7], first);
    let validated: Vec<&String> = heard.iter().filter(|line| line.starts_with("validated")).collect();
    assert_eq!(
        validated[..2],
        [
            "validated: 0 near 0 [0, 1] [2, 3] [\"loss\"] false",
            "validated: 1 far 0 [0, 1] [2, 3] [\"loss\"] false"
        ]
    );
}

/// What an observer published is there when the forward is over, and there is no loss yet.
#[test]
fn forward_hooks_have_fired_before_there_is_a_loss() {
    struct Witness(Notes);
    impl Hook for Witness {
        fn kind(&self) -> &str {
            "witness"
        }
        fn on_after_forward(&mut self, _batch: &BatchInfo, cx: &mut Cx) -> HookResult {
            self.0.add(format!("{:?} {:?}", cx.metric("seen"), cx.metric("loss")));
            Ok(())
        }
    }
    let mut trainer = trainer_of(&Chain::new(2), Settings::steps(3));
    attach(
        &mut trainer,
        hook_fn::observe("layers.1.hook_out", |_, _, cx| {
            cx.log("seen", cx.clock().step as f64);
            Ok(())
        }),
    );
    let seen = Notes::default();
    attach(&mut trainer, Witness(seen.clone()));
    trainer.train().unwrap();
    assert_eq!(seen.take(), ["Some(0.0) None", "Some(1.0) None", "Some(2.0) None"]);
}
