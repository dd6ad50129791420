//! Everything at once, in one file.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use serde_json::json;
use tenterhook_hooks::kinds::capture::{Capture, CaptureOptions};
use tenterhook_hooks::{Gradients, HookManager, HookOptions, HookRegistry, OnError, PassSetup};
use tenterhook_lens::LensError;
use tenterhook_models::files::{check_writable, save_tensors};
use tenterhook_models::next_token_loss;

use super::{CaptureArgs, input};
use crate::cli::error::CliError;
use crate::cli::hooks_file::{report_json, report_text};
use crate::cli::model::outcome;
use crate::cli::{Outcome, output};

pub(super) fn run(args: &CaptureArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    refuse_store_options(args)?;
    check_out(&args.out)?;
    let inputs = [&args.tokens_file, &args.file, &args.hooks.hooks].into_iter().flatten();
    args.model.refuse_overwriting("--out", &args.out, inputs.map(|path| path.as_path()))?;
    let lm = args.model.load()?;
    let model = lm.model();
    let tokens = input::equally_long(args, &lm)?;
    let hooks = model.hook_manager();
    attach(&hooks, args)?;
    let from_file = args.hooks.attach_for(&hooks, registry, args.gradients)?;
    check_captures(&hooks, args)?;

    let gradients = if args.gradients { Gradients::Activations } else { Gradients::Off };
    let pass = hooks.pass(PassSetup::eval(0).gradients(gradients));
    let ids = to_tensor(&tokens, &lm.device())?;
    let logits = model.forward(&ids, &pass).map_err(|error| LensError::of_pass(error, &pass))?;
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
    if !args.points.is_empty() {
        collect(&hooks, &mut tensors)?; // else a hook of the file may have that id
    }
    collect_others(&hooks, &from_file, &mut tensors)?;
    let mut tensors: Vec<(String, Tensor)> = tensors.into_iter().collect();
    if let Some(to) = args.dtype {
        for (_, tensor) in tensors.iter_mut().filter(|(_, tensor)| tensor.dtype().is_float()) {
            *tensor = tensor.to_dtype(to.dtype())?;
        }
    }
    save_tensors(&args.out, &tensors).map_err(|error| CliError::failed(error.to_string()))?;

    let report = pass.report();
    if args.json {
        let shapes: BTreeMap<&str, &[usize]> =
            tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.dims())).collect();
        let mut all = report_json(&report);
        all.insert("out".to_string(), json!(args.out.display().to_string()));
        all.insert("tensors".to_string(), json!(shapes));
        output::json(&all)?;
    } else {
        let bytes: usize = tensors.iter().map(|(_, t)| t.elem_count() * t.dtype().size_in_bytes()).sum();
        output::text(&report_text(&report))?;
        output::text(&format!("\n{} tensors, {bytes} bytes: {}", tensors.len(), args.out.display()))?;
    }
    Ok(outcome(&report))
}

const VALUES: &str = "capture";
const GRADIENTS: &str = "capture_gradients";

/// Two hooks, so that the receipts say of values and of gradients what happened.
fn attach(hooks: &HookManager, args: &CaptureArgs) -> Result<(), CliError> {
    if args.points.is_empty() {
        return Ok(());
    }
    let options = |id: &str| HookOptions { on_error: OnError::Abort, builtin: true, ..HookOptions::id(id) };
    let values = CaptureOptions::new(args.points.clone());
    hooks.register_with(Capture::new(values.clone())?, options(VALUES))?;
    if args.gradients {
        let gradients = CaptureOptions { capture_output: false, gradients: true, ..values };
        hooks.register_with(Capture::new(gradients)?, options(GRADIENTS))?;
    }
    Ok(())
}

/// Something has to be captured.
pub(super) fn check_captures(hooks: &HookManager, args: &CaptureArgs) -> Result<(), CliError> {
    let captures = hooks.list_hooks().iter().any(|hook| hook.kind == Capture::KIND);
    if captures || args.logits || !args.points.is_empty() {
        return Ok(());
    }
    Err(CliError::bad_input(
        "nothing would be written: give --points, or a `capture` hook in the file of hooks",
    ))
}

/// Moves what was captured into `tensors`, and makes sure that everything that was asked for is there.
fn collect(hooks: &HookManager, tensors: &mut BTreeMap<String, Tensor>) -> Result<(), CliError> {
    for hook in hooks.list_hooks().into_iter().filter(|hook| [VALUES, GRADIENTS].contains(&hook.id.as_str()))
    {
        let (prefix, what) = if hook.id == GRADIENTS { ("grad.", "gradient") } else { ("", "value") };
        for state in hooks.get_captured_states(&hook.id)? {
            tensors.insert(format!("{prefix}{}", state.point), state.tensor);
        }
        let is_absent = |name: &&String| !tensors.contains_key(&format!("{prefix}{name}"));
        let absent: Vec<&str> = hook.matched.iter().filter(is_absent).map(String::as_str).collect();
        if !absent.is_empty() {
            return Err(CliError::failed(format!("no {what} arrived at {}", absent.join(", "))));
        }
        hooks.clear_captured_states(Some(&hook.id))?;
    }
    Ok(())
}

/// What the hooks of the file captured: under the point's name, or `<hook id>/<name>` where that is there already.
fn collect_others(
    hooks: &HookManager,
    ids: &[String],
    tensors: &mut BTreeMap<String, Tensor>,
) -> Result<(), CliError> {
    for id in ids {
        for state in hooks.get_captured_states(id)? {
            let mut name = state.name();
            if tensors.contains_key(&name) {
                name = format!("{id}/{name}");
            }
            tensors.insert(name, state.tensor);
        }
    }
    Ok(hooks.clear_captured_states(None)?)
}

/// What would have no effect is refused.
fn refuse_store_options(args: &CaptureArgs) -> Result<(), CliError> {
    let given = [
        (args.context.is_some(), "--context"),
        (args.positions.is_some(), "--positions"),
        (args.batch_size.is_some(), "--batch-size"),
        (args.memory_limit.is_some(), "--memory-limit"),
        (args.run.is_some(), "--run"),
    ];
    match given.iter().find(|(given, _)| *given) {
        Some((_, option)) => Err(CliError::bad_input(format!(
            "{option} is for a store, and --out {} is a file: give a directory",
            args.out.display()
        ))),
        None => Ok(()),
    }
}

fn check_out(out: &Path) -> Result<(), CliError> {
    let parent = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !parent.is_dir() {
        return Err(CliError::bad_input(format!(
            "--out {}: the directory {} does not exist",
            out.display(),
            parent.display()
        )));
    }
    Ok(check_writable(out)?)
}

fn to_tensor(tokens: &[Vec<u32>], device: &Device) -> Result<Tensor, CliError> {
    let flat: Vec<u32> = tokens.concat();
    Ok(Tensor::from_vec(flat, (tokens.len(), tokens[0].len()), device)?)
}
