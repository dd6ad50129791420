//! Training in this process: small models, data for them, and trainers.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor};
use serde_json::json;
use tenterhook::hooks::{Batch, Hook, Pass, PointTable};
use tenterhook::models::ModelDescription;
use tenterhook::nn::layers::{Input, Linear, LinearSpec};
use tenterhook::nn::ops::WeightLayout;
use tenterhook::nn::{Params, RandomWeights, Scope};
use tenterhook::record::run::RunDir;
use tenterhook::train::data::{Dataset, InMemory, Loader, Mixture, Strategy};
use tenterhook::train::optim::{Kind, Optimizer, OptimizerConfig};
use tenterhook::train::{Run, RunFacts, Settings, TrainModel, Trainer};
use tenterhook::training::LanguageTask;

/// How the way back is cut off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cut {
    Detach,
    NoBackward,
}

/// A model as a user may have it: dense layers `layers.0`, `layers.1`, ... with tanh between them, and the squared error.
pub(crate) struct Chain {
    points: Arc<PointTable>,
    params: Params,
    layers: Vec<Linear>,
    /// After which layer no gradient comes back, and why.
    cut: Option<(usize, Cut)>,
}

const WIDTH: usize = 3;

impl Chain {
    pub(crate) fn new(layers: usize) -> Arc<Self> {
        Arc::new(Self::build(layers, None))
    }

    pub(crate) fn severed(layers: usize, after: usize, cut: Cut) -> Arc<Self> {
        Arc::new(Self::build(layers, Some((after, cut))))
    }

    fn build(layers: usize, cut: Option<(usize, Cut)>) -> Self {
        let scope = Scope::new(RandomWeights { seed: 7 }, DType::F32, &Device::Cpu);
        let spec =
            LinearSpec { inputs: WIDTH, outputs: WIDTH, bias: true, layout: WeightLayout::OutIn, std: 0.5 };
        let layer =
            |i: usize| Linear::new(&scope.pp("layers").pp(i).in_block(i), spec, Input::New, None).unwrap();
        let layers = (0..layers).map(layer).collect();
        let (points, params) = scope.finish();
        Self { points, params, layers, cut }
    }
}

/// The value itself, by an operation that nobody gave a backward.
struct Lost;

impl CustomOp1 for Lost {
    fn name(&self) -> &'static str {
        "lost"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        assert!(layout.is_contiguous());
        Ok((storage.clone(), layout.shape().clone()))
    }
}

impl TrainModel for Chain {
    fn points(&self) -> &Arc<PointTable> {
        &self.points
    }

    fn params(&self) -> &Params {
        &self.params
    }

    fn forward(&self, batch: &Batch, pass: &Pass) -> Result<Tensor> {
        pass.enter(&self.points)?;
        let mut x = batch.get("inputs")?.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x, pass)?;
            x = match self.cut {
                Some((after, Cut::Detach)) if after == i => x.detach(),
                Some((after, Cut::NoBackward)) if after == i => x.apply_op1_no_bwd(&Lost)?,
                _ => x,
            };
            if i + 1 < self.layers.len() {
                x = x.tanh()?;
            }
        }
        Ok(x)
    }

    fn loss(&self, output: &Tensor, batch: &Batch) -> Result<Tensor> {
        (output - batch.get("targets")?)?.sqr()?.mean_all()
    }
}

/// Examples for a [`Chain`].
pub(crate) fn examples(count: usize) -> Arc<dyn Dataset> {
    let value = |i: usize| ((i * i * 7 + i * 3) % 11) as f32 / 11.0 - 0.4;
    let inputs: Vec<f32> = (0..count * WIDTH).map(value).collect();
    let targets: Vec<f32> = (0..count * WIDTH).map(|i| value(i + 5)).collect();
    let tensor = |values| Tensor::from_vec(values, (count, WIDTH), &Device::Cpu).unwrap();
    let named = vec![("inputs".to_string(), tensor(inputs)), ("targets".to_string(), tensor(targets))];
    Arc::new(InMemory::new(named).unwrap())
}

