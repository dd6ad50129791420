//! NaN and infinity never reach a weight, and who brought them in is named.

use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use tenterhook::hooks::{At, Cx, Hook, HookOptions, HookResult, NamedGrads, Want, hook_fn};
use tenterhook::record::metrics;
use tenterhook::record::run::RunDir;
use tenterhook::train::config::OnNonFinite;
use tenterhook::train::data::{InMemory, Loader};
use tenterhook::train::{Run, RunFacts, Settings, TrainError, TrainModel, Trainer};
use tenterhook::training::LanguageTask;

use crate::small::{Bits, Chain, adamw, attach, bits, one, record_in, sgd, tiny_gpt, tokens, trainer_of};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;
/// The step at which things go wrong; steps count from 0.
const BAD: u64 = 2;

fn gpt_trainer(task: &Arc<LanguageTask>, settings: Settings) -> Trainer {
    let data = one(Loader::new("train", tokens(12), 2));
    Trainer::new(task.clone(), data, adamw(&**task, 3e-3), settings).unwrap()
}

/// The same tensor with another first element.
fn with_first(x: &Tensor, value: f64) -> candle_core::Result<Tensor> {
    let rest = x.flatten_all()?;
    let first = Tensor::full(value, 1, x.device())?.to_dtype(x.dtype())?;
    Tensor::cat(&[&first, &rest.narrow(0, 1, rest.elem_count() - 1)?], 0)?.reshape(x.shape())
}

/// Puts a value into one element of a point, or of its gradient, in the bad steps.
struct Poison {
    want: Want,
    value: f64,
    last: u64,
}

impl Hook for Poison {
    fn kind(&self) -> &str {
        "poison"
    }

    fn wants(&self) -> Vec<Want> {
        vec![self.want.clone()]
    }

    fn edit(&mut self, _at: &At, x: &Tensor, cx: &mut Cx) -> HookResult<Option<Tensor>> {
        let bad = (BAD..=self.last).contains(&cx.clock().step);
        Ok(if bad { Some(with_first(x, self.value)?) } else { None })
    }
}

fn poison(trainer: &mut Trainer, want: Want, value: f64, last: u64) {
    let options = HookOptions { allow_non_finite: true, ..HookOptions::default() };
    trainer.add_hook_with(Poison { want, value, last }, options).unwrap();
}

/// The weights after this many good steps.
fn good_weights(steps: u64) -> Bits {
    let task = tiny_gpt();
    gpt_trainer(&task, Settings::steps(steps)).train().unwrap();
    bits(&*task)
}

/// Every point where there is something to poison.
fn points() -> Vec<String> {
    let task = tiny_gpt();
    let usual =
        task.points().iter().filter(|(_, point)| point.writable && point.differentiable && !point.on_demand);
    let names: Vec<String> = usual.map(|(_, point)| point.name.clone()).collect();
    assert!(names.len() > 40, "{names:?}");
    names
}

fn non_finite(error: &TrainError) -> String {
    assert!(matches!(error, TrainError::NonFinite(_)), "{error}");
    error.to_string()
}

/// Trains with a bad value, or gradient, at one point. What the run said, or nothing when no harm came of it; the weights are the last good
/// ones either way, those of a run that ended just before, with the same hook on.
fn poisoned(want: &Want, value: f64) -> Option<String> {
    let run = |steps: u64| {
        let task = tiny_gpt();
        let mut trainer = gpt_trainer(&task, Settings::steps(steps));
        poison(&mut trainer, want.clone(), value, BAD);
        (trainer.train(), bits(&*task))
    };
    let (result, weights) = run(BAD + 1);
    let Err(error) = result else {
        assert!(
            weights.0.values().flatten().all(|bits| f32::from_bits(*bits).is_finite()),
            "{want:?} {value}"
        );
        return None;
    };
    assert_eq!(weights, run(BAD).1, "{want:?} {value}");
    Some(non_finite(&error))
}

#[test]
fn p13_a_bad_value_at_any_point_stops_the_run_before_the_weights_change() {
    let mut swallowed = Vec::new();
    for point in &points() {
        for value in [NAN, INF] {
            let Some(error) = poisoned(&Want::edit(point.as_str()), value) else {
                swallowed.push(format!("{point} {value}"));
                continue;
            };
            let named = format!("point `{point}` (1 of ");
            for part in ["step 2:", "batch 2 of `train` (examples 4, 5)", &named, "which a hook has changed"]
            {
                assert!(error.contains(part), "{value} at {point}: {part} in {error}");
            }
        }
    }
    // Divided by infinity, a value is 0: nothing that is not finite comes of it.
    assert!(swallowed.iter().all(|at| at.contains("hook_scale inf")), "{swallowed:?}");
}

