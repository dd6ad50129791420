//! `tenterhook bench growth`.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use clap::Args;
use serde_json::{Value, json};
use tenterhook_hooks::{Capture, CaptureOptions, HookManager, HookOptions, hook_fn};
use tenterhook_lens::{CacheOptions, LanguageModel};
use tenterhook_models::config::TransformerConfig;
use tenterhook_models::{Model, Transformer};
use tenterhook_train::data::{InMemory, Loader, Mixture, Strategy};
use tenterhook_train::optim::{Kind, Optimizer, OptimizerConfig};
use tenterhook_train::{Settings, TrainModel, Trainer};

use super::laps::Laps;
use super::measure::RepeatArgs;
use super::sizes::Sizes;
use super::tokens;
use crate::cli::error::CliError;
use crate::cli::{Outcome, output};
use crate::training::LanguageTask;

/// Show how the time of forwards, training steps and captures grows with tokens, layers and hooks.
///
/// Small random models are run at doubling sizes. Between two sizes stands the exponent p of the growth, time ~ size^p, and behind it the exponent that
/// the work has: FLOPs for forwards and steps, bytes for captures. It is 1 for layers and for hooks, and between 1 and 2 for tokens, the more
/// attention counts. Where it is lower than the work's, something fixed is still in the way. Of hooks, what they add to a model without any is meant.
#[derive(Args)]
#[command(after_help = "Example: tenterhook bench growth --quick")]
pub(super) struct GrowthArgs {
    /// Smaller sizes: a few seconds.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    repeat: RepeatArgs,
}

/// One kind of work at one size.
struct Cell {
    ms: f64,
    /// What it should be proportional to.
    work: f64,
}

/// All kinds of work along one axis.
struct Growth {
    axis: &'static str,
    kinds: &'static [&'static str],
    rows: Vec<(usize, Vec<Cell>)>,
}

const VOCAB: usize = 256;
const WIDTH: usize = 64;
const HEADS: usize = 4;

pub(super) fn run(args: &GrowthArgs) -> Result<Outcome, CliError> {
    let (seqs, layers, hooks): (&[usize], &[usize], &[usize]) = match args.quick {
        true => (&[64, 128, 256, 512], &[1, 2, 4, 8], &[0, 10, 100]),
        false => (&[64, 128, 256, 512, 1024, 2048], &[1, 2, 4, 8, 16, 32], &[0, 1, 10, 100, 1000]),
    };
    let by_size = |axis, sizes: &[usize], seq: &dyn Fn(usize) -> usize, layers: &dyn Fn(usize) -> usize| {
        let row = |size: &usize| Ok((*size, by_model(seq(*size), layers(*size), &args.repeat)?));
        let rows = sizes.iter().map(row).collect::<Result<_, CliError>>()?;
        Ok::<_, CliError>(Growth { axis, kinds: &["forward", "training", "capture"], rows })
    };
    let tokens = by_size("tokens", seqs, &|size| size, &|_| 2)?;
    let layers = by_size("layers", layers, &|_| 128, &|size| size)?;
    let row = |count: &usize| Ok((*count, by_hooks(*count, &args.repeat)?));
    let rows = hooks.iter().map(row).collect::<Result<_, CliError>>()?;
    let hooks = Growth { axis: "hooks", kinds: &["forward", "training", "capture", "disabled"], rows };
    let all = [tokens, layers, hooks.beyond_none()];
    if args.repeat.json {
        let tables = all.iter().map(|growth| (growth.axis.to_string(), growth.to_json()));
        output::json(&Value::Object(tables.collect()))?;
    } else {
        let tables: Vec<String> = all.iter().map(Growth::table).collect();
        output::text(&tables.join("\n\n"))?;
    }
    Ok(Outcome::Done)
}

