//! `tenterhook train`: a run from a configuration.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use tenterhook_hooks::{HookRegistry, RunStatus};
use tenterhook_record::run;
use tenterhook_train::config::Document;
use tenterhook_train::{Finished, Interrupt, TrainError};

use super::error::CliError;
use super::{Outcome, device, output, signals};
use crate::training::{Begun, Plan, Start};

/// Train a model from a configuration.
///
/// SIGINT, SIGTERM and SIGUSR1 end the step, save and leave with exit code 75; a second signal leaves at once.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook config init > run.toml && tenterhook train run.toml
  tenterhook train run.toml --set train.steps=1000 --set optimizer.0.lr=1e-3
  tenterhook train run.toml --resume")]
pub(super) struct TrainArgs {
    /// The configuration, TOML or JSON.
    config: PathBuf,
    /// Go on with a run: an id, a unique beginning of one, or a directory; without one, the newest run of this configuration.
    #[arg(long, value_name = "RUN", num_args = 0..=1, conflicts_with = "fork")]
    resume: Option<Option<String>>,
    /// Begin a new run from another one's newest checkpoint.
    #[arg(long, value_name = "RUN")]
    fork: Option<String>,
    /// Change a key of the configuration, such as train.steps=100.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The directory of all runs, in place of the configuration's.
    #[arg(long, value_name = "DIR")]
    runs_dir: Option<PathBuf>,
    /// Where to compute: cpu, cuda:N or metal.
    #[arg(long)]
    device: Option<String>,
    /// No progress bar.
    #[arg(long, short)]
    quiet: bool,
    /// Print how the run ended as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &TrainArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    let plan = read_plan(&args.config, &args.set, args.runs_dir.as_deref(), registry)?;
    let device = device_of(args.device.as_deref(), &plan)?;
    use_threads(&plan)?;
    let args_given = std::env::args().collect();
    let start = Start { plan: &plan, registry, device: &device, args: args_given, parent: None };
    let runs = &plan.config.run.dir;
    let begun = match (&args.resume, &args.fork) {
        (Some(run), _) => {
            let begun = start.resume(&find_run(runs, run.as_deref(), plan.config.run.name.as_deref())?)?;
            if begun.resumed.is_none() {
                output::note("WARNING: the run was cut off before its first checkpoint; it begins again");
            }
            begun
        }
        (None, Some(run)) => start.fork(&run::find(runs, run)?)?,
        (None, None) => start.new_one()?,
    };
    let resume = format!("tenterhook train {} --resume {}", args.config.display(), begun.run_dir.display());
    carry_out(begun, args.quiet, args.json, &resume)
}

/// Trains, with signals heard and the end told.
pub(super) fn carry_out(
    mut begun: Begun,
    quiet: bool,
    as_json: bool,
    resume: &str,
) -> Result<Outcome, CliError> {
    tell_begin(&begun, quiet || as_json);
    let interrupt = Interrupt::default();
    signals::raise_on_signal(&interrupt)?;
    let mut trainer = begun.trainer.with_interrupt(interrupt);
    // Without a terminal the bar is lines of text, and those of `console_log` are enough.
    let shows =
        |kind: &str| kind == "progress" || (kind == "console_log" && !std::io::stderr().is_terminal());
    if !quiet && !trainer.list_hooks().iter().any(|hook| shows(&hook.kind)) {
        trainer.add_hook_from(&crate::training::registry(), &json!({ "kind": "progress" }))?;
    }
    let result = trainer.train();
    begun.trainer = trainer;
    tell_end(&begun, &result, as_json, resume)?;
    match result {
        Ok(Finished { status: RunStatus::Interrupted, .. }) => Ok(Outcome::Interrupted),
        Ok(Finished { degraded: true, .. }) => Ok(Outcome::Degraded),
        Ok(_) => Ok(Outcome::Done),
        Err(error) => Err(CliError::failed(error.to_string())),
    }
}

