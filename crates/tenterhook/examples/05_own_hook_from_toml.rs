//! A hook of one's own in a run, configured in TOML beside the built-in ones: `cargo run --example 05_own_hook_from_toml`.
//!
//! A `main` that ends with `tenterhook::cli::main_with(registry)` instead has every command of the `tenterhook` binary.

#![allow(clippy::print_stdout)]

use candle_core::Device;
use schemars::JsonSchema;
use serde::Deserialize;
use tenterhook::hooks::{BatchInfo, BoxError, Cx, Hook, HookResult, Request};
use tenterhook::train::config::{Document, Format};
use tenterhook::training::{Plan, Start, registry};

/// Its options, with their documentation for `tenterhook hooks`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct HalveLrOptions {
    /// A loss above this is high.
    above: f64,
    /// So many high losses in a row halve the learning rate.
    batches: u32,
}

struct HalveLr {
    options: HalveLrOptions,
    in_a_row: u32,
}

impl Hook for HalveLr {
    fn kind(&self) -> &str {
        "my.HalveLr"
    }

    fn on_train_batch_end(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        let is_high = batch.metrics.get("loss").is_some_and(|loss| *loss > self.options.above);
        self.in_a_row = if is_high { self.in_a_row + 1 } else { 0 };
        cx.log("high_losses", f64::from(self.in_a_row));
        if self.in_a_row >= self.options.batches {
            self.in_a_row = 0;
            cx.request(Request::ScaleLr { optimizer: None, group: None, factor: 0.5 });
        }
        Ok(())
    }

    // So that a resumed run decides as the uninterrupted one would.
    fn save_state(&self) -> HookResult<Option<serde_json::Value>> {
        Ok(Some(self.in_a_row.into()))
    }

    fn load_state(&mut self, state: serde_json::Value) -> HookResult {
        self.in_a_row = serde_json::from_value(state)?;
        Ok(())
    }
}

const CONFIG: &str = r#"
[model]
kind = "gpt"
vocab = 32
context = 32
d_model = 32
n_heads = 2
n_layers = 1

[data.train]
kind = "induction"
batch = 8

[train]
steps = 12

[[optimizer]]
kind = "adamw"
lr = 1e-3

[[hooks]]
kind = "my.HalveLr"
above = 3.0
batches = 4
"#;

fn main() -> Result<(), BoxError> {
    let mut registry = registry();
    registry.register::<HalveLrOptions>(
        "my.HalveLr",
        "halves the rate when losses stay high",
        |options| Ok(Box::new(HalveLr { options, in_a_row: 0 })),
    )?;

    let runs = tempfile::tempdir()?;
    let mut plan = Plan::check(&Document::parse(CONFIG, Format::Toml)?, &registry)?;
    plan.config.run.dir = runs.path().to_path_buf();
    let start =
        Start { plan: &plan, registry: &registry, device: &Device::Cpu, args: Vec::new(), parent: None };
    let mut begun = start.new_one()?;
    let finished = begun.trainer.train()?;
    println!("{} after {} steps", finished.status.as_str(), finished.steps);

    for row in tenterhook::record::metrics::read(&begun.run_dir.join("metrics.jsonl"))? {
        let value = |name: &str| row.values.get(name).copied().unwrap_or(f64::NAN);
        println!(
            "step {:2}  loss {:.3}  lr {:.2e}  high {}",
            row.step,
            value("loss"),
            value("lr"),
            value("high_losses")
        );
    }
    Ok(())
}
