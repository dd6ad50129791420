//! `tenterhook bench generate`.

use std::ops::ControlFlow;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use tenterhook_hooks::HookRegistry;
use tenterhook_lens::GenerateOptions;

use super::measure::{Measured, RepeatArgs, median, peak_rss_mb, tell};
use super::sizes::Sizes;
use super::tokens;
use crate::cli::capture::positive;
use crate::cli::error::CliError;
use crate::cli::hooks_file::HooksFileArgs;
use crate::cli::memory::check_fits;
use crate::cli::model::{ModelArgs, outcome};
use crate::cli::{Outcome, output};

/// Time generations with a KV cache: the likeliest token every time, and none that ends the text.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook bench generate ./gpt2 --prompt-tokens 32 --new-tokens 64
  tenterhook bench generate ./gpt2 --prompt-tokens 8 --new-tokens 64 --hooks steer.toml --json")]
pub(super) struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the prompt; the same as those of `bench forward`.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = positive)]
    prompt_tokens: usize,
    /// Tokens that are added.
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = positive)]
    new_tokens: usize,
    #[command(flatten)]
    hooks: HooksFileArgs,
    #[command(flatten)]
    repeat: RepeatArgs,
}

pub(super) fn run(args: &GenerateArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    let lm = args.model.load()?;
    let vocab = lm.model().config().vocab;
    check_fits(&format!("--prompt-tokens {}", args.prompt_tokens), &[args.prompt_tokens, vocab, 4])?;
    check_fits(&format!("--new-tokens {}", args.new_tokens), &[args.new_tokens, vocab])?;
    args.hooks.attach(lm.hooks(), registry)?;
    let prompt = tokens::ids(args.prompt_tokens, vocab);
    let options = GenerateOptions {
        max_new_tokens: args.new_tokens,
        stop_tokens: Some(Vec::new()),
        ..GenerateOptions::default()
    };

    let (mut last, mut to_first) = (None, Vec::new());
    let timing = args.repeat.time(|| -> Result<(), CliError> {
        let (start, mut first) = (Instant::now(), None);
        let generation = lm.generate_tokens(vec![prompt.clone()], &options, |_| {
            first.get_or_insert_with(|| start.elapsed().as_secs_f64());
            ControlFlow::Continue(())
        })?;
        to_first.extend(first);
        lm.hooks().clear_captured_states(None)?;
        last = Some(generation);
        Ok(())
    })?;
    let generation = last.ok_or_else(|| CliError::failed("nothing was generated"))?;
    let first = median(&to_first[to_first.len().saturating_sub(timing.0.len())..]);
    let sizes = Sizes::Transformer(Box::new(lm.model().config().clone()));
    let measured = Measured {
        timing,
        tokens: args.new_tokens as f64,
        flops: Some(sizes.generate_flops(args.prompt_tokens, args.new_tokens)),
        peak_rss_mb: peak_rss_mb(),
    };
    let edits: u64 = generation.report.hooks.iter().map(|hook| hook.receipt.edits).sum();
    if args.repeat.json {
        output::json(&measured.to_json(json!({
            "prompt_tokens": args.prompt_tokens,
            "new_tokens": generation.new_tokens.first(),
            "first_token_ms": first * 1e3,
            "hooks": generation.report.hooks.len(),
            "edits": edits,
        })))?;
    } else {
        let mut lines = measured.lines();
        lines.insert(2, ("first token", format!("{:.2} ms", first * 1e3)));
        if !generation.report.hooks.is_empty() {
            lines.push(("hooks", format!("{}, which changed {edits} values", generation.report.hooks.len())));
        }
        tell(&format!("{} tokens behind a prompt of {}", args.new_tokens, args.prompt_tokens), &lines)?;
    }
    Ok(outcome(&generation.report))
}
