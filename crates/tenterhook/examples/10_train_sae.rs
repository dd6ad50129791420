//! Training a sparse autoencoder and finding what was put in: `cargo run --example 10_train_sae`.

#![allow(clippy::print_stdout)]

use std::sync::Arc;

use candle_core::{Device, Tensor};
use tenterhook::hooks::BoxError;
use tenterhook::hooks::random::Stream;
use tenterhook::sae::training::{RunOptions, SaeTask, SaeTraining, trainer};
use tenterhook::sae::{Architecture, Sae, SaeConfig};
use tenterhook::train::data::InMemory;

const FEATURES: usize = 12;
const WIDTH: usize = 8;

fn main() -> Result<(), BoxError> {
    // A world with more features than dimensions, of which few are there at a time. For a real model see `ModelActivations`.
    let random = Stream::new(1);
    let features: Vec<f64> =
        (0..(FEATURES * WIDTH) as u64).map(|i| random.named("features").normal(i)).collect();
    let mut x = vec![0f32; 4096 * WIDTH];
    for (i, row) in x.chunks_exact_mut(WIDTH).enumerate() {
        for (j, feature) in features.chunks_exact(WIDTH).enumerate() {
            if random.named("world").uniform((i * FEATURES + j) as u64) < 0.08 {
                row.iter_mut().zip(feature).for_each(|(x, f)| *x += *f as f32);
            }
        }
    }
    let x = Tensor::from_vec(x, (4096, WIDTH), &Device::Cpu)?;
    let data = Arc::new(InMemory::new(vec![("inputs".to_string(), x.clone())])?);

    // Sixteen latents, of which the largest is active.
    let config = SaeConfig::new(WIDTH, 16, Architecture::TopK { k: 1, rescale_acts_by_decoder_norm: true });
    let options = SaeTraining { dead_after_tokens: 4096, ..SaeTraining::default() };
    let task = Arc::new(SaeTask::single(config, options, 42)?);
    let run = RunOptions { lr: 1e-2, shuffle: true, ..RunOptions::new(300, 128) };
    let mut trainer = trainer(&task, data, &run)?;
    trainer.add_console_logging(100)?;
    trainer.train()?;
    let metrics = &trainer.state().metrics;
    println!(
        "explained variance {:.2}, active latents {:.2}",
        metrics["sae/explained_variance"], metrics["sae/l0"]
    );

    // It is a directory that SAELens loads, and that is loaded here.
    let dir = std::env::temp_dir().join(format!("tenterhook-sae-{}", std::process::id()));
    task.to_sae(0)?.save(&dir)?;
    let sae = Sae::load(&dir)?;
    std::fs::remove_dir_all(&dir)?;
    let latents = sae.encode(&x.narrow(0, 0, 5)?)?;
    println!("the first five activations have latents {:?}", latents.acts.argmax(1)?.to_vec1::<u32>()?);
    let rows = sae.params().get("W_dec").ok_or("no decoder")?.value().to_vec2::<f32>()?;
    let cosine = |a: &[f64], b: &[f32]| {
        let dot: f64 = a.iter().zip(b).map(|(a, b)| a * f64::from(*b)).sum();
        dot / (a.iter().map(|a| a * a).sum::<f64>() * b.iter().map(|b| f64::from(b * b)).sum::<f64>()).sqrt()
    };
    let best = |feature: &[f64]| rows.iter().map(|row| cosine(feature, row)).fold(f64::MIN, f64::max);
    let mean = features.chunks_exact(WIDTH).map(best).sum::<f64>() / FEATURES as f64;
    println!("mean max cosine similarity with the features: {mean:.2}");
    Ok(())
}
