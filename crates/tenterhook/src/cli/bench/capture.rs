//! `tenterhook bench capture`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde_json::json;
use tenterhook_hooks::Report;
use tenterhook_lens::{CaptureToOptions, LanguageModel, LocalStore, StoreOptions};

use super::measure::{Measured, RepeatArgs, Timing, median, peak_rss_mb, tell};
use super::sizes::Sizes;
use super::tokens;
use crate::cli::capture::positive;
use crate::cli::error::CliError;
use crate::cli::memory::check_fits;
use crate::cli::model::{ModelArgs, outcome};
use crate::cli::{Outcome, output};

/// Time `capture` into a store, beside the model alone and the disk alone.
///
/// A round runs --sequences of --seq tokens through the model and writes what passes at the points, until all of it is on the disk. Beside it stand the
/// same forwards without a hook, and a plain file of the same size that is written and synced.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook bench capture ./gpt2 --points 'blocks.*.hook_resid_post' --sequences 64 --seq 128
  tenterhook bench capture ./gpt2 --points '*' --dir /mnt/data --memory-limit 64 --json")]
pub(super) struct CaptureArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A point's name, a layer's path, a glob (`*` spans dots) or a block index. May be given several times.
    #[arg(long, value_name = "GLOB", required = true, allow_hyphen_values = true)]
    points: Vec<String>,
    /// Sequences of a round.
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = positive)]
    sequences: usize,
    /// Tokens of each; the same as those of `bench forward`.
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = positive)]
    seq: usize,
    /// Sequences that go through the model together.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = positive)]
    batch_size: usize,
    /// MiB of activations in memory, at most.
    #[arg(long, default_value_t = 256, value_name = "MIB", value_parser = positive)]
    memory_limit: usize,
    /// Write below this directory; by default the system's temporary one. What is written is removed.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    repeat: RepeatArgs,
}

pub(super) fn run(args: &CaptureArgs) -> Result<Outcome, CliError> {
    let dir = scratch(args.dir.as_deref())?;
    let lm = args.model.load()?;
    let vocab = lm.model().config().vocab;
    check_fits(
        &format!("--batch-size {} --seq {}", args.batch_size, args.seq),
        &[args.batch_size, args.seq, vocab, 4],
    )?;
    check_fits(
        &format!("--sequences {} --seq {}", args.sequences, args.seq),
        &[args.sequences, args.seq, 4],
    )?;
    let flat = tokens::ids(args.sequences * args.seq, vocab);
    let rows: Vec<Vec<u32>> = flat.chunks(args.seq).map(<[u32]>::to_vec).collect();
    lm.check_tokens(&rows[0]).map_err(|error| CliError::bad_input(format!("--seq {}: {error}", args.seq)))?;
    let options =
        CaptureToOptions { batch_size: args.batch_size, ..CaptureToOptions::points(args.points.clone()) };
    options.check(&lm)?;

    let store = LocalStore::new(dir.path().join("store"));
    let limit = args.memory_limit.saturating_mul(1 << 20);
    let into_store = || -> Result<_, CliError> {
        let start = Instant::now();
        let options_of_store = StoreOptions { memory_limit: limit, ..StoreOptions::default() };
        let mut writer = store.create("round", options_of_store)?;
        let sequences = rows.iter().cloned().map(Ok);
        let captured = lm.capture_tokens_to(&mut writer, sequences, &options, |_| ())?;
        let summary = writer.finish()?;
        let seconds = start.elapsed().as_secs_f64();
        let gone = std::fs::remove_dir_all(&summary.path);
        gone.map_err(|error| CliError::failed(format!("{}: {error}", summary.path.display())))?;
        Ok((seconds, captured.report, summary))
    };
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let (mut report, mut bytes, mut shards) = (Report::default(), 0, 0);
    for round in 0..args.repeat.warmup.saturating_add(args.repeat.repeat) {
        let (of_store, done, summary) = into_store()?;
        (report, bytes, shards) = (done, summary.bytes, summary.shards);
        let of_model = forwards(&lm, &rows, args.batch_size)?;
        let of_disk = plain_write(&dir.path().join("plain"), bytes)?;
        if round >= args.repeat.warmup {
            times.iter_mut().zip([of_store, of_model, of_disk]).for_each(|(all, one)| all.push(one));
        }
    }
    let [store, model, disk] = times;
    let sizes = Sizes::Transformer(Box::new(lm.model().config().clone()));
    let measured = Measured {
        timing: Timing(store),
        tokens: flat.len() as f64,
        flops: Some(sizes.forward_flops(args.sequences, args.seq)),
        peak_rss_mb: peak_rss_mb(),
    };
    let speed = |seconds: f64| bytes as f64 / 1e6 / seconds;
    let (of_store, of_disk) = (speed(measured.timing.median()), speed(median(&disk)));
    if args.repeat.json {
        output::json(&measured.to_json(json!({
            "bytes": bytes,
            "shards": shards,
            "mb_per_s": of_store,
            "disk_mb_per_s": of_disk,
            "model_ms": median(&model) * 1e3,
        })))?;
    } else {
        let mut lines = measured.lines();
        lines.push((
            "captured",
            format!("{:.1} MB in {shards} shards, {of_store:.0} MB/s", bytes as f64 / 1e6),
        ));
        lines.push(("disk alone", format!("{of_disk:.0} MB/s")));
        lines.push(("model alone", format!("{:.2} ms", median(&model) * 1e3)));
        tell(&format!("{} sequences of {} tokens into a store", args.sequences, args.seq), &lines)?;
    }
    Ok(outcome(&report))
}

/// A directory of our own, which goes when it is dropped.
fn scratch(below: Option<&Path>) -> Result<tempfile::TempDir, CliError> {
    match below {
        Some(dir) => tempfile::tempdir_in(dir)
            .map_err(|error| CliError::bad_input(format!("--dir {}: {error}", dir.display()))),
        None => tempfile::tempdir()
            .map_err(|error| CliError::failed(format!("no temporary directory can be made: {error}"))),
    }
}

/// Seconds for the same forwards, with nobody looking.
fn forwards(lm: &LanguageModel, rows: &[Vec<u32>], batch_size: usize) -> Result<f64, CliError> {
    let start = Instant::now();
    for batch in rows.chunks(batch_size) {
        let ids = candle_core::Tensor::from_vec(batch.concat(), (batch.len(), batch[0].len()), &lm.device())?;
        lm.forward(&ids)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds for a plain file of so many bytes, until it is on the disk.
fn plain_write(path: &Path, bytes: u64) -> Result<f64, CliError> {
    let failed = |error: std::io::Error| CliError::failed(format!("{}: {error}", path.display()));
    let piece = vec![0xa5u8; 1 << 20];
    let start = Instant::now();
    let mut file = File::create(path).map_err(failed)?;
    let mut left = bytes;
    while left > 0 {
        let now = left.min(piece.len() as u64);
        file.write_all(&piece[..now as usize]).map_err(failed)?;
        left -= now;
    }
    file.sync_all().map_err(failed)?;
    let seconds = start.elapsed().as_secs_f64();
    std::fs::remove_file(path).map_err(failed)?;
    Ok(seconds)
}
