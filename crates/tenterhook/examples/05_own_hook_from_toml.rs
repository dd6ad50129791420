//! A hook of your own in a configuration file: `cargo run --example 05_own_hook_from_toml`.
//!
//! With arguments this program is `tenterhook` with one kind of hook more: `... 05_own_hook_from_toml train run.toml`.

#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Deserialize;
use tenterhook::hooks::{BoxError, hook_fn};
use tenterhook::{cli, train::config::DEFAULT_TOML, training};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct QuietOptions {
    /// Where.
    points: String,
    /// What the values are multiplied by.
    by: f64,
}

fn main() -> Result<ExitCode, BoxError> {
    let mut registry = training::registry();
    registry.register::<QuietOptions>("my_crate.Quiet", "makes activations smaller", |options| {
        Ok(Box::new(hook_fn::edit(options.points, move |_, x, _| Ok(Some((x * options.by)?)))))
    })?;
    if std::env::args().len() > 1 {
        return Ok(cli::main_with(registry));
    }

    // No arguments: a few steps with the hook, and what it did.
    let dir = tempfile::tempdir()?;
    let (config, runs) = (dir.path().join("run.toml"), dir.path().join("runs"));
    let hook = "[[hooks]]\nkind = \"my_crate.Quiet\"\nid = \"quiet\"\npoints = \"blocks.*.hook_mlp_out\"\nby = 0.5\n";
    std::fs::write(&config, format!("{DEFAULT_TOML}\n{hook}"))?;
    let args =
        ["train", "--quiet", "--set", "train.fast_dev_run=true", "--set", "run.name=quiet", "--runs-dir"];
    let args =
        std::iter::once("tenterhook").chain(args).map(Into::into).chain([runs.clone().into(), config.into()]);
    let code = cli::run_with::<std::ffi::OsString>(registry, args);
    let receipts = std::fs::read_to_string(runs.join("quiet/receipts.json"))?;
    let receipts: Vec<serde_json::Value> = serde_json::from_str(&receipts)?;
    let receipt = receipts.iter().find(|hook| hook["id"] == "quiet").ok_or("no receipt")?;
    println!(
        "hook {}: called {} times, changed {} numbers",
        receipt["id"], receipt["fired"], receipt["elements_changed"]
    );
    Ok(code)
}
