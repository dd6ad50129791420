//! `tenterhook bench`: how fast this machine runs a model, and how near its own limit that is.

mod capture;
mod forward;
mod generate;
mod growth;
mod laps;
mod matmul;
mod measure;
mod sae;
mod sizes;
mod tokens;
mod train;

use clap::{Args, Subcommand};
use tenterhook_hooks::HookRegistry;

use super::Outcome;
use super::error::CliError;

/// Measure how fast models run, train and generate here, with hooks and without.
///
/// Every command repeats its work --repeat times after --warmup rounds that do not count, and tells the median and the shortest time of a round, tokens
/// per second and the most memory the process had. Work that is the machine's own limit stands beside it: `bench matmul` for computing,
/// `bench capture` for the disk. `RAYON_NUM_THREADS` sets the number of threads.
///
/// FLOPs are those the model's numbers need, additions and multiplications counted apart: 2 m k n for a product of [m, k] by [k, n], and for
/// attention 4 d for each pair of a query and a key that it may see, with d the size of all heads together. So causal attention counts as the half it
/// needs. Training counts three times the forward.
#[derive(Args)]
#[command(after_help = "Example: tenterhook bench forward ./gpt2 --batch 4 --seq 256 --points '*' --json")]
pub(super) struct BenchArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Forward(forward::ForwardArgs),
    Generate(generate::GenerateArgs),
    Train(train::TrainArgs),
    Matmul(matmul::MatmulArgs),
    Sae(sae::SaeArgs),
    Capture(capture::CaptureArgs),
    Growth(growth::GrowthArgs),
}

pub(super) fn run(args: &BenchArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    match &args.command {
        Command::Forward(args) => forward::run(args, registry),
        Command::Generate(args) => generate::run(args, registry),
        Command::Train(args) => train::run(args, registry),
        Command::Matmul(args) => matmul::run(args, registry),
        Command::Sae(args) => sae::run(args),
        Command::Capture(args) => capture::run(args),
        Command::Growth(args) => growth::run(args),
    }
}
