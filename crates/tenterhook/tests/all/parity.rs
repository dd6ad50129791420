//! Training computes what PyTorch computes.

use std::path::Path;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};
use tenterhook::hooks::{BatchInfo, ClipInfo, Cx, Hook, HookResult, IGNORED};
use tenterhook::models::ModelDescription;
use tenterhook::train::data::{InMemory, Loader};
use tenterhook::train::optim::{Clip, Optimizer, OptimizerConfig};
use tenterhook::train::schedule::ScheduleConfig;
use tenterhook::train::{Settings, TrainModel, Trainer};
use tenterhook::training::LanguageTask;

use crate::small::one;
use crate::support::model;

/// A run of `scripts/reference_training.py`.
fn reference(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/training_{name}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn numbers(values: &Value) -> Vec<f64> {
    values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

fn gpt2() -> Arc<LanguageTask> {
    let described = json!({ "from": model("gpt2"), "dropout": 0.0 });
    let described: ModelDescription = serde_json::from_value(described).unwrap();
    let model = described.build(Path::new(""), 0, &Device::Cpu).unwrap();
    Arc::new(LanguageTask::new(model).unwrap())
}

/// The batches of the script, one after the other, so that the natural order gives one per step. A target is the token that follows.
fn batches(run: &Value, vocab: u64) -> InMemory {
    let size = |key: &str| run[key].as_u64().unwrap() as usize;
    let (steps, batch, tokens) = (size("steps"), size("batch"), size("tokens"));
    let id = |step: u64, i: u64| (7 * i * i + 13 * i + 31 * step) % vocab;
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for step in 0..steps as u64 {
        for i in 0..(batch * tokens) as u64 {
            let last = (i + 1) % tokens as u64 == 0;
            inputs.push(id(step, i) as u32);
            targets.push(if last { IGNORED } else { id(step, i + 1) as i64 });
        }
    }
    let shape = (steps * batch, tokens);
    let inputs = Tensor::from_vec(inputs, shape, &Device::Cpu).unwrap();
    let targets = Tensor::from_vec(targets, shape, &Device::Cpu).unwrap();
    InMemory::new(vec![("inputs".to_string(), inputs), ("targets".to_string(), targets)]).unwrap()
}

/// What a run did, step by step.
#[derive(Clone, Debug, Default, PartialEq)]
struct Curve {
    lr: Vec<f64>,
    loss: Vec<f64>,
    norm: Vec<f64>,
}

struct Recorder(Arc<Mutex<Curve>>);

impl Hook for Recorder {
    fn kind(&self) -> &str {
        "recorder"
    }

    fn on_gradient_clip(&mut self, clip: ClipInfo, _cx: &mut Cx) -> HookResult {
        self.0.lock().unwrap().norm.push(clip.before);
        Ok(())
    }

    fn on_before_optimizer_step(&mut self, _optimizer_idx: usize, cx: &mut Cx) -> HookResult {
        self.0.lock().unwrap().lr.extend(cx.state().and_then(|state| state.lr()));
        Ok(())
    }

    fn on_train_batch_end(&mut self, batch: &BatchInfo, _cx: &mut Cx) -> HookResult {
        self.0.lock().unwrap().loss.push(batch.metrics["loss"]);
        Ok(())
    }
}

/// Trains as the script does, with each batch cut into so many.
fn train(run: &Value, micro_batches: u64) -> (Curve, Arc<LanguageTask>) {
    let task = gpt2();
    let batch = run["batch"].as_u64().unwrap() / micro_batches;
    let set = batches(run, task.model().vocab() as u64);
    let data = one(Loader::new("train", Arc::new(set), batch as usize));
    let optimizer: OptimizerConfig = serde_json::from_value(run["optimizer"].clone()).unwrap();
    let optimizers = Optimizer::build(&[optimizer], task.params(), false).unwrap();
    let settings = Settings {
        clip: Clip::Norm(run["clip_norm"].as_f64().unwrap()),
        grad_accumulation: micro_batches,
        ..Settings::steps(run["steps"].as_u64().unwrap())
    };
    let schedule: ScheduleConfig = serde_json::from_value(run["schedule"].clone()).unwrap();
    let trainer = Trainer::new(task.clone(), data, optimizers, settings).unwrap();
    let mut trainer = trainer.with_schedule(&schedule).unwrap();
    let curve = Arc::new(Mutex::new(Curve::default()));
    trainer.add_hook(Recorder(curve.clone())).unwrap();
    let finished = trainer.train().unwrap();
    assert!(!finished.degraded, "{:?}", trainer.errors());
    let mut curve = std::mem::take(&mut *curve.lock().unwrap());
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    curve.loss = curve.loss.chunks(micro_batches as usize).map(mean).collect();
    (curve, task)
}

fn assert_close(what: &str, ours: &[f64], theirs: &[f64], relative: f64, absolute: f64) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        let allowed = absolute + relative * b.abs();
        assert!((a - b).abs() <= allowed, "{what}, number {i}: {a}, and PyTorch has {b}");
    }
}