/// One loader `train` of so many examples in natural order.
pub(crate) fn data(count: usize, batch: usize) -> Mixture {
    one(Loader::new("train", examples(count), batch))
}

pub(crate) fn one(loader: Loader) -> Mixture {
    Mixture::new(vec![loader], Strategy::Sequential, 0).unwrap()
}

pub(crate) fn sgd(model: &dyn TrainModel, lr: f64) -> Vec<Optimizer> {
    Optimizer::build(&[OptimizerConfig::new(Kind::Sgd, lr)], model.params(), false).unwrap()
}

pub(crate) fn adamw(model: &dyn TrainModel, lr: f64) -> Vec<Optimizer> {
    Optimizer::build(&[OptimizerConfig::new(Kind::AdamW, lr)], model.params(), false).unwrap()
}

/// A trainer with plain gradient descent on 8 examples, two in a batch.
pub(crate) fn trainer_of(model: &Arc<Chain>, settings: Settings) -> Trainer {
    Trainer::new(model.clone(), data(8, 2), sgd(&**model, 0.1), settings).unwrap()
}

/// A small GPT with dropout, as the trainer wants it.
pub(crate) fn tiny_gpt() -> Arc<LanguageTask> {
    let described: ModelDescription = serde_json::from_value(json!({
        "kind": "gpt", "vocab": 17, "context": 8, "d_model": 16, "n_heads": 2, "n_layers": 2, "d_mlp": 32, "dropout": 0.1,
    }))
    .unwrap();
    let model = described.build(Path::new(""), 3, &Device::Cpu).unwrap();
    Arc::new(LanguageTask::new(model).unwrap())
}

/// Sequences of 8 tokens for it.
pub(crate) fn tokens(count: usize) -> Arc<dyn Dataset> {
    let id = |i: usize| ((i * i * 5 + i) % 17) as u32;
    let inputs: Vec<u32> = (0..count * 8).map(id).collect();
    let targets: Vec<i64> = (0..count * 8).map(|i| i64::from(id(i + 1))).collect();
    let inputs = Tensor::from_vec(inputs, (count, 8), &Device::Cpu).unwrap();
    let targets = Tensor::from_vec(targets, (count, 8), &Device::Cpu).unwrap();
    Arc::new(InMemory::new(vec![("inputs".to_string(), inputs), ("targets".to_string(), targets)]).unwrap())
}

/// The bits of weights by name: NaN equals itself, and 0 is not -0.
#[derive(Clone, PartialEq)]
pub(crate) struct Bits(pub(crate) BTreeMap<String, Vec<u32>>);

/// A line per weight, with its first values, and not thousands of numbers.
impl fmt::Debug for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first =
            |bits: &Vec<u32>| bits.iter().take(3).map(|bits| f32::from_bits(*bits)).collect::<Vec<_>>();
        f.debug_map().entries(self.0.iter().map(|(name, bits)| (name, first(bits)))).finish()
    }
}

pub(crate) fn bits(model: &dyn TrainModel) -> Bits {
    let of = |x: &Tensor| {
        x.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
    };
    Bits(model.params().iter().map(|param| (param.name().to_string(), of(param.value()))).collect())
}

/// A record for a run named `run` in this directory.
pub(crate) fn record_in(dir: &Path) -> Run {
    let dir = RunDir::create(dir, Some("run")).unwrap();
    let lock = dir.lock().unwrap();
    Run::start(dir, lock, &RunFacts::default()).unwrap()
}

/// A list that a hook writes to and the test reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    pub(crate) fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Attaches a hook that must fit.
pub(crate) fn attach(trainer: &mut Trainer, hook: impl Hook) -> String {
    trainer.add_hook(hook).unwrap()
}
