//! `tenterhook sae`: sparse autoencoders.

mod eval;
mod run;
mod texts;
mod top;
mod train;

use clap::{Args, Subcommand};
use tenterhook_hooks::HookRegistry;
use tenterhook_sae::SaeError;

use super::Outcome;
use super::error::CliError;

/// Train sparse autoencoders on a model's activations, measure them, and see what their latents are active on.
///
/// Autoencoders are directories as SAELens writes and reads them. To steer a latent while a model generates, use the hook kind `sae` in a
/// hooks file: `tenterhook hooks sae`.
#[derive(Args)]
#[command(
    after_help = "Example: tenterhook sae train ./gpt2 --points blocks.8.hook_resid_pre --file texts.txt --tokens 1000000 --out runs/sae"
)]
pub(super) struct SaeArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(Box<train::TrainArgs>),
    Eval(eval::EvalArgs),
    Top(top::TopArgs),
}

pub(super) fn run(args: &SaeArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    match &args.command {
        Command::Train(args) => train::run(args, registry),
        Command::Eval(args) => eval::run(args, registry),
        Command::Top(args) => top::run(args),
    }
}

impl From<SaeError> for CliError {
    fn from(error: SaeError) -> Self {
        match error {
            SaeError::Lens(error) => (*error).into(),
            SaeError::Train(_) | SaeError::Engine(_) => Self::failed(error.to_string()),
            _ => Self::bad_input(error.to_string()),
        }
    }
}
