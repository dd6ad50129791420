//! `tenterhook capture`: activations and gradients of a model, in a file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use clap::Args;
use serde_json::json;
use tenterhook_hooks::kinds::capture::{Capture, CaptureOptions};
use tenterhook_hooks::{Gradients, HookManager, HookOptions, OnError, PassSetup};
use tenterhook_models::files::{check_writable, save_tensors};
use tenterhook_models::{Transformer, next_token_loss};

use super::error::CliError;
use super::model::{ModelArgs, outcome};
use super::{Outcome, output};

/// Run a model on token ids and write what passes at chosen points to a safetensors file.
///
/// The file holds one tensor per point under the name that matched, `logits` with --logits, and with --gradients also
/// `loss`, the mean next-token cross entropy, and its gradient at each point under `grad.<name>`.
#[derive(Args)]
#[command(
    after_help = "Example: tenterhook capture ./gpt2 --tokens-file ids.json --points 'blocks.*.hook_resid_post' --out out.safetensors"
)]
pub(super) struct CaptureArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A JSON file with a list of equally long lists of token ids: [[1, 2, 3], [4, 5, 6]].
    #[arg(long, value_name = "FILE")]
    tokens_file: PathBuf,
    /// A point's name, a layer's path, a glob (`*` spans dots) or a block index. May be given several times.
    #[arg(long, value_name = "GLOB", required = true, allow_hyphen_values = true)]
    points: Vec<String>,
    /// The safetensors file to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Write the logits too.
    #[arg(long)]
    logits: bool,
    /// Write the loss and its gradient at each point too.
    #[arg(long)]
    gradients: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &CaptureArgs) -> Result<Outcome, CliError> {
    check_out(&args.out)?;
    let tokens = read_tokens(&args.tokens_file)?;
    let lm = args.model.load()?;
    let model = lm.model();
    check_tokens(&tokens, model, args)?;
    let hooks = model.hook_manager();
    attach(&hooks, args)?;

    let gradients = if args.gradients { Gradients::Activations } else { Gradients::Off };
    let pass = hooks.pass(PassSetup::eval(0).gradients(gradients));
    let ids = to_tensor(&tokens, &lm.device())?;
    let logits = model.forward(&ids, &pass)?;
    let mut tensors = BTreeMap::new();
    if args.gradients {
        let loss = next_token_loss(&logits, &ids)?;
        loss.backward()?;
        tensors.insert("loss".to_string(), loss.detach());
    }
    if args.logits {
        tensors.insert("logits".to_string(), logits.detach());
    }
    drop(logits);
    collect(&hooks, &mut tensors)?;
    let tensors: Vec<(String, Tensor)> = tensors.into_iter().collect();
    save_tensors(&args.out, &tensors).map_err(|error| CliError::failed(error.to_string()))?;

    let report = pass.report();
    if args.json {
        let shapes: BTreeMap<&str, &[usize]> =
            tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.dims())).collect();
        let errors: Vec<String> = report.errors.iter().map(ToString::to_string).collect();
        output::json(
            &json!({ "out": args.out.display().to_string(), "tensors": shapes, "receipts": report.hooks, "errors": errors }),
        )?;
    } else {
        let bytes: usize = tensors.iter().map(|(_, t)| t.elem_count() * t.dtype().size_in_bytes()).sum();
        output::text(&report.to_string())?;
        output::text(&format!("\n{} tensors, {bytes} bytes: {}", tensors.len(), args.out.display()))?;
    }
    Ok(outcome(&report))
}

const VALUES: &str = "capture";
const GRADIENTS: &str = "capture_gradients";

/// Two hooks, so that the receipts say of values and of gradients what happened.
fn attach(hooks: &HookManager, args: &CaptureArgs) -> Result<(), CliError> {
    let options = |id: &str| HookOptions { on_error: OnError::Abort, builtin: true, ..HookOptions::id(id) };
    let values = CaptureOptions::new(args.points.clone());
    hooks.register_with(Capture::new(values.clone())?, options(VALUES))?;
    if args.gradients {
        let gradients = CaptureOptions { capture_output: false, gradients: true, ..values };
        hooks.register_with(Capture::new(gradients)?, options(GRADIENTS))?;
    }
    Ok(())
}

