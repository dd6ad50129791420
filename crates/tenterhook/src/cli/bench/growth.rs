//! `tenterhook bench growth`.

use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use clap::Args;
use serde_json::{Value, json};
use tenterhook_hooks::{Batch, Capture, CaptureOptions, HookManager, HookOptions, hook_fn};
use tenterhook_lens::{CacheOptions, LanguageModel};
use tenterhook_models::config::TransformerConfig;
use tenterhook_models::{Model, Transformer};
use tenterhook_train::data::{InMemory, Loader, Mixture, Strategy};
use tenterhook_train::optim::{Kind, Optimizer, OptimizerConfig};
use tenterhook_train::{Settings, TrainModel, Trainer};

use super::laps::Laps;
use super::measure::{RepeatArgs, Timing, Work};
use super::sizes::Sizes;
use super::tokens;
use crate::cli::error::CliError;
use crate::cli::{Outcome, output};
use crate::training::LanguageTask;

/// Show how the time of forwards, training steps and captures grows with tokens, layers and hooks.
///
/// Small random models are run at growing sizes, all sizes by turns; what is over in no time is done several times in a round. Between two sizes stands
/// the exponent p of the growth, time ~ size^p, and behind it the exponent that the work has: FLOPs for forwards and steps, bytes for captures.
/// It is 1 for layers and for hooks, and between 1 and 2 for tokens, the more attention counts. Where it is lower than the work's,
/// something fixed is still in the way. Of hooks, what they add to a model without any is meant; of disabled hooks, the whole forward.
#[derive(Args)]
#[command(after_help = "Example: tenterhook bench growth --quick")]
pub(super) struct GrowthArgs {
    /// Smaller sizes: a few seconds.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    repeat: RepeatArgs,
}

/// One kind of work at one size, before it is timed.
struct Job {
    work: Work<'static>,
    /// What its time should be proportional to.
    amount: f64,
}

/// The same when it has been.
struct Cell {
    ms: f64,
    amount: f64,
}

/// All kinds of work along one axis.
struct Growth {
    axis: &'static str,
    kinds: &'static [&'static str],
    rows: Vec<(usize, Vec<Cell>)>,
}

const VOCAB: usize = 256;

/// How long a round of each work takes at least, so that clocks and wake-ups do not count.
const AT_LEAST: Duration = Duration::from_millis(5);