/// The numbers of a weight that the script wrote down; those without a meaning are null.
fn assert_weight(name: &str, ours: &Tensor, theirs: &Value) {
    let ours: Vec<f64> = ours.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap();
    let skipped = theirs["undetermined"].as_array();
    let skipped =
        skipped.map_or(0..0, |ends| ends[0].as_u64().unwrap() as usize..ends[1].as_u64().unwrap() as usize);
    let known: Vec<f64> =
        ours.iter().enumerate().filter(|(i, _)| !skipped.contains(i)).map(|(_, value)| *value).collect();
    let norm = known.iter().map(|value| value * value).sum::<f64>().sqrt();
    assert_close(&format!("norm of {name}"), &[norm], &[theirs["norm"].as_f64().unwrap()], 1e-3, 0.0);
    // Rounding of single elements adds up in the sum.
    let sum: f64 = known.iter().sum();
    let allowed = 1e-3 * known.len() as f64;
    assert_close(&format!("sum of {name}"), &[sum], &[theirs["sum"].as_f64().unwrap()], 0.0, allowed);
    let at = |k: usize, of: usize| ours[k * (ours.len() - 1) / (of - 1)];
    for key in ["samples", "values"] {
        let Some(listed) = theirs[key].as_array() else { continue };
        for (k, value) in listed.iter().enumerate() {
            let Some(value) = value.as_f64() else { continue };
            let own = if key == "values" { ours[k] } else { at(k, listed.len()) };
            assert_close(&format!("{key} of {name}, element {k}"), &[own], &[value], 0.0, 1e-3);
        }
    }
}

fn assert_parity(name: &str) {
    let run = reference(name);
    let (curve, task) = train(&run, 1);
    assert_close("learning rate", &curve.lr, &numbers(&run["lr"]), 1e-12, 0.0);
    assert_close("loss", &curve.loss, &numbers(&run["loss"]), 1e-4, 0.0);
    assert_close("gradient norm", &curve.norm, &numbers(&run["grad_norm"]), 1e-4, 0.0);
    let weights = run["weights"].as_object().unwrap();
    assert_eq!(weights.len(), task.params().len());
    for (name, theirs) in weights {
        assert_weight(name, task.params().get(name).unwrap().value(), theirs);
    }
}

#[test]
fn fifty_steps_of_adamw_are_those_of_pytorch() {
    assert_parity("adamw");
}

#[test]
fn fifty_steps_of_sgd_are_those_of_pytorch() {
    assert_parity("sgd");
}

#[test]
fn two_halves_of_a_batch_train_like_the_whole() {
    let run = reference("sgd");
    let ((whole, _), (halves, _)) = (train(&run, 1), train(&run, 2));
    assert_close("loss", &halves.loss, &whole.loss, 1e-5, 0.0);
    assert_close("gradient norm", &halves.norm, &whole.norm, 1e-4, 0.0);
    assert_eq!(halves.lr, whole.lr);
}