#[test]
fn p13_a_bad_gradient_at_any_point_stops_the_run_before_the_weights_change() {
    for (i, point) in points().iter().enumerate() {
        let value = if i % 2 == 0 { NAN } else { INF };
        let error = poisoned(&Want::edit_gradient(point.as_str()), value).unwrap_or_default();
        let named = format!("the gradient at point `{point}` (");
        for part in ["step 2:", "the gradient of `transformer.", "batch 2 of `train` (examples 4, 5)", &named]
        {
            assert!(error.contains(part), "{value} at {point}: {part} in {error}");
        }
    }
}

/// An update hook, or a request for a learning rate.
struct Spoiler {
    /// What becomes of the first gradient.
    gradient: Option<f64>,
    lr: Option<f64>,
}

impl Hook for Spoiler {
    fn kind(&self) -> &str {
        "spoiler"
    }

    fn update(&mut self, grads: &mut NamedGrads, cx: &mut Cx) -> HookResult {
        if let (Some(value), BAD) = (self.gradient, cx.clock().step) {
            let grad = grads.get("layers.1.weight").ok_or("it was there")?;
            grads.set("layers.1.weight", with_first(grad, value)?)?;
        }
        Ok(())
    }

    fn on_before_optimizer_step(&mut self, _optimizer_idx: usize, cx: &mut Cx) -> HookResult {
        if let (Some(lr), BAD) = (self.lr, cx.clock().step) {
            cx.set_lr(lr);
        }
        Ok(())
    }
}

#[test]
fn p13_update_hooks_and_learning_rates_cannot_spoil_the_weights() {
    let model = Chain::new(2);
    trainer_of(&model, Settings::steps(BAD)).train().unwrap();
    let good = bits(&*model);
    for (gradient, lr, parts) in [
        (Some(NAN), None, vec!["`layers.1.weight` has 1 NaN", "it was finite before an update hook"]),
        (Some(INF), None, vec!["`layers.1.weight` has 1 NaN", "first inf at element 0"]),
        (None, Some(INF), vec!["learning rate of `sgd.0`", "is inf"]),
        (None, Some(NAN), vec!["learning rate of `sgd.0`", "is NaN"]),
        (None, Some(1e300), vec!["the step would make the weight of `layers.", "lower the learning rate"]),
    ] {
        let model = Chain::new(2);
        let mut trainer = trainer_of(&model, Settings::steps(4));
        let options = HookOptions { allow_non_finite: true, ..HookOptions::default() };
        trainer.add_hook_with(Spoiler { gradient, lr }, options).unwrap();
        let error = non_finite(&trainer.train().unwrap_err());
        for part in parts.into_iter().chain(["step 2:", "batch 2 of `train` (examples 4, 5)"]) {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert_eq!(bits(&*model), good, "{gradient:?} {lr:?}");
    }
}

/// The step itself gives numbers, if absurd ones; what they lead to is caught.
#[test]
fn p13_after_an_absurd_learning_rate_the_next_step_is_not_taken() {
    let model = Chain::new(2);
    let mut one_more = trainer_of(&model, Settings::steps(BAD + 1));
    attach(&mut one_more, Spoiler { gradient: None, lr: Some(1e30) });
    one_more.train().unwrap();
    let absurd = bits(&*model);

    let model = Chain::new(2);
    let mut trainer = trainer_of(&model, Settings::steps(6));
    attach(&mut trainer, Spoiler { gradient: None, lr: Some(1e30) });
    let error = non_finite(&trainer.train().unwrap_err());
    assert!(error.contains("step 3:") && error.contains("batch 3 of `train`"), "{error}");
    assert_eq!(bits(&*model), absurd);
}

/// Examples of a [`Chain`], the sixth of which is bad.
fn bad_data(name: &str, value: f32) -> Arc<InMemory> {
    let tensor = |bad: bool| {
        let mut values = vec![0.25f32; 8 * 3];
        if bad {
            values[5 * 3 + 1] = value;
        }
        Tensor::from_vec(values, (8, 3), &Device::Cpu).unwrap()
    };
    let named = ["inputs", "targets"].map(|key| (key.to_string(), tensor(key == name)));
    Arc::new(InMemory::new(named.to_vec()).unwrap())
}

#[test]
fn p13_bad_data_is_named_with_its_batch() {
    for (name, value, parts) in [
        ("inputs", f32::NAN, vec!["the loss is NaN", "point `layers.0.hook_in` (1 of 6 values)"]),
        ("inputs", f32::INFINITY, vec!["point `layers.0.hook_in` (1 of 6 values)"]),
        ("targets", f32::NAN, vec!["the loss is NaN", "look at the targets"]),
        ("targets", f32::INFINITY, vec!["the loss is inf", "look at the targets"]),
        ("targets", 1e30, vec!["the loss is inf", "look at the targets"]),
    ] {
        let model = Chain::new(2);
        let loader = Loader::new("train", bad_data(name, value), 2);
        let mut trainer =
            Trainer::new(model.clone(), one(loader), sgd(&*model, 0.1), Settings::steps(4)).unwrap();
        let error = non_finite(&trainer.train().unwrap_err());
        for part in parts.into_iter().chain(["step 2:", "batch 2 of `train` (examples 4, 5)"]) {
            assert!(error.contains(part), "{name} {value}: {part} in {error}");
        }
        assert_eq!(trainer.step(), 2);
    }
}

#[test]
fn p13_a_skipped_step_leaves_the_weights_and_training_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (task, good) = (tiny_gpt(), good_weights(BAD));
    let settings = Settings { on_non_finite: OnNonFinite::Skip, ..Settings::steps(BAD + 1) };
    let mut trainer = gpt_trainer(&task, settings.clone()).with_run(record_in(dir.path()));
    poison(&mut trainer, Want::edit("blocks.1.hook_resid_pre"), NAN, BAD);
    let finished = trainer.train().unwrap();
    assert_eq!((finished.steps, finished.degraded), (BAD + 1, false));
    assert_eq!(bits(&*task), good, "the last step was not taken");
    let rows = metrics::read(&dir.path().join("run/metrics.jsonl")).unwrap();
    let last = rows.last().unwrap();
    assert!(last.step == BAD + 1 && last.values["loss"].is_nan(), "{last:?}");
    assert_eq!(last.values["skipped_steps"], 1.0);
    assert!(last.values["train/loss"].is_finite(), "the mean is of the steps that were taken");

    let task = tiny_gpt();
    let mut on = gpt_trainer(&task, Settings { total_steps: 6, ..settings });
    poison(&mut on, Want::edit("blocks.1.hook_resid_pre"), NAN, BAD);
    on.train().unwrap();
    assert!(bits(&*task) != good, "it went on");
}