fn tell_begin(begun: &Begun, quiet: bool) {
    for (name, problem) in &begun.skipped {
        output::note(&format!("WARNING: the checkpoint {name} is damaged and is not used: {problem}"));
    }
    if let (Some((name, step)), false) = (&begun.resumed, begun.skipped.is_empty()) {
        output::note(&format!("WARNING: an older checkpoint is used in its place: {name}, step {step}"));
    }
    if quiet {
        return;
    }
    let from = begun.resumed.as_ref().map(|(name, step)| format!(", going on after step {step} from {name}"));
    output::note(&format!("run {} in {}{}", begun.run_id, begun.run_dir.display(), from.unwrap_or_default()));
}

fn tell_end(
    begun: &Begun,
    result: &Result<Finished, TrainError>,
    as_json: bool,
    resume: &str,
) -> Result<(), CliError> {
    let state = begun.trainer.state();
    let status = result.as_ref().map_or(RunStatus::Error, |finished| finished.status);
    let reason = match result {
        Ok(finished) => finished.reason.clone(),
        Err(error) => Some(error.to_string()),
    };
    if as_json {
        return output::json(&json!({
            "run_id": begun.run_id,
            "dir": begun.run_dir,
            "status": status,
            "reason": reason,
            "degraded": result.as_ref().map_or(true, |finished| finished.degraded),
            "steps": begun.trainer.step(),
            "metrics": state.metrics,
        }));
    }
    let named = ["loss", "train/loss", "val/loss", "val/accuracy"];
    let shown = named.iter().filter_map(|name| Some(format!("{name} {:.4}", state.metrics.get(*name)?)));
    let mut text = format!(
        "{} after {} steps{}\n",
        status.as_str(),
        begun.trainer.step(),
        reason.filter(|_| result.is_ok()).map(|reason| format!(" ({reason})")).unwrap_or_default(),
    );
    text.push_str(&format!("  {}\n", shown.collect::<Vec<_>>().join("  ")));
    text.push_str(&format!("  metrics      {}\n", begun.run_dir.join("metrics.jsonl").display()));
    text.push_str(&format!("  checkpoints  {}\n", begun.run_dir.join("checkpoints").display()));
    let failures = begun.trainer.errors();
    if let Some(first) = failures.first() {
        text.push_str(&format!("  {} failures of hooks, the first: {first}\n", failures.len()));
    }
    if matches!(status, RunStatus::Interrupted | RunStatus::Error) {
        text.push_str(&format!("  to go on     {resume}\n"));
    }
    output::note(text.trim_end());
    Ok(())
}

/// The newest run, or the one that is meant.
fn find_run(runs: &Path, wanted: Option<&str>, name: Option<&str>) -> Result<PathBuf, CliError> {
    if let Some(wanted) = wanted.or(name) {
        return Ok(run::find(runs, wanted)?);
    }
    let newest = run::list(runs)?.into_iter().find(|listed| listed.record.is_ok());
    newest.map(|listed| listed.path).ok_or_else(|| {
        CliError::bad_input(format!(
            "there is no run to resume in {}; start one without --resume",
            runs.display()
        ))
    })
}

/// Reads and checks a configuration with the overrides of the command line.
pub(super) fn read_plan(
    config: &Path,
    set: &[String],
    runs_dir: Option<&Path>,
    registry: &HookRegistry,
) -> Result<Plan, CliError> {
    let mut document = Document::read(config)?;
    for assignment in set {
        document.set(assignment)?;
    }
    let mut plan = Plan::check(&document, registry)?;
    if let Some(dir) = runs_dir {
        plan.config.run.dir = dir.to_path_buf();
    }
    Ok(plan)
}

pub(super) fn device_of(given: Option<&str>, plan: &Plan) -> Result<candle_core::Device, CliError> {
    device::parse(given.or(plan.config.train.device.as_deref()).unwrap_or("cpu"))
}

pub(super) fn use_threads(plan: &Plan) -> Result<(), CliError> {
    let Some(threads) = plan.config.train.threads else { return Ok(()) };
    // Another pool may be there already when a user's own main calls us; then that one is meant.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    Ok(())
}
