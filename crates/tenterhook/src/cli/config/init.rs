//! `tenterhook config init`.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use clap::Args;
use tenterhook_train::config::DEFAULT_TOML;

use crate::cli::error::CliError;
use crate::cli::{Outcome, output};

/// Print a configuration that runs as it is: every key with its default, and what it is for.
#[derive(Args)]
#[command(after_help = "Example: tenterhook config init > run.toml && tenterhook train run.toml")]
pub(super) struct InitArgs {
    /// Write it to this file, which must not be there yet.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(super) fn run(args: &InitArgs) -> Result<Outcome, CliError> {
    let Some(path) = &args.out else {
        output::text(DEFAULT_TOML)?;
        return Ok(Outcome::Done);
    };
    let shown = path.display();
    let written = OpenOptions::new().write(true).create_new(true).open(path);
    match written.and_then(|mut file| file.write_all(DEFAULT_TOML.as_bytes())) {
        Ok(()) => output::note(&format!("wrote {shown}; train it with `tenterhook train {shown}`")),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(CliError::bad_input(format!(
                "{shown} is there already and stays as it is; give another name, or remove it first"
            )));
        }
        Err(error) => return Err(CliError::bad_input(format!("{shown} cannot be written: {error}"))),
    }
    Ok(Outcome::Done)
}