pub(super) fn run(args: &GrowthArgs) -> Result<Outcome, CliError> {
    let (seqs, layers, hooks): (&[usize], &[usize], &[usize]) = match args.quick {
        true => (&[64, 128, 256, 512], &[1, 2, 4, 8], &[0, 10, 100]),
        false => (&[64, 128, 256, 512, 1024, 2048], &[1, 2, 4, 8, 16, 32], &[0, 1, 10, 100, 1000]),
    };
    let kinds = &["forward", "training", "capture"];
    let tokens = Growth::measure("tokens", kinds, seqs, &args.repeat, |seq| by_model(seq, 2))?;
    let layers = Growth::measure("layers", kinds, layers, &args.repeat, |layers| by_model(128, layers))?;
    let kinds = &["forward", "training", "capture", DISABLED];
    let hooks = Growth::measure("hooks", kinds, hooks, &args.repeat, by_hooks)?;
    let all = [tokens, layers, hooks];
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
    /// All kinds of work at all sizes, by turns. Where the first size is none at all, it is left out, and the others are what comes on top of it.
    fn measure(
        axis: &'static str,
        kinds: &'static [&'static str],
        sizes: &[usize],
        repeat: &RepeatArgs,
        jobs: impl Fn(usize) -> Result<Vec<Job>, CliError>,
    ) -> Result<Self, CliError> {
        let jobs: Vec<Vec<Job>> = sizes.iter().map(|size| jobs(*size)).collect::<Result<_, _>>()?;
        let (mut works, amounts): (Vec<Work>, Vec<f64>) =
            jobs.into_iter().flatten().map(|job| (job.work, job.amount)).unzip();
        let timings = repeat.by_turns(&mut works, AT_LEAST)?;
        Ok(Self::of(axis, kinds, sizes, &timings, &amounts))
    }

    /// From the times and amounts of all kinds at the first size, then at the next.
    fn of(
        axis: &'static str,
        kinds: &'static [&'static str],
        sizes: &[usize],
        timings: &[Timing],
        amounts: &[f64],
    ) -> Self {
        let none = (sizes.first() == Some(&0)).then(|| &timings[..kinds.len()]);
        let cell = |(i, amount): (usize, &f64)| {
            let kind = i % kinds.len();
            let seconds = match none {
                Some(none) if kinds[kind] != DISABLED => timings[i].beyond(&none[kind]),
                _ => timings[i].median(),
            };
            Cell { ms: seconds * 1e3, amount: *amount }
        };
        let mut cells = amounts.iter().enumerate().map(cell);
        let rows = sizes.iter().map(|size| (*size, cells.by_ref().take(kinds.len()).collect()));
        let rows = rows.skip_while(|(size, _): &(_, Vec<Cell>)| *size == 0).collect();
        Self { axis, kinds, rows }
    }

    /// The exponents of time and work between a row and the one before.
    fn exponents(&self, row: usize, kind: usize) -> Option<(f64, f64)> {
        let (before, now) = (self.rows.get(row.checked_sub(1)?)?, &self.rows[row]);
        let size = (now.0 as f64 / before.0 as f64).ln();
        let of = |a: f64, b: f64| (b / a).ln() / size;
        let (a, b) = (&before.1[kind], &now.1[kind]);
        Some((of(a.ms, b.ms), of(a.amount, b.amount)))
            .filter(|(time, work)| time.is_finite() && work.is_finite())
    }

    fn table(&self) -> String {
        let mut head = vec![self.axis];
        self.kinds.iter().for_each(|kind| head.extend([*kind, "grows", "work"]));
        let number = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
        let line = |row: usize| {
            let (size, cells) = &self.rows[row];
            let cells = cells.iter().enumerate().flat_map(|(kind, cell)| {
                let exponents = self.exponents(row, kind);
                [time(cell.ms), number(exponents.map(|e| e.0)), number(exponents.map(|e| e.1))]
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
}

/// In microseconds, where hardly anything would be left of milliseconds.
fn time(ms: f64) -> String {
    if ms.abs() < 0.1 { format!("{:.2} us", ms * 1e3) } else { format!("{ms:.3} ms") }
}

/// Hooks that are there and do nothing: their number should not matter.
const DISABLED: &str = "disabled";

/// How much arithmetic a model does: as much as models do, or hardly any, so that it does not hide what hooks cost.
#[derive(Clone, Copy)]
enum Width {
    Usual,
    Narrow,
}

fn config(width: Width, seq: usize, layers: usize) -> TransformerConfig {
    let (width, heads) = match width {
        Width::Usual => (256, 4),
        Width::Narrow => (8, 1),
    };
    TransformerConfig::gpt2(VOCAB, seq, width, layers, heads)
}

fn model(width: Width, seq: usize, layers: usize) -> Result<LanguageModel, CliError> {
    let transformer = Transformer::init(config(width, seq, layers), 42, DType::F32, &Device::Cpu)?;
    Ok(LanguageModel::new(transformer)?)
}

/// A forward, a training step and a capture of all points.
fn by_model(seq: usize, layers: usize) -> Result<Vec<Job>, CliError> {
    let lm = model(Width::Usual, seq, layers)?;
    let ids = lm.batch_of(&tokens::ids(seq, VOCAB))?;
    let flops = Sizes::Transformer(Box::new(lm.model().config().clone())).forward_flops(1, seq);
    let (_, cache, _) = lm.run_with_cache(&ids, &CacheOptions::default())?;
    let bytes: usize = cache.iter().map(|(_, tensor)| tensor.elem_count() * 4).sum();
    let forward = forward(model(Width::Usual, seq, layers)?, ids.clone());
    let training = training_step(Width::Usual, seq, layers, |_| Ok(()))?;
    let capture = Box::new(move || {
        lm.run_with_cache(&ids, &CacheOptions::default())?;
        Ok(())
    });
    Ok(vec![
        Job { work: forward, amount: flops },
        Job { work: training, amount: 3.0 * flops },
        Job { work: capture, amount: bytes as f64 },
    ])
}

/// The same model with so many hooks at one of its points: hooks that look, hooks that capture, hooks that are switched off.
fn by_hooks(count: usize) -> Result<Vec<Job>, CliError> {
    const POINT: &str = "blocks.0.hook_resid_post";
    let (seq, layers) = (4, 1);
    let with_hooks = |attach: &dyn Fn(&HookManager) -> Result<(), CliError>| -> Result<Work, CliError> {
        let lm = model(Width::Narrow, seq, layers)?;
        (0..count).try_for_each(|_| attach(lm.hooks()))?;
        let ids = lm.batch_of(&tokens::ids(seq, VOCAB))?;
        Ok(forward(lm, ids))
    };
    let look = || hook_fn::observe(POINT, |_, _, _| Ok(()));
    let forward = with_hooks(&|hooks| Ok(hooks.register(look()).map(drop)?))?;
    let training = training_step(Width::Narrow, seq, layers, |hooks| {
        Ok((0..count).try_for_each(|_| hooks.register(look()).map(drop))?)
    })?;
    let capture = with_hooks(&|hooks| {
        Ok(hooks.register(Capture::new(CaptureOptions::new(vec![POINT.to_string()]))?).map(drop)?)
    })?;
    let disabled = with_hooks(&|hooks| {
        let options = HookOptions { enabled: false, ..HookOptions::default() };
        Ok(hooks.register_with(look(), options).map(drop)?)
    })?;
    let job = |work: Work<'static>| Job { work, amount: count as f64 };
    Ok(vec![job(forward), job(training), job(capture), Job { work: disabled, amount: 1.0 }])
}

fn forward(lm: LanguageModel, ids: Tensor) -> Work<'static> {
    Box::new(move || {
        lm.forward(&ids)?;
        Ok(lm.hooks().clear_captured_states(None)?)
    })
}

/// An AdamW step on one sequence, with hooks that are attached first.
fn training_step(
    width: Width,
    seq: usize,
    layers: usize,
    attach: impl FnOnce(&HookManager) -> Result<(), CliError>,
) -> Result<Work<'static>, CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::failed(error.to_string());
    let model =
        Model::Transformer(Transformer::init(config(width, seq, layers), 42, DType::F32, &Device::Cpu)?);
    let task = Arc::new(LanguageTask::new(model).map_err(|error| failed(&error))?);
    let ids = Tensor::new(tokens::ids(seq + 1, VOCAB), &Device::Cpu)?.unsqueeze(0)?;
    let (inputs, targets) = (ids.narrow(1, 0, seq)?.contiguous()?, ids.narrow(1, 1, seq)?.contiguous()?);
    let batch = Batch::tokens(inputs.clone(), targets.clone(), vec![0]);
    let data = InMemory::new(vec![("inputs".to_string(), inputs), ("targets".to_string(), targets)]);
    let loader = Loader::new("tokens", Arc::new(data.map_err(|error| failed(&error))?), 1);
    let data = Mixture::new(vec![loader], Strategy::Sequential, 42).map_err(|error| failed(&error))?;
    let adam = OptimizerConfig::new(Kind::AdamW, 1e-3);
    let optimizers = Optimizer::build(&[adam], task.params(), false).map_err(|error| failed(&error))?;
    let trainer = Trainer::new(task, data, optimizers, Settings::steps(u64::MAX));
    let mut trainer = trainer.map_err(|error| failed(&error))?;
    Laps::check_gradients(&mut trainer)?;
    attach(trainer.hooks())?;
    Ok(Box::new(move || {
        let stepped = trainer.training_step(batch.clone());
        stepped.map(drop).map_err(|error| CliError::failed(error.to_string()))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_those_between_two_sizes() {
        let cell = |ms, amount| Cell { ms, amount };
        let rows = vec![(10, vec![cell(1.0, 5.0)]), (20, vec![cell(4.0, 10.0)])];
        let growth = Growth { axis: "tokens", kinds: &["forward"], rows };
        assert_eq!(growth.exponents(0, 0), None);
        assert_eq!(growth.exponents(1, 0), Some((2.0, 1.0)));
    }

    #[test]
    fn of_hooks_what_they_add_is_meant_but_of_disabled_ones_everything() {
        let timings = [[3.0, 4.0], [3.0, 3.0], [5.0, 6.0], [3.0, 3.0], [7.0, 8.0], [3.0, 5.0]]
            .map(|t| Timing(t.into()));
        let amounts = [0.0, 1.0, 1.0, 1.0, 2.0, 1.0];
        let growth = Growth::of("hooks", &["forward", DISABLED], &[0, 1, 2], &timings, &amounts);
        let ms = |row: usize| growth.rows[row].1.iter().map(|cell| cell.ms).collect::<Vec<_>>();
        assert_eq!(growth.rows.iter().map(|(size, _)| *size).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((ms(0), ms(1)), (vec![2e3, 3e3], vec![4e3, 4e3]));
        assert_eq!(growth.exponents(1, 0), Some((1.0, 1.0)));
    }
}