impl Growth {
    /// The exponents of time and work between a row and the one before.
    fn exponents(&self, row: usize, kind: usize) -> Option<(f64, f64)> {
        let (before, now) = (self.rows.get(row.checked_sub(1)?)?, &self.rows[row]);
        let size = (now.0 as f64 / before.0 as f64).ln();
        let of = |a: f64, b: f64| (b / a).ln() / size;
        let (a, b) = (&before.1[kind], &now.1[kind]);
        Some((of(a.ms, b.ms), of(a.work, b.work))).filter(|(time, work)| time.is_finite() && work.is_finite())
    }

    fn table(&self) -> String {
        let mut head = vec![self.axis];
        self.kinds.iter().for_each(|kind| head.extend([*kind, "grows", "work"]));
        let number = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
        let line = |row: usize| {
            let (size, cells) = &self.rows[row];
            let cells = cells.iter().enumerate().flat_map(|(kind, cell)| {
                let exponents = self.exponents(row, kind);
                [format!("{:.3} ms", cell.ms), number(exponents.map(|e| e.0)), number(exponents.map(|e| e.1))]
            });
            std::iter::once(size.to_string()).chain(cells).collect()
        };
        output::table(&head, &(0..self.rows.len()).map(line).collect::<Vec<_>>())
    }

    fn to_json(&self) -> Value {
        let row = |row: usize| {
            let (size, cells) = &self.rows[row];
            let mut told = json!({ "size": size });
            for (kind, (name, cell)) in self.kinds.iter().zip(cells).enumerate() {
                let exponents = self.exponents(row, kind);
                told[*name] = json!({
                    "ms": cell.ms,
                    "exponent": exponents.map(|exponents| exponents.0),
                    "expected_exponent": exponents.map(|exponents| exponents.1),
                });
            }
            told
        };
        (0..self.rows.len()).map(row).collect()
    }

    /// The time beyond that of the first row, which has none of what grows and is left out.
    fn beyond_none(mut self) -> Self {
        let none = self.rows.remove(0).1;
        for (cell, none) in self.rows.iter_mut().flat_map(|(_, cells)| cells.iter_mut().zip(&none)) {
            cell.ms -= none.ms;
        }
        self
    }
}

fn model(seq: usize, layers: usize) -> Result<LanguageModel, CliError> {
    let config = TransformerConfig::gpt2(VOCAB, seq, WIDTH, layers, HEADS);
    Ok(LanguageModel::new(Transformer::init(config, 42, DType::F32, &Device::Cpu)?)?)
}

/// A forward, a training step and a capture of all points.
fn by_model(seq: usize, layers: usize, repeat: &RepeatArgs) -> Result<Vec<Cell>, CliError> {
    let lm = model(seq, layers)?;
    let ids = lm.batch_of(&tokens::ids(seq, VOCAB))?;
    let flops = Sizes::Transformer(Box::new(lm.model().config().clone())).forward_flops(1, seq);
    let forward = forward_ms(&lm, &ids, repeat)?;
    let mut bytes = 0;
    let capture = repeat.time(|| -> Result<(), CliError> {
        let (_, cache, _) = lm.run_with_cache(&ids, &CacheOptions::default())?;
        bytes = cache.iter().map(|(_, tensor)| tensor.elem_count() * 4).sum();
        Ok(())
    })?;
    let training = training_ms(seq, layers, repeat, |_| Ok(()))?;
    Ok(vec![
        Cell { ms: forward, work: flops },
        Cell { ms: training, work: 3.0 * flops },
        Cell { ms: capture.median() * 1e3, work: bytes as f64 },
    ])
}

