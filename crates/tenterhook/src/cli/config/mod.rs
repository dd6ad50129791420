//! `tenterhook config`: checking a configuration, its schema, and one to begin with.

mod check;
mod init;

use clap::{Args, Subcommand};
use tenterhook_hooks::HookRegistry;

use super::error::CliError;
use super::{Outcome, output};

/// Check a configuration, print its schema, or one to begin with.
#[derive(Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand)]
enum ConfigCommand {
    Check(check::CheckArgs),
    Schema(SchemaArgs),
    Init(init::InitArgs),
}

/// Print the JSON schema of configurations, for editors.
#[derive(Args)]
#[command(after_help = "Example: tenterhook config schema > tenterhook.schema.json
In VS Code (Even Better TOML), the first line of run.toml: #:schema ./tenterhook.schema.json")]
struct SchemaArgs {
    /// Print JSON, which it always does.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ConfigArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    match &args.command {
        ConfigCommand::Check(args) => check::run(args, registry),
        ConfigCommand::Init(args) => init::run(args),
        ConfigCommand::Schema(SchemaArgs { json: _ }) => {
            output::json(&crate::training::schema(registry))?;
            Ok(Outcome::Done)
        }
    }
}
