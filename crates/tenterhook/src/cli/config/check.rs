//! `tenterhook config check`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tenterhook_hooks::HookRegistry;
use tenterhook_train::config::{Line, Problem, Problems};

use crate::cli::error::CliError;
use crate::cli::train::{device_of, read_document, set_up_process};
use crate::cli::{Outcome, output};
use crate::training::{Outline, Plan};

/// Find everything that is wrong with a configuration, without starting a run.
///
/// The model is built, the data opened and the hooks attached, as `train` would do it; nothing is made on the disk.
#[derive(Args)]
#[command(after_help = "Example: tenterhook config check run.toml --set train.steps=1000")]
pub(super) struct CheckArgs {
    /// The configuration, TOML or JSON.
    config: PathBuf,
    /// Change a key of the configuration, such as train.steps=100.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The directory of all runs, in place of the configuration's.
    #[arg(long, value_name = "DIR")]
    runs_dir: Option<PathBuf>,
    /// Where to compute: cpu, cuda:N or metal.
    #[arg(long)]
    device: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &CheckArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    match (check(args, registry)?, args.json) {
        (Ok(outline), true) => output::json(&json!({ "ok": true, "outline": outline }))?,
        (Ok(outline), false) => output::text(&in_words(args, &outline))?,
        (Err(problems), as_json) => {
            if as_json {
                let list: Vec<Value> = problems.iter().map(problem_json).collect();
                output::json(&json!({ "ok": false, "problems": list }))?;
            }
            return Err(problems.into());
        }
    }
    Ok(Outcome::Done)
}

fn check(args: &CheckArgs, registry: &HookRegistry) -> Result<Result<Outline, Problems>, CliError> {
    let document = match read_document(&args.config, &args.set) {
        Ok(document) => document,
        Err(problems) => return Ok(Err(problems)),
    };
    let plan = match Plan::check_new(&document, registry, args.runs_dir.as_deref()) {
        Ok(plan) => plan,
        Err(problems) => return Ok(Err(problems)),
    };
    let device = device_of(args.device.as_deref(), &plan)?;
    set_up_process(&plan);
    Ok(plan.outline(registry, &device))
}

fn problem_json(problem: &Problem) -> Value {
    let (line, column, set) = match problem.line {
        Some(Line::At(line)) => (Some(line), None, false),
        Some(Line::Exactly(line, column)) => (Some(line), Some(column), false),
        Some(Line::Set) => (None, None, true),
        None => (None, None, false),
    };
    json!({
        "path": problem.path,
        "line": line,
        "column": column,
        "on_command_line": set,
        "message": problem.message,
        "suggestion": problem.suggestion,
    })
}

fn in_words(args: &CheckArgs, outline: &Outline) -> String {
    format!(
        "{} is good: {} parameters, {} steps, {} batches in an epoch, hooks: {}",
        args.config.display(),
        outline.parameters,
        outline.steps,
        outline.batches_per_epoch,
        outline.hooks.join(", ")
    )
}