/// The same model with so many hooks at one of its points: hooks that look, hooks that capture, hooks that are switched off.
fn by_hooks(count: usize, repeat: &RepeatArgs) -> Result<Vec<Cell>, CliError> {
    const POINT: &str = "blocks.0.hook_resid_post";
    let (seq, layers) = (64, 2);
    let ids = tokens::ids(seq, VOCAB);
    let watch = |hooks: &HookManager| -> Result<(), CliError> {
        (0..count).try_for_each(|_| hooks.register(hook_fn::observe(POINT, |_, _, _| Ok(()))).map(drop))?;
        Ok(())
    };
    let looked_at = model(seq, layers)?;
    watch(looked_at.hooks())?;
    let forward = forward_ms(&looked_at, &looked_at.batch_of(&ids)?, repeat)?;
    let training = training_ms(seq, layers, repeat, watch)?;
    let captured = model(seq, layers)?;
    for _ in 0..count {
        captured.hooks().register(Capture::new(CaptureOptions::new(vec![POINT.to_string()]))?)?;
    }
    let capture = forward_ms(&captured, &captured.batch_of(&ids)?, repeat)?;
    let switched_off = model(seq, layers)?;
    for _ in 0..count {
        let options = HookOptions { enabled: false, ..HookOptions::default() };
        switched_off.hooks().register_with(hook_fn::observe(POINT, |_, _, _| Ok(())), options)?;
    }
    let disabled = forward_ms(&switched_off, &switched_off.batch_of(&ids)?, repeat)?;
    Ok([forward, training, capture, disabled].map(|ms| Cell { ms, work: count as f64 }).into())
}

fn forward_ms(lm: &LanguageModel, ids: &Tensor, repeat: &RepeatArgs) -> Result<f64, CliError> {
    let timing = repeat.time(|| -> Result<(), CliError> {
        lm.forward(ids)?;
        Ok(lm.hooks().clear_captured_states(None)?)
    })?;
    Ok(timing.median() * 1e3)
}

/// An AdamW step on one sequence, with hooks that are attached first.
fn training_ms(
    seq: usize,
    layers: usize,
    repeat: &RepeatArgs,
    attach: impl FnOnce(&HookManager) -> Result<(), CliError>,
) -> Result<f64, CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::failed(error.to_string());
    let config = TransformerConfig::gpt2(VOCAB, seq, WIDTH, layers, HEADS);
    let model = Model::Transformer(Transformer::init(config, 42, DType::F32, &Device::Cpu)?);
    let task = Arc::new(LanguageTask::new(model).map_err(|error| failed(&error))?);
    let ids = Tensor::new(tokens::ids(seq + 1, VOCAB), &Device::Cpu)?.unsqueeze(0)?;
    let (inputs, targets) = (ids.narrow(1, 0, seq)?.contiguous()?, ids.narrow(1, 1, seq)?.contiguous()?);
    let data = InMemory::new(vec![("inputs".to_string(), inputs), ("targets".to_string(), targets)]);
    let loader = Loader::new("tokens", Arc::new(data.map_err(|error| failed(&error))?), 1);
    let data = Mixture::new(vec![loader], Strategy::Sequential, 42).map_err(|error| failed(&error))?;
    let adam = OptimizerConfig::new(Kind::AdamW, 1e-3);
    let optimizers = Optimizer::build(&[adam], task.params(), false).map_err(|error| failed(&error))?;
    let steps = (repeat.warmup.saturating_add(repeat.repeat) as u64).saturating_add(1);
    let trainer = Trainer::new(task, data, optimizers, Settings::steps(steps));
    let mut trainer = trainer.map_err(|error| failed(&error))?;
    attach(trainer.hooks())?;
    Ok(Laps::run(&mut trainer, repeat)?.1.median() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(ms: f64, work: f64) -> Cell {
        Cell { ms, work }
    }

    #[test]
    fn exponents_are_those_between_two_sizes() {
        let rows = vec![(10, vec![cell(1.0, 5.0)]), (20, vec![cell(4.0, 10.0)])];
        let growth = Growth { axis: "tokens", kinds: &["forward"], rows };
        assert_eq!(growth.exponents(0, 0), None);
        assert_eq!(growth.exponents(1, 0), Some((2.0, 1.0)));
    }

    #[test]
    fn of_hooks_what_they_add_is_meant() {
        let rows = vec![(0, vec![cell(3.0, 0.0)]), (1, vec![cell(5.0, 1.0)]), (2, vec![cell(7.0, 2.0)])];
        let growth = Growth { axis: "hooks", kinds: &["forward"], rows }.beyond_none();
        assert_eq!(growth.exponents(1, 0), Some((1.0, 1.0)));
    }
}
