//! `tenterhook runs rerun`.

use std::path::Path;

use clap::Args;
use serde_json::json;
use tenterhook_hooks::HookRegistry;
use tenterhook_record::metrics::{self, Number, Row};
use tenterhook_record::name::check_run_name;
use tenterhook_record::run::{RunDir, RunRecord};
use tenterhook_train::config::Document;

use super::Common;
use super::compare::{Comparison, Differs, compare};
use super::show::resume_command;
use crate::cli::carry_out::{Ended, carry_out};
use crate::cli::error::CliError;
use crate::cli::train::{device_of, set_up_process};
use crate::cli::{Outcome, output};
use crate::training::{Origin, Place, Plan, Start};

/// Do a run again from its record, and compare the losses bit for bit.
///
/// The new run stands beside the old one, whose id it has as its parent. Exit code 0: all losses that both runs have are the same; 1: they
/// are not, and the first that differs is told.
#[derive(Args)]
#[command(after_help = "Example: tenterhook runs rerun baseline --name baseline-again")]
pub(super) struct RerunArgs {
    /// The run: its id, a unique beginning of it, or its directory.
    run: String,
    /// The name of the new run.
    #[arg(long)]
    name: Option<String>,
    /// Where to compute: cpu, cuda:N or metal.
    #[arg(long)]
    device: Option<String>,
    /// No progress bar.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    common: Common,
}

pub(super) fn run(args: &RerunArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    let (dir, summary) = args.common.open(&args.run)?;
    let id = dir.id();
    if summary.is_live() {
        return Err(CliError::bad_input(format!("run {id} is still training: wait for its end, or stop it")));
    }
    if let Some(problem) = &summary.problem {
        return Err(CliError::bad_input(format!("there is nothing to compare with: {problem}")));
    }
    let runs = dir.path().parent().unwrap_or(Path::new("."));
    let (document, left_out) = Document::read(&dir.config_path())?.without_secret_hooks()?;
    for hook in left_out {
        output::note(&format!(
            "WARNING: the hook `{hook}` is left out: its secret is not in the record (`url_env` in place of `url` keeps it out of files)"
        ));
    }
    let mut plan = Plan::check(&document, registry)?;
    plan.config.run.dir = runs.to_path_buf();
    plan.config.run.name.clone_from(&args.name);
    check_place(runs, args.name.as_deref())?;
    let origin = Origin::of(&summary.record, runs)?;
    let doubts = doubts(&summary.record);
    doubts.iter().for_each(|doubt| output::note(&format!("WARNING: {doubt}")));

    let device = device_of(args.device.as_deref(), &plan)?;
    set_up_process(&plan);
    let (given, parent) = (std::env::args().collect(), Some(id.to_string()));
    let start = Start { plan: &plan, registry, device: &device, args: given, parent };
    let begun = start.repeat(&summary.record, origin.as_ref())?;
    let ended = carry_out(begun, args.quiet, args.common.json)?;

    let again = RunDir::open(&ended.begun.run_dir)?;
    let comparison = compare(&rows_of(&dir)?, &rows_of(&again)?);
    if args.common.json {
        let mut told = ended.to_json();
        told["parent"] = json!(id);
        told["comparison"] = json!(comparison);
        output::json(&told)?;
    } else {
        ended.tell(&resume_command(&again));
    }
    conclude(id, &ended, &comparison, &doubts, args.common.json)
}

/// The metrics of a run, which may have been killed before its first.
fn rows_of(dir: &RunDir) -> Result<Vec<Row>, CliError> {
    let path = dir.metrics_path();
    if !path.exists() {
        return Ok(Vec::new());
    }
    metrics::read(&path).map_err(|error| CliError::failed(error.to_string()))
}

fn check_place(runs: &Path, name: Option<&str>) -> Result<(), CliError> {
    if let Some(Err(error)) = name.map(check_run_name) {
        return Err(CliError::bad_input(format!("--name: {error}")));
    }
    match (Place { runs, name }).problem() {
        None => Ok(()),
        Some((key, _)) if key == "name" => {
            Err(CliError::bad_input(format!("--name: there is such a run already in {}", runs.display())))
        }
        Some((_, problem)) => Err(CliError::bad_input(problem)),
    }
}

fn conclude(
    id: &str,
    ended: &Ended,
    comparison: &Comparison,
    doubts: &[String],
    as_json: bool,
) -> Result<Outcome, CliError> {
    let Comparison { compared, up_to_step, first, .. } = comparison;
    if let Some(Differs { step, name, original, rerun }) = first {
        let value =
            |value: &Option<Number>| value.map_or("none".to_string(), |value| format!("{:?}", value.0));
        let mut message = format!(
            "the losses are not those of run {id}: the first that differs is `{name}` at step {step}: {} then, {} now",
            value(original),
            value(rerun)
        );
        for doubt in doubts {
            message.push_str(&format!("\n  {doubt}"));
        }
        return Err(CliError::failed(message));
    }
    let outcome = ended.outcome()?;
    if !as_json {
        output::note(&match compared {
            0 => format!("run {id} has no losses to compare with"),
            _ => format!("identical to run {id}: {compared} losses up to step {up_to_step}, bit for bit"),
        });
    }
    Ok(outcome)
}

/// What may make the losses come out different, though the configuration is the recorded one.
fn doubts(record: &RunRecord) -> Vec<String> {
    let mut doubts = Vec::new();
    let hashes = record.attempts.iter().map(|attempt| &attempt.config_hash);
    if hashes.clone().any(|hash| Some(hash) != hashes.clone().next()) {
        doubts.push(
            "the run was resumed with a changed configuration, of which the last form is recorded: what it did before may come out \
             different"
                .to_string(),
        );
    }
    for (name, now) in tenterhook_train::versions() {
        match record.versions.get(&name) {
            Some(then) if *then != now => {
                doubts.push(format!("it was made with {name} {then}, this is {now}"));
            }
            _ => {}
        }
    }
    doubts
}
