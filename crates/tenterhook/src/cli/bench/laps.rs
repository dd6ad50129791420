//! Steps of a trainer, timed from inside its loop.

use std::time::Instant;

use candle_core::DType;
use tenterhook_hooks::{BatchInfo, Cx, Hook, HookOptions, HookResult, NamedGrads, OnError};
use tenterhook_train::Trainer;

use super::measure::{RepeatArgs, Timing, peak_rss_mb};
use crate::cli::error::CliError;

/// What the steps of a run came to.
#[derive(Default)]
pub(super) struct Laps {
    /// The loss of every step, those before the timed ones included.
    pub(super) losses: Vec<f64>,
    /// The shape of the inputs of every batch of the last step.
    pub(super) inputs: Vec<Vec<usize>>,
    /// Tokens, or examples where there are no tokens, of the last step.
    pub(super) tokens: usize,
    /// Parameters that train. All of them have a gradient that is not all zeros.
    pub(super) parameters: usize,
    pub(super) peak_rss_mb: Option<f64>,
    seconds: Vec<f64>,
}

impl Laps {
    /// Trains for as many steps as are asked for, and one that is cut off where it begins.
    ///
    /// A step is timed from the start of its batch to the start of the next one: data, hooks and logs are in it.
    pub(super) fn run(trainer: &mut Trainer, repeat: &RepeatArgs) -> Result<(Self, Timing), CliError> {
        let wanted = repeat.warmup.saturating_add(repeat.repeat);
        let id = Self::attach(trainer, wanted)?;
        let ended = trainer.train();
        let watch = trainer.hooks().with_hook(&id, |watch: &mut Stopwatch| std::mem::take(watch))?;
        match (watch.is_done(), ended) {
            // It is the stopwatch that ended it.
            (true, _) => {}
            (false, Err(error)) => return Err(CliError::failed(error.to_string())),
            (false, Ok(finished)) => {
                let why = finished.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
                return Err(CliError::failed(format!(
                    "the run ended after {} steps{why}, and {wanted} were to be timed",
                    finished.steps
                )));
            }
        }
        let laps = Self { seconds: watch.seconds(), ..watch.laps };
        if laps.parameters == 0 {
            return Err(CliError::failed(
                "no step had gradients: everything is frozen, or every step was skipped",
            ));
        }
        let timing = Timing(laps.seconds.iter().copied().skip(repeat.warmup).collect());
        Ok((laps, timing))
    }

    /// Sees to it that every parameter has a gradient in the first step, else that step fails.
    pub(super) fn check_gradients(trainer: &mut Trainer) -> Result<(), CliError> {
        Self::attach(trainer, usize::MAX).map(|_| ())
    }

    /// The stopwatch, which ends the run after so many steps.
    fn attach(trainer: &mut Trainer, wanted: usize) -> Result<String, CliError> {
        let options =
            HookOptions { on_error: OnError::Abort, builtin: true, ..HookOptions::id(Stopwatch::KIND) };
        Ok(trainer.add_hook_with(Stopwatch::new(wanted), options)?)
    }
}

/// Notes when steps begin. After the last one it ends the run, so that no checkpoint has to be written for it.
#[derive(Default)]
struct Stopwatch {
    wanted: usize,
    starts: Vec<Instant>,
    /// Losses of the batches of this step.
    losses: Vec<f64>,
    completes_step: bool,
    laps: Laps,
}

impl Stopwatch {
    const KIND: &'static str = "bench_stopwatch";

    fn new(wanted: usize) -> Self {
        Self { wanted, ..Self::default() }
    }

    fn is_done(&self) -> bool {
        self.starts.len() > self.wanted
    }

    fn seconds(&self) -> Vec<f64> {
        self.starts.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect()
    }
}

impl Hook for Stopwatch {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn on_train_batch_start(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        self.completes_step = batch.completes_step;
        if cx.clock().micro_batch == 0 {
            self.starts.push(Instant::now());
            if self.is_done() {
                self.laps.peak_rss_mb = peak_rss_mb();
                cx.abort("all steps are timed");
                return Ok(());
            }
            (self.laps.inputs, self.laps.tokens) = (Vec::new(), 0);
        }
        self.laps.inputs.push(batch.batch.get("inputs")?.dims().to_vec());
        self.laps.tokens += batch.batch.token_count();
        Ok(())
    }

    fn on_before_backward(&mut self, loss: f64, _cx: &mut Cx) -> HookResult {
        self.losses.push(loss);
        if self.completes_step {
            let count = self.losses.len() as f64;
            self.laps.losses.push(self.losses.drain(..).sum::<f64>() / count);
        }
        Ok(())
    }

    fn on_after_backward(&mut self, grads: &NamedGrads, cx: &mut Cx) -> HookResult {
        if self.laps.parameters > 0 || !self.completes_step {
            return Ok(());
        }
        let state = cx.state().ok_or("there is no run with parameters")?;
        let trains = |name: &String| state.frozen.binary_search(name).is_err();
        let params = state.params.iter().filter(|param| param.dtype().is_float() && trains(&param.name));
        for param in params {
            let grad =
                grads.get(&param.name).ok_or_else(|| format!("no gradient arrives at `{}`", param.name))?;
            let largest = grad.abs()?.max_all()?.to_dtype(DType::F64)?.to_scalar::<f64>()?;
            if largest == 0.0 {
                return Err(format!("the gradient of `{}` is all zeros", param.name).into());
            }
            self.laps.parameters += 1;
        }
        Ok(())
    }
}
