//! A dashboard beside a command, or as one.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use tenterhook_dashboard::{Options, Server, StartError};

use super::error::CliError;
use super::output;

/// Where a dashboard listens, and what it may do.
#[derive(Args)]
pub(super) struct DashboardArgs {
    /// The port of the dashboard, 0 for any free one. Without it 7878, or any free one when that is taken.
    #[arg(long, value_name = "PORT")]
    pub(super) port: Option<u16>,
    /// Let hooks of runs that go on be switched on and off in the dashboard, with a token that is printed.
    #[arg(long)]
    pub(super) control: bool,
}

impl DashboardArgs {
    /// A dashboard of a directory of runs, for this machine alone.
    pub(super) fn options(&self, runs_dir: &Path) -> Options {
        Options { port: self.port, control: self.control, ..Options::new(runs_dir) }
    }

    /// Starts a dashboard beside a command, and says where it is. It ends when it is dropped.
    pub(super) fn start(&self, runs_dir: &Path) -> Result<Server, CliError> {
        let server = start(self.options(runs_dir))?;
        tell(&server);
        Ok(server)
    }
}

/// Who may reach it, where that is not this machine alone.
#[derive(Args)]
pub(super) struct OpenArgs {
    /// The address to listen at. Any but a loopback address lets other machines in, and needs --token.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(super) bind: IpAddr,
    /// What a browser must know to see anything from another machine, or to change anything: `new`, or 16 to 256 letters, digits, `-` and `_`.
    #[arg(long, value_name = "TOKEN")]
    pub(super) token: Option<String>,
    /// A directory of captured activations to show: safetensors files, and stores of `tenterhook capture`.
    #[arg(long, value_name = "DIR")]
    pub(super) captures: Option<PathBuf>,
}

impl OpenArgs {
    /// Adds what was said here.
    pub(super) fn apply(&self, options: Options) -> Result<Options, CliError> {
        let token = match self.token.as_deref() {
            Some("new") => Some(Options::new_token()?),
            token => token.map(str::to_string),
        };
        Ok(Options { address: self.bind, token, captures: self.captures.clone(), ..options })
    }
}

pub(super) fn start(options: Options) -> Result<Server, CliError> {
    if options.is_open() && options.token.is_some() {
        output::note("WARNING: other machines can reach this dashboard, and the connection is not encrypted");
    }
    Ok(Server::start(options)?)
}

/// Says where a dashboard is.
pub(super) fn tell(server: &Server) {
    output::note(&format!("dashboard at {}", server.url()));
    if let Some(token) = server.token() {
        output::note(&format!("token: {token}"));
    }
}

impl From<StartError> for CliError {
    fn from(error: StartError) -> Self {
        Self::bad_input(error.to_string())
    }
}
