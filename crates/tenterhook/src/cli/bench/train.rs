//! `tenterhook bench train`.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use tenterhook_hooks::HookRegistry;
use tenterhook_train::config::FastDevRun;

use super::laps::Laps;
use super::measure::{Measured, RepeatArgs, tell};
use super::sizes::Sizes;
use crate::cli::error::CliError;
use crate::cli::train::{device_of, read_document, set_up_process};
use crate::cli::{Outcome, output};
use crate::training::{Plan, Start};

/// Time the optimizer steps of a configuration, with its hooks.
///
/// These are the steps that `train` takes, in a run of its own below the system's temporary directory, which is removed afterwards. A step is timed from
/// the start of its batch to the start of the next one, so that data, hooks and logs are in it. There is no validation and, unless a hook asks for
/// one, no checkpoint. It fails when a parameter that trains gets no gradient, or one that is all zeros.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook bench train run.toml --repeat 20
  tenterhook bench train run.toml --bare --set data.train.batch=4 --json")]
pub(super) struct TrainArgs {
    /// The configuration, TOML or JSON.
    config: PathBuf,
    /// Leave out the hooks of the configuration; those that every run has stay.
    #[arg(long)]
    bare: bool,
    /// Change a key of the configuration, such as data.train.batch=4.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where to compute: cpu, cuda:N or metal.
    #[arg(long)]
    device: Option<String>,
    #[command(flatten)]
    repeat: RepeatArgs,
}

pub(super) fn run(args: &TrainArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    let document = read_document(&args.config, &args.set)?;
    let runs = tempfile::tempdir()
        .map_err(|error| CliError::failed(format!("no temporary directory can be made: {error}")))?;
    let mut plan = Plan::check_new(&document, registry, Some(runs.path()))?;
    only_steps(&mut plan, args);
    let sizes = Sizes::of(&plan.model_json()?)?;
    let device = device_of(args.device.as_deref(), &plan)?;
    set_up_process(&plan);
    let start =
        Start { plan: &plan, registry, device: &device, args: std::env::args().collect(), parent: None };
    let mut trainer = start.new_one()?.trainer;
    let hooks: Vec<String> = trainer.list_hooks().into_iter().map(|hook| hook.id).collect();
    let parameters = trainer.state().model_params;
    let (laps, timing) = Laps::run(&mut trainer, &args.repeat)?;
    let degraded = !trainer.errors().is_empty();

    let flops = laps.inputs.iter().map(|dims| match dims.as_slice() {
        [batch, seq] => 3.0 * sizes.forward_flops(*batch, *seq),
        _ => 0.0,
    });
    let measured = Measured {
        timing,
        tokens: laps.tokens as f64,
        flops: Some(flops.sum()),
        peak_rss_mb: laps.peak_rss_mb,
    };
    if args.repeat.json {
        output::json(&measured.to_json(json!({
            "inputs": laps.inputs,
            "losses": laps.losses,
            "parameters": parameters,
            "tensors_with_gradient": laps.parameters,
            "hooks": hooks,
        })))?;
    } else {
        let mut lines = measured.lines();
        let shown = |loss: &f64| format!("{loss:.4}");
        let (first, last) = (laps.losses.first().map(shown), laps.losses.last().map(shown));
        lines.push(("loss", format!("{} to {}", first.unwrap_or_default(), last.unwrap_or_default())));
        lines.push(("gradients", format!("all {} parameters have one", laps.parameters)));
        lines.push(("hooks", hooks.join(", ")));
        tell(
            &format!("{} steps of {parameters} parameters on {:?} tokens", args.repeat.repeat, laps.inputs),
            &lines,
        )?;
    }
    Ok(if degraded { Outcome::Degraded } else { Outcome::Done })
}

/// Enough steps, and nothing between them.
fn only_steps(plan: &mut Plan, args: &TrainArgs) {
    let needed = (args.repeat.warmup.saturating_add(args.repeat.repeat) as u64).saturating_add(1);
    let config = &mut plan.config;
    config.run.name = None;
    if args.bare {
        config.hooks.clear();
    }
    let train = &mut config.train;
    // A longer run keeps its length, which its schedule may go by.
    train.steps = Some(train.steps.unwrap_or(0).max(needed));
    train.epochs = None;
    train.fast_dev_run = FastDevRun::default();
    train.max_time = None;
    (train.validate_every, train.validate_first, train.checkpoint_every) = (None, false, None);
}
