//! `tenterhook serve`: the dashboard.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use tenterhook_train::Interrupt;

use super::dashboard::{self, DashboardArgs, OpenArgs};
use super::error::CliError;
use super::{Outcome, output, signals};

/// Show runs in a browser, also while they go on.
///
/// It reads what runs have written and changes nothing; with --control it can switch hooks of runs that go on. Only this machine sees it,
/// unless --bind and --token say otherwise. It ends at SIGINT or SIGTERM.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook serve
  tenterhook serve --runs-dir runs --port 8000 --control
  tenterhook serve --bind 0.0.0.0 --token new")]
pub(super) struct ServeArgs {
    /// The directory of all runs.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs_dir: PathBuf,
    #[command(flatten)]
    dashboard: DashboardArgs,
    #[command(flatten)]
    open: OpenArgs,
    /// Print where it is as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ServeArgs) -> Result<Outcome, CliError> {
    if args.runs_dir.exists() && !args.runs_dir.is_dir() {
        return Err(CliError::bad_input(format!(
            "{}: is not a directory of runs; --runs-dir names another",
            args.runs_dir.display()
        )));
    }
    let interrupt = Interrupt::default();
    signals::raise_on_signal(&interrupt)?;
    let server = dashboard::start(args.open.apply(args.dashboard.options(&args.runs_dir))?)?;
    if !args.runs_dir.exists() {
        output::note(&format!("{} is not there yet; it will be looked for", args.runs_dir.display()));
    }
    match args.json {
        true => output::text(&json!({ "url": server.url(), "token": server.token() }).to_string())?,
        false => dashboard::tell(&server),
    }
    while !interrupt.is_raised() {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    server.stop();
    Ok(Outcome::Done)
}