#[test]
fn p13_too_many_skipped_steps_end_the_run() {
    for accumulation in [1, 2] {
        let clean = tiny_gpt();
        let settings = Settings { grad_accumulation: accumulation, ..Settings::steps(BAD) };
        gpt_trainer(&clean, settings).train().unwrap();

        let task = tiny_gpt();
        let settings = Settings {
            on_non_finite: OnNonFinite::Skip,
            max_skipped: 3,
            grad_accumulation: accumulation,
            ..Settings::steps(20)
        };
        let mut trainer = gpt_trainer(&task, settings);
        poison(&mut trainer, Want::edit_gradient("blocks.1.hook_resid_pre"), INF, 100);
        let error = non_finite(&trainer.train().unwrap_err());
        assert!(
            error.contains("3 steps in a row were skipped") && error.contains("blocks.1.hook_resid_pre"),
            "{error}"
        );
        assert_eq!(bits(&*task), bits(&*clean));
    }
}

/// A run that was stopped goes on from its last good step, as if nothing had been.
fn resumed(dir: &Path, steps: u64) -> Bits {
    let run = RunDir::open(&dir.join("run")).unwrap();
    let found = tenterhook::record::checkpoints::newest_good(&run.checkpoints()).unwrap();
    let (checkpoint, _) = found.checkpoint.unwrap();
    assert_eq!(checkpoint.step, Some(BAD), "that of the last good step");
    let task = tiny_gpt();
    let lock = run.lock().unwrap();
    let run = Run::resume(run, lock, &RunFacts::default()).unwrap();
    let mut trainer = gpt_trainer(&task, Settings::steps(steps)).with_run(run);
    trainer.restore(&checkpoint.path).unwrap();
    trainer.train().unwrap();
    bits(&*task)
}

#[test]
fn p13_the_value_is_in_the_log_and_the_run_can_go_on() {
    for (want, key) in [
        (Want::edit("blocks.0.hook_mlp_out"), "loss"),
        (Want::edit_gradient("blocks.0.hook_mlp_out"), "grad_norm"),
    ] {
        for value in [NAN, INF] {
            let (dir, task) = (tempfile::tempdir().unwrap(), tiny_gpt());
            let mut trainer = gpt_trainer(&task, Settings::steps(6)).with_run(record_in(dir.path()));
            poison(&mut trainer, want.clone(), value, BAD);
            trainer.add_hook(hook_fn::observe("blocks.0.hook_mlp_out", |_, _, _| Ok(()))).unwrap();
            trainer.train().unwrap_err();
            drop(trainer);
            let log = dir.path().join("run/metrics.jsonl");
            let rows = metrics::read(&log).unwrap();
            assert_eq!(rows.iter().map(|row| row.step).collect::<Vec<_>>(), [1, 2, 3]);
            let found = rows[2].values[key];
            assert!(!found.is_finite(), "{key}: {found}");
            assert_eq!(resumed(dir.path(), 6), good_weights(6), "{want:?}");
            let rows = metrics::read(&log).unwrap();
            assert_eq!(rows.iter().map(|row| row.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
            assert!(rows.iter().all(|row| row.values[key].is_finite()), "the bad row is gone");
        }
    }
}
