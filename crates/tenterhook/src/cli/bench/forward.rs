//! `tenterhook bench forward`.

use std::path::PathBuf;
use std::time::Duration;

use candle_core::Tensor;
use clap::Args;
use serde_json::json;
use tenterhook_hooks::{HookRegistry, Report, Selector, Site};
use tenterhook_lens::{CacheOptions, LanguageModel};
use tenterhook_models::files::{check_writable, save_tensors};

use super::measure::{Measured, RepeatArgs, peak_rss_mb, tell};
use super::sizes::Sizes;
use super::tokens::{Tokens, TokensArgs};
use crate::cli::error::CliError;
use crate::cli::hooks_file::HooksFileArgs;
use crate::cli::model::{ModelArgs, outcome};
use crate::cli::{Outcome, output};

/// Time forwards of a model: bare, with points captured, with hooks.
///
/// Without --points and --hooks there is no hook at all. With --points a round is `run_with_cache`: the forward, and the values at these points kept. A
/// round ends when what it gave has been let go.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook bench forward ./gpt2 --batch 4 --seq 256
  tenterhook bench forward ./gpt2 --batch 4 --seq 256 --points 'blocks.*.hook_resid_post' --json
  tenterhook bench forward ./gpt2 --batch 4 --seq 256 --points 'blocks.*.hook_resid_post' --overhead
  tenterhook bench forward ./gpt2 --seq 128 --hooks steer.toml --logits logits.safetensors")]
pub(super) struct ForwardArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    tokens: TokensArgs,
    /// Capture here: a point's name, a layer's path, a glob (`*` spans dots) or a block index. May be given several times.
    #[arg(long, value_name = "GLOB", allow_hyphen_values = true)]
    points: Vec<String>,
    /// Time forwards without --points by turns with those that capture, and tell what capturing adds.
    #[arg(long, requires = "points")]
    overhead: bool,
    #[command(flatten)]
    hooks: HooksFileArgs,
    /// Write the logits to this safetensors file, as `logits`.
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,
    #[command(flatten)]
    repeat: RepeatArgs,
}

/// What a round captured, and what its hooks did.
#[derive(Default)]
struct Round {
    points: usize,
    bytes: usize,
    report: Report,
}

pub(super) fn run(args: &ForwardArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    args.logits.iter().try_for_each(|path| check_writable(path))?;
    let inputs = args.hooks.hooks.iter().map(PathBuf::as_path);
    args.logits.iter().try_for_each(|out| args.model.refuse_overwriting("--logits", out, inputs.clone()))?;
    let lm = args.model.load()?;
    let Tokens { ids, batch, seq } = args.tokens.read(&lm)?;
    let points = (!args.points.is_empty()).then(|| Selector::from(args.points.clone()));
    if let Some(points) = &points {
        points.resolve(lm.hooks().points(), Site::Forward)?;
    }
    args.hooks.attach(lm.hooks(), registry)?;
    let cache = points.map(CacheOptions::points);

    let mut last = Round::default();
    let captured = || -> Result<(), CliError> {
        last = forward(&lm, &ids, cache.as_ref())?.1;
        Ok(())
    };
    let (timing, overhead) = match args.overhead {
        false => (args.repeat.time(captured)?, None),
        true => {
            let bare = || forward(&lm, &ids, None).map(|_| ());
            let mut times =
                args.repeat.by_turns(&mut [Box::new(bare), Box::new(captured)], Duration::ZERO)?;
            let (timing, bare) = (times.remove(1), times.remove(0));
            let overhead = (bare.median() * 1e3, timing.share_beyond(&bare));
            (timing, Some(overhead))
        }
    };
    let sizes = Sizes::Transformer(Box::new(lm.model().config().clone()));
    let measured = Measured {
        timing,
        tokens: (batch * seq) as f64,
        flops: Some(sizes.forward_flops(batch, seq)),
        peak_rss_mb: peak_rss_mb(),
    };
    if let Some(path) = &args.logits {
        let (logits, _) = forward(&lm, &ids, cache.as_ref())?;
        let saved = save_tensors(path, &[("logits".to_string(), logits)]);
        saved.map_err(|error| CliError::failed(error.to_string()))?;
    }
    let edits: u64 = last.report.hooks.iter().map(|hook| hook.receipt.edits).sum();
    if args.repeat.json {
        output::json(&measured.to_json(json!({
            "batch": batch,
            "seq": seq,
            "points": last.points,
            "bytes": last.bytes,
            "hooks": last.report.hooks.len(),
            "edits": edits,
            "bare_ms": overhead.map(|overhead| overhead.0),
            "overhead": overhead.map(|overhead| overhead.1),
        })))?;
    } else {
        let mut lines = measured.lines();
        if last.points > 0 {
            lines.push(("captured", format!("{} values, {:.1} MB", last.points, last.bytes as f64 / 1e6)));
        }
        if let Some((bare, overhead)) = overhead {
            lines.push(("overhead", format!("{:+.2}%, {bare:.2} ms without", 100.0 * overhead)));
        }
        if !last.report.hooks.is_empty() {
            lines.push(("hooks", format!("{}, which changed {edits} values", last.report.hooks.len())));
        }
        tell(&format!("{} forwards of {batch} x {seq} tokens", args.repeat.repeat), &lines)?;
    }
    Ok(outcome(&last.report))
}

/// One forward, and what was captured in it.
fn forward(
    lm: &LanguageModel,
    ids: &Tensor,
    cache: Option<&CacheOptions>,
) -> Result<(Tensor, Round), CliError> {
    let size = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
    let (logits, mut round) = match cache {
        None => {
            let (logits, report) = lm.forward(ids)?;
            (logits, Round { report, ..Round::default() })
        }
        Some(options) => {
            let (logits, cache, report) = lm.run_with_cache(ids, options)?;
            let bytes = cache.iter().map(|(_, tensor)| size(tensor)).sum();
            (logits, Round { points: cache.len(), bytes, report })
        }
    };
    for hook in &round.report.hooks {
        let states = lm.hooks().get_captured_states(&hook.id)?;
        round.points += states.len();
        round.bytes += states.iter().map(|state| size(&state.tensor)).sum::<usize>();
    }
    lm.hooks().clear_captured_states(None)?;
    Ok((logits, round))
}
