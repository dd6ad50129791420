//! `tenterhook demo`: induction heads form, and are ablated.

mod chart;
mod show;
mod story;

use std::path::{Path, PathBuf};
use std::time::Instant;

use candle_core::Device;
use clap::Args;
use clap::value_parser;
use serde_json::{Value, json};
use tenterhook_dashboard::Server;
use tenterhook_hooks::{HookRegistry, RunStatus};
use tenterhook_record::run::RunDir;

use super::carry_out::{Ended, carry_out};
use super::dashboard::DashboardArgs;
use super::error::CliError;
use super::progress::Working;
use super::runs::resume_command;
use super::{Outcome, output};
use crate::demo::{Demo, DemoError, Finding};
use crate::training::Start;

/// The demonstration to begin with: a small transformer learns to repeat, and you see how.
///
/// Trains two layers of attention for half a minute, with hooks attached, on random sequences that repeat. Induction heads form, suddenly:
/// heads that look for what followed the same token before. Then it ablates them, and as many other heads, and shows the difference.
/// What it leaves is a run like any other.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook demo
  tenterhook demo --seed 7 --json --quiet")]
pub(super) struct DemoArgs {
    /// Decides everything random.
    #[arg(long, value_name = "N", default_value_t = Demo::default().seed)]
    seed: u64,
    /// Optimizer steps.
    #[arg(long, value_name = "N", default_value_t = Demo::STEPS, value_parser = value_parser!(u64).range(1..=1_000_000))]
    steps: u64,
    /// The directory of all runs.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs_dir: PathBuf,
    /// No dashboard while it runs.
    #[arg(long, conflicts_with = "port")]
    no_serve: bool,
    /// The port of the dashboard. Where it is taken, any free one.
    #[arg(long, value_name = "PORT", default_value_t = 7878)]
    port: u16,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Only the result.
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: &DemoArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    let began = Instant::now();
    let demo = Demo { seed: args.seed, steps: args.steps, runs_dir: args.runs_dir.clone() };
    let plan = demo.plan(registry)?;
    let device = Device::Cpu;
    let args_given = std::env::args().collect();
    let start = Start { plan: &plan, registry, device: &device, args: args_given, parent: None };
    let mut begun = start.new_one()?;
    let dashboard = if args.no_serve { None } else { serve(args.port, &args.runs_dir) };
    if !args.quiet {
        output::note(&story::begin(&demo, &begun.run_dir, dashboard.as_ref().map(Server::url)));
        begun.trainer.add_hook(show::Show::new(demo.steps))?;
    }
    let ended = carry_out(begun, true, args.json)?;
    if ended.status() != RunStatus::Completed {
        return not_finished(&ended, args.json);
    }
    let finding = {
        let _working = (!args.quiet).then(|| Working::on("ablating heads"));
        Finding::of(&ended.begun.run_dir, registry, &device)?
    };
    let seconds = began.elapsed().as_secs_f64();
    match args.json {
        true => output::json(&told(&ended, &demo, &finding, seconds))?,
        false => output::text(&story::end(&demo, &ended.begun.run_dir, &finding, seconds))?,
    }
    ended.outcome()
}

/// A dashboard beside the demonstration, at this port or at any free one. It goes on without where there can be none.
fn serve(port: u16, runs_dir: &Path) -> Option<Server> {
    let start = |port| {
        let args = DashboardArgs { port: Some(port), control: false };
        Server::start(args.options(runs_dir))
    };
    start(port).or_else(|_| start(0)).map_err(|error| output::note(&format!("no dashboard: {error}"))).ok()
}

/// A run that was interrupted, or failed: there is nothing to look at yet.
fn not_finished(ended: &Ended, as_json: bool) -> Result<Outcome, CliError> {
    match as_json {
        true => output::json(&ended.to_json())?,
        false => ended.tell(&resume_command(&RunDir::open(&ended.begun.run_dir)?)),
    }
    ended.outcome()
}

/// The result as data.
fn told(ended: &Ended, demo: &Demo, finding: &Finding, seconds: f64) -> Value {
    let mut told = json!(finding);
    told["run_id"] = json!(ended.begun.run_id);
    told["dir"] = json!(ended.begun.run_dir);
    told["seed"] = json!(demo.seed);
    told["steps"] = json!(ended.begun.trainer.step());
    told["seconds"] = json!(seconds);
    told["ratio"] = json!(finding.ratio());
    told
}

impl From<DemoError> for CliError {
    fn from(error: DemoError) -> Self {
        Self::failed(error.to_string())
    }
}
