//! `tenterhook bench sae`.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use clap::Args;
use serde_json::json;
use tenterhook_sae::training::{RunOptions, SaeTask, SaeTraining, trainer};
use tenterhook_sae::{Architecture, SaeConfig};
use tenterhook_train::data::InMemory;

use super::laps::Laps;
use super::measure::{Measured, RepeatArgs, tell};
use crate::cli::capture::positive;
use crate::cli::error::CliError;
use crate::cli::memory::check_fits;
use crate::cli::{Outcome, output};

/// Batches of activations that are there; training goes through them again and again.
const BATCHES: usize = 4;

/// Time the training steps of a sparse TopK autoencoder.
///
/// The steps are those of `sae train`, with its defaults. The activations are made up: number i of all, counted through, is
/// h / 2^23 - 1, with h the highest 24 bits of the 32 lowest bits of 2654435761 i.
#[derive(Args)]
#[command(after_help = "Example: tenterhook bench sae --d-in 768 --d-sae 16384 --k 32 --batch 4096 --json")]
pub(super) struct SaeArgs {
    /// The width of the activations.
    #[arg(long, default_value_t = 768, value_name = "N", value_parser = positive)]
    d_in: usize,
    /// The number of latents.
    #[arg(long, default_value_t = 16384, value_name = "N", value_parser = positive)]
    d_sae: usize,
    /// Active latents per activation.
    #[arg(long, default_value_t = 32, value_name = "K", value_parser = positive)]
    k: usize,
    /// Activations per step.
    #[arg(long, default_value_t = 4096, value_name = "N", value_parser = positive)]
    batch: usize,
    /// Everything random depends on it.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Write the autoencoder as it is before the first step to this directory, as SAELens saves it: with decoder rows of norm 1, and the norms that training
    /// begins with (`decoder_init_norm` in its cfg.json) in the encoder.
    #[arg(long, value_name = "DIR")]
    save_start: Option<PathBuf>,
    #[command(flatten)]
    repeat: RepeatArgs,
}

pub(super) fn run(args: &SaeArgs) -> Result<Outcome, CliError> {
    let SaeArgs { d_in, d_sae, k, batch, .. } = *args;
    // Weights, their gradients and two moments of the optimizer; the latents of a batch and their gradients.
    check_fits(&format!("an autoencoder of {d_sae} latents"), &[d_sae, d_in, 2 * 4 * 4])?;
    check_fits(
        &format!("--batch {batch}"),
        &[batch, d_sae.saturating_add(d_in.saturating_mul(BATCHES)), 2 * 4],
    )?;
    let config = SaeConfig::new(d_in, d_sae, Architecture::TopK { k, rescale_acts_by_decoder_norm: true });
    let task = Arc::new(SaeTask::single(config, SaeTraining::default(), args.seed)?);
    if let Some(dir) = &args.save_start {
        task.to_sae(0)?.save(dir)?;
    }
    let data = Tensor::from_vec(activations(BATCHES * batch * d_in), (BATCHES * batch, d_in), &Device::Cpu)?;
    let data = InMemory::new(vec![("inputs".to_string(), data)]);
    let data = Arc::new(data.map_err(|error| CliError::failed(error.to_string()))?);
    let steps = (args.repeat.warmup.saturating_add(args.repeat.repeat) as u64).saturating_add(1);
    let mut trainer = trainer(&task, data, &RunOptions { seed: args.seed, ..RunOptions::new(steps, batch) })?;
    let (laps, timing) = Laps::run(&mut trainer, &args.repeat)?;

    let measured = Measured { timing, tokens: batch as f64, flops: None, peak_rss_mb: laps.peak_rss_mb };
    if args.repeat.json {
        output::json(&measured.to_json(json!({
            "d_in": d_in,
            "d_sae": d_sae,
            "k": k,
            "batch": batch,
            "losses": laps.losses,
            "tensors_with_gradient": laps.parameters,
        })))?;
    } else {
        tell(
            &format!(
                "steps of a TopK autoencoder, {d_in} to {d_sae} with {k} active, on {batch} activations"
            ),
            &measured.lines(),
        )?;
    }
    Ok(Outcome::Done)
}

/// Numbers between -1 and 1 that look random: a formula, so that others can be measured with the same.
fn activations(count: usize) -> Vec<f32> {
    let number = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1u32 << 23) as f32 - 1.0;
    (0..count).map(|i| number(i as u32)).collect()
}