/// Moves what was captured into `tensors`, and makes sure that everything that was asked for is there.
fn collect(hooks: &HookManager, tensors: &mut BTreeMap<String, Tensor>) -> Result<(), CliError> {
    for hook in hooks.list_hooks() {
        let (prefix, what) = if hook.id == GRADIENTS { ("grad.", "gradient") } else { ("", "value") };
        for state in hooks.get_captured_states(&hook.id)? {
            tensors.insert(format!("{prefix}{}", state.point), state.tensor);
        }
        let is_absent = |name: &&String| !tensors.contains_key(&format!("{prefix}{name}"));
        let absent: Vec<&str> = hook.matched.iter().filter(is_absent).map(String::as_str).collect();
        if !absent.is_empty() {
            return Err(CliError::failed(format!("no {what} arrived at {}", absent.join(", "))));
        }
    }
    Ok(hooks.clear_captured_states(None)?)
}

fn check_out(out: &Path) -> Result<(), CliError> {
    let shown = out.display();
    if out.is_dir() {
        return Err(CliError::bad_input(format!(
            "--out {shown} is a directory; name a .safetensors file in it"
        )));
    }
    let parent = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !parent.is_dir() {
        return Err(CliError::bad_input(format!(
            "--out {shown}: the directory {} does not exist",
            parent.display()
        )));
    }
    Ok(check_writable(out)?)
}

/// A million tokens take about 6 MB of JSON.
const LARGEST_TOKENS_FILE: u64 = 64 << 20;

fn read_tokens(path: &Path) -> Result<Vec<Vec<u32>>, CliError> {
    let bad = |problem: String| CliError::bad_input(format!("{}: {problem}", path.display()));
    // A device or a pipe has no size: what is read is what counts.
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| bad(error.to_string()))?;
    file.take(LARGEST_TOKENS_FILE + 1).read_to_end(&mut text).map_err(|error| bad(error.to_string()))?;
    if text.len() as u64 > LARGEST_TOKENS_FILE {
        return Err(bad(format!(
            "more than {} MiB are too much for a file of token ids",
            LARGEST_TOKENS_FILE >> 20
        )));
    }
    serde_json::from_slice(&text).map_err(|error| {
        bad(format!("expected a list of lists of token ids, such as [[1, 2], [3, 4]]: {error}"))
    })
}

fn check_tokens(tokens: &[Vec<u32>], model: &Transformer, args: &CaptureArgs) -> Result<(), CliError> {
    let bad =
        |problem: String| Err(CliError::bad_input(format!("{}: {problem}", args.tokens_file.display())));
    let config = model.config();
    let Some(first) = tokens.first() else { return bad("there are no sequences".into()) };
    let least = if args.gradients { 2 } else { 1 };
    if first.len() < least {
        return bad(format!(
            "a sequence needs at least {least} token{}",
            if least > 1 { "s, to have a next one" } else { "" }
        ));
    }
    if let Some(row) = tokens.iter().position(|row| row.len() != first.len()) {
        return bad(format!(
            "sequence {row} has {} tokens and sequence 0 has {}: all must be equally long",
            tokens[row].len(),
            first.len()
        ));
    }
    for (row, ids) in tokens.iter().enumerate() {
        if let Some(column) = ids.iter().position(|id| *id as usize >= config.vocab) {
            return bad(format!(
                "token id {} (sequence {row}, position {column}) is outside the vocabulary of {}",
                ids[column], config.vocab
            ));
        }
    }
    if matches!(config.positions, tenterhook_models::config::Positions::Learned)
        && first.len() > config.context
    {
        return bad(format!("{} tokens are more than the model's {} positions", first.len(), config.context));
    }
    Ok(())
}

fn to_tensor(tokens: &[Vec<u32>], device: &Device) -> Result<Tensor, CliError> {
    let flat: Vec<u32> = tokens.concat();
    Ok(Tensor::from_vec(flat, (tokens.len(), tokens[0].len()), device)?)
}
