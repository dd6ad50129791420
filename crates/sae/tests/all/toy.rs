//! A toy world whose features are known: more of them than there are dimensions, few at a time.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use tenterhook_hooks::random::Stream;
use tenterhook_sae::training::{RunOptions, SaeTask, SaeTraining, trainer};
use tenterhook_sae::{Architecture, Sae, SaeConfig};
use tenterhook_train::data::{Dataset, InMemory};

use crate::support::values;

pub(crate) const FEATURES: usize = 24;
pub(crate) const WIDTH: usize = 16;
/// The chance of a feature to be there.
const CHANCE: f64 = 0.06;

/// The directions of the features, one per row.
pub(crate) fn features() -> Vec<Vec<f64>> {
    let stream = Stream::new(3).named("features");
    let row = |feature: usize| {
        let row: Vec<f64> = (0..WIDTH).map(|i| stream.normal((feature * WIDTH + i) as u64)).collect();
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        row.into_iter().map(|x| x / norm).collect()
    };
    (0..FEATURES).map(row).collect()
}

/// Activations: sums of a few features, each between 0.5 and 1.5 long.
pub(crate) fn activations(count: usize) -> Tensor {
    let (stream, features) = (Stream::new(4).named("world"), features());
    let mut rows = vec![0f32; count * WIDTH];
    for (i, row) in rows.chunks_exact_mut(WIDTH).enumerate() {
        for (j, feature) in features.iter().enumerate() {
            let at = 2 * (i * FEATURES + j) as u64;
            if stream.uniform(at) < CHANCE {
                let length = 0.5 + stream.uniform(at + 1);
                row.iter_mut().zip(feature).for_each(|(x, f)| *x += (length * f) as f32);
            }
        }
    }
    Tensor::from_vec(rows, (count, WIDTH), &Device::Cpu).unwrap()
}

pub(crate) fn world(count: usize) -> Arc<dyn Dataset> {
    Arc::new(InMemory::new(vec![("inputs".to_string(), activations(count))]).unwrap())
}

/// How well the best latent of each feature points its way, on average.
pub(crate) fn mean_max_cosine(sae: &Sae) -> f64 {
    let rows = values(sae.params().get("W_dec").unwrap().value());
    let best = |feature: &Vec<f64>| {
        rows.chunks_exact(WIDTH)
            .map(|row| {
                let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
                row.iter().zip(feature).map(|(a, b)| a * b).sum::<f64>() / norm
            })
            .fold(f64::NEG_INFINITY, f64::max)
    };
    features().iter().map(best).sum::<f64>() / FEATURES as f64
}

fn recovers(architecture: Architecture, options: SaeTraining, run: RunOptions) {
    let config = SaeConfig::new(WIDTH, 32, architecture);
    let task = Arc::new(SaeTask::single(config, options, 1).unwrap());
    let mut trainer = trainer(&task, world(8192), &run).unwrap();
    let finished = trainer.train().unwrap();
    assert!(!finished.degraded);
    let metrics = trainer.state().metrics.clone();
    let sae = task.to_sae(0).unwrap();
    let score = mean_max_cosine(&sae);
    assert!(score > 0.9, "{}: {score:.3}, {metrics:?}", architecture.name());
    // What is saved does what was trained.
    let x = activations(512);
    let recons = sae.decode(&sae.encode(&x).unwrap()).unwrap();
    let (missed, all): (f64, f64) = values(&(&x - &recons).unwrap())
        .iter()
        .zip(values(&x))
        .fold((0.0, 0.0), |(m, a), (d, x)| (m + d * d, a + x * x));
    assert!(missed / all < 0.35, "{}: {}, {metrics:?}", architecture.name(), missed / all);
}

fn run(steps: u64) -> RunOptions {
    RunOptions { lr: 1e-2, shuffle: true, ..RunOptions::new(steps, 128) }
}

#[test]
fn a_standard_autoencoder_finds_the_features() {
    let options = SaeTraining { l1_coefficient: 0.2, ..SaeTraining::default() };
    recovers(Architecture::Standard, options, run(600));
}

#[test]
fn a_top_k_autoencoder_finds_the_features() {
    let options = SaeTraining { dead_after_tokens: 4096, ..SaeTraining::default() };
    let architecture = Architecture::TopK { k: 2, rescale_acts_by_decoder_norm: true };
    recovers(architecture, options, run(600));
}

#[test]
fn a_batch_top_k_autoencoder_finds_the_features() {
    let options = SaeTraining { dead_after_tokens: 4096, ..SaeTraining::default() };
    let architecture = Architecture::BatchTopK { k: 1.5, rescale_acts_by_decoder_norm: true };
    recovers(architecture, options, run(600));
}

#[test]
fn a_jump_relu_autoencoder_finds_the_features() {
    let options = SaeTraining {
        l0_coefficient: 0.1,
        l0_warm_up_steps: 200,
        jumprelu_bandwidth: 0.2,
        jumprelu_init_threshold: 0.05,
        jumprelu_ste_to_input: true,
        ..SaeTraining::default()
    };
    recovers(Architecture::JumpRelu, options, run(600));
}

#[test]
fn a_gated_autoencoder_finds_the_features() {
    let options = SaeTraining { l1_coefficient: 0.2, ..SaeTraining::default() };
    recovers(Architecture::Gated, options, run(600));
}
