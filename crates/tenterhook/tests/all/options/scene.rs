//! A run so small that hundreds of them take seconds: 6 steps in 2 epochs, a validation after every second one.

use std::path::PathBuf;

use candle_core::Device;
use tenterhook::train::config::{Document, Format};
use tenterhook::training::{Plan, Start};

use super::kinds::registry_with_test_kinds;
use crate::lab::Lab;

pub(super) const SMALL: &str = r#"
[run]
name = "run"

[model]
kind = "gpt"
vocab = 6
context = 3
d_model = 8
n_heads = 2
n_layers = 1
d_mlp = 16

[data.train]
kind = "modular_addition"
modulus = 5
train_share = 0.6
batch = 5

[data.val]
kind = "modular_addition"
modulus = 5
train_share = 0.6
batch = 5

[train]
steps = 6
validate_every = 2

[[optimizer]]
kind = "adamw"
lr = 1e-2
"#;

/// What is added to that.
pub(super) struct Config {
    pub(super) hooks: String,
    pub(super) set: Vec<&'static str>,
}

/// What a run left behind.
pub(super) struct Seen {
    pub(super) lab: Lab,
    /// How it ended, in words: status and reason, or why it could not begin.
    pub(super) end: String,
    /// What the binary wrote to standard error.
    pub(super) stderr: String,
}

impl Seen {
    pub(super) fn dir(&self) -> PathBuf {
        self.lab.run_dir("run")
    }
}

/// A run in this process, with kinds of the tests' own.
pub(super) fn inside(config: &Config) -> Seen {
    let lab = Lab::new();
    let mut document = Document::parse(&format!("{SMALL}\n{}", config.hooks), Format::Toml).unwrap();
    document.set(&format!("run.dir={}", lab.path().join("runs").display())).unwrap();
    config.set.iter().for_each(|assignment| document.set(assignment).unwrap());
    let end = match begin_and_train(&document) {
        Ok(end) | Err(end) => end.replace(&*lab.path().to_string_lossy(), ""),
    };
    Seen { lab, end, stderr: String::new() }
}

fn begin_and_train(document: &Document) -> Result<String, String> {
    let registry = registry_with_test_kinds();
    let plan = Plan::check(document, &registry).map_err(|problems| problems.to_string())?;
    let start =
        Start { plan: &plan, registry: &registry, device: &Device::Cpu, args: Vec::new(), parent: None };
    let mut begun = start.new_one().map_err(|error| error.to_string())?;
    let finished = begun.trainer.train().map_err(|error| error.to_string())?;
    Ok(format!(
        "{} after {} ({:?}){}",
        finished.status.as_str(),
        finished.steps,
        finished.reason,
        if finished.degraded { ", degraded" } else { "" }
    ))
}

/// The same with the binary, with these variables in its environment.
pub(super) fn outside(config: &Config, variables: &[(&str, &str)]) -> Seen {
    let lab = Lab::with(&format!("{SMALL}\n{}", config.hooks));
    let set = config.set.iter().flat_map(|assignment| ["--set", assignment]);
    let args: Vec<&str> = ["train", "run.toml"].into_iter().chain(set).collect();
    let mut command = lab.command(&args);
    command.env_remove("RUST_BACKTRACE").envs(variables.iter().copied());
    let ran = crate::support::Ran::of(command);
    Seen { end: format!("exit code {:?}", ran.code), stderr: ran.stderr, lab }
}
