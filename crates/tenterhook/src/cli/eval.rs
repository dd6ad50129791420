//! `tenterhook eval`: validation and nothing else.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use tenterhook_hooks::HookRegistry;
use tenterhook_record::checkpoints;
use tenterhook_record::run::{self, RunDir, RunError};
use tenterhook_train::Trainer;

use super::error::CliError;
use super::train::{check_plan, device_of, read_document, set_up_process};
use super::{Outcome, output};
use crate::training::newest_checkpoint;

/// Validate a model: that of a configuration, or of a run's newest checkpoint.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook eval run.toml --set model.from=./gpt2
  tenterhook eval runs/0198f0a2-7c3e --json")]
pub(super) struct EvalArgs {
    /// A configuration, or a run: its id, a unique beginning of it, or its directory.
    #[arg(value_name = "CONFIG|RUN")]
    what: String,
    /// Change a key of the configuration, such as train.validate_batches=10.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The directory of all runs.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs_dir: PathBuf,
    /// Which checkpoint of the run, by its name; by default the newest.
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,
    /// Where to compute: cpu, cuda:N or metal.
    #[arg(long)]
    device: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &EvalArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    let as_file = PathBuf::from(&args.what);
    let run = match as_file.is_file() {
        true => None,
        false => Some(RunDir::open(&find_run(&args.runs_dir, &args.what)?)?),
    };
    let config = run.as_ref().map_or(as_file, RunDir::config_path);
    let mut document = read_document(&config, &args.set)?;
    if run.is_some() {
        let (told, left_out) = document.without_secret_hooks()?;
        for id in left_out {
            output::note(&format!("without the hook `{id}`: its secrets are not recorded"));
        }
        document = told;
    }
    let plan = check_plan(&document, None, registry)?;
    if plan.config.data.val.is_empty() {
        return Err(CliError::bad_input(
            "the configuration has no [data.val]: there is nothing to validate on",
        ));
    }
    let device = device_of(args.device.as_deref(), &plan)?;
    set_up_process(&plan);
    let mut trainer = plan.evaluator(registry, &device)?;
    let mut from = None;
    if let Some(run) = &run {
        from = Some(restore(&mut trainer, run, args.checkpoint.as_deref())?);
    }
    let metrics = trainer.evaluate().map_err(|error| CliError::failed(error.to_string()))?;
    if args.json {
        output::json(&json!({ "checkpoint": from, "step": trainer.step(), "metrics": metrics }))?;
    } else {
        let rows: Vec<Vec<String>> =
            metrics.iter().map(|(name, value)| vec![name.clone(), format!("{value:.6}")]).collect();
        output::text(&output::table(&["metric", "value"], &rows))?;
    }
    let degraded = !trainer.errors().is_empty();
    Ok(if degraded { Outcome::Degraded } else { Outcome::Done })
}

/// Whoever misspells the name of a file is not looking for a run.
fn find_run(runs: &Path, wanted: &str) -> Result<PathBuf, CliError> {
    run::find(runs, wanted).map_err(|error| match error {
        RunError::NotFound { .. } => {
            CliError::bad_input(format!("there is no file `{wanted}`, and in {error}"))
        }
        error => error.into(),
    })
}

/// Puts the weights of a run's checkpoint into the model, and says which one it is.
fn restore(trainer: &mut Trainer, run: &RunDir, name: Option<&str>) -> Result<PathBuf, CliError> {
    let Some(name) = name else {
        let (checkpoint, skipped) = newest_checkpoint(run, |path| trainer.restore_weights(path))?;
        let skipped = skipped.iter().map(|(skipped, problem)| (skipped.name.as_str(), problem.as_str()));
        output::damaged_checkpoints(skipped, Some((&checkpoint.name, checkpoint.step.unwrap_or(0))));
        return Ok(checkpoint.path);
    };
    let dir = run.checkpoints();
    let bad = |error: checkpoints::CheckpointError| CliError::bad_input(error.to_string());
    let known = checkpoints::list(&dir).map_err(bad)?;
    let Some(found) = known.iter().find(|checkpoint| checkpoint.name == name) else {
        let names: Vec<&str> = known.iter().map(|checkpoint| checkpoint.name.as_str()).collect();
        return Err(CliError::bad_input(format!(
            "no checkpoint is called `{name}`; there are {}",
            names.join(", ")
        )));
    };
    checkpoints::verify(&found.path).map_err(bad)?;
    trainer.restore_weights(&found.path).map_err(|error| CliError::bad_input(error.to_string()))?;
    Ok(found.path.clone())
}
