//! `tenterhook runs`: what runs left on the disk, doing one again, and switching hooks of one that goes on.

mod compare;
mod diff;
mod hooks;
mod list;
mod rerun;
mod show;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tenterhook_hooks::HookRegistry;
use tenterhook_record::metrics::Number;
use tenterhook_record::run::{self, RunDir, Summary};

use super::Outcome;
use super::error::CliError;
pub(super) use show::resume_command;

/// Look at runs, compare them, do one again, switch the hooks of one that goes on.
///
/// RUN is an id, a unique beginning of one, or a directory.
#[derive(Args)]
pub(super) struct RunsArgs {
    #[command(subcommand)]
    command: RunsCommand,
}

#[derive(Subcommand)]
enum RunsCommand {
    List(list::ListArgs),
    Show(show::ShowArgs),
    Diff(diff::DiffArgs),
    Rerun(rerun::RerunArgs),
    Hooks(hooks::HooksArgs),
}

/// What all of these commands have.
#[derive(Args)]
struct Common {
    /// The directory of all runs.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs_dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Common {
    /// The directory of a run, and what can be said about it.
    fn open(&self, wanted: &str) -> Result<(RunDir, Summary), CliError> {
        let dir = RunDir::open(&run::find(&self.runs_dir, wanted)?)?;
        let summary = Summary::read(&dir)?;
        Ok((dir, summary))
    }
}

pub(super) fn run(args: &RunsArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    match &args.command {
        RunsCommand::List(args) => list::run(args),
        RunsCommand::Show(args) => show::run(args),
        RunsCommand::Diff(args) => diff::run(args),
        RunsCommand::Rerun(args) => rerun::run(args, registry),
        RunsCommand::Hooks(args) => hooks::run(args),
    }
}

/// The first characters of a digest, which are enough to tell few from each other.
fn short(digest: &str) -> String {
    super::output::printable(&digest.chars().take(8).collect::<String>())
}

/// A number as a table shows it.
fn shown(value: Number) -> String {
    match value.0.abs() {
        size if size != 0.0 && !(1e-3..1e6).contains(&size) => format!("{:.4e}", value.0),
        _ => format!("{:.4}", value.0),
    }
}
