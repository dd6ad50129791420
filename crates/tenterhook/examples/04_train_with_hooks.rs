//! Training with hooks, one of them your own: `cargo run --example 04_train_with_hooks`.

#![allow(clippy::print_stdout)]

use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use tenterhook::hooks::{At, BatchInfo, BoxError, Cx, Hook, HookResult, Want};
use tenterhook::models::ModelDescription;
use tenterhook::train::data::{Loader, Mixture, ModularAddition, Role, Strategy};
use tenterhook::train::optim::{Clip, Kind, Optimizer, OptimizerConfig};
use tenterhook::train::{Settings, TrainModel, get_trainer};
use tenterhook::training::LanguageTask;

/// Watches how large the residual stream grows, and ends the run when the loss is low enough.
#[derive(Default)]
struct Watcher {
    /// The largest value in the pass that is going on.
    peak: f64,
}

impl Hook for Watcher {
    fn kind(&self) -> &str {
        "watcher"
    }

    /// Where it listens: after every block.
    fn wants(&self) -> Vec<Want> {
        vec![Want::observe("blocks.*.hook_resid_post")]
    }

    fn observe(&mut self, _at: &At, x: &Tensor, _cx: &mut Cx) -> HookResult {
        let largest: f32 = x.abs()?.max_all()?.to_scalar()?;
        self.peak = self.peak.max(f64::from(largest));
        Ok(())
    }

    fn on_train_batch_end(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        // Other hooks and the log can read it.
        cx.log("stream/peak", std::mem::take(&mut self.peak));
        let loss = batch.metrics["loss"];
        if loss < 2.0 {
            cx.stop(format!("a loss of {loss:.3} will do"));
        }
        Ok(())
    }
}

fn main() -> Result<(), BoxError> {
    // A small transformer that is to learn to add modulo 11.
    let model: ModelDescription = serde_json::from_value(serde_json::json!({
        "kind": "gpt", "vocab": 12, "context": 4, "d_model": 32, "n_heads": 2, "n_layers": 1,
    }))?;
    let model = Arc::new(LanguageTask::new(model.build(Path::new(""), 42, &Device::Cpu)?)?);
    let sums = Arc::new(ModularAddition::new(11, 0.8, Role::Train, 42)?);
    let loader = Loader { shuffle: true, ..Loader::new("sums", sums, 32) };
    let data = Mixture::new(vec![loader], Strategy::Sequential, 42)?;
    let optimizers = Optimizer::build(&[OptimizerConfig::new(Kind::AdamW, 1e-2)], model.params(), false)?;

    let settings = Settings { clip: Clip::Norm(1.0), ..Settings::steps(200) };
    let mut trainer = get_trainer("simple", model, data, optimizers, settings)?;
    trainer.add_console_logging(20)?;
    trainer.add_hook(Watcher::default())?;
    let finished = trainer.train()?;

    println!(
        "{} after {} steps: {}",
        finished.status.as_str(),
        finished.steps,
        finished.reason.unwrap_or_default()
    );
    println!("the stream's largest value was {:.2} in the end", trainer.state().metrics["stream/peak"]);
    // What every hook did; none can silently do nothing.
    for hook in trainer.list_hooks() {
        let (points, receipt) = (hook.matched.len(), &hook.receipt);
        println!("{:16} {points} points, {:4} tensors, {:5} events", hook.id, receipt.fired, receipt.events);
    }
    Ok(())
}
