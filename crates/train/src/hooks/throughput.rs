//! How fast training goes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{AttachError, BatchInfo, Cx, Hook, HookResult, Metrics, TrainState};

/// How a [`Throughput`] measures.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ThroughputOptions {
    /// Averages over so many of the last steps that it sees.
    pub window: usize,
}

impl Default for ThroughputOptions {
    fn default() -> Self {
        Self { window: 10 }
    }
}

/// Logs `time/tokens_per_s`, `time/batches_per_s` and `time/step_ms` at every step. Validation does not count as time of a step.
pub struct Throughput {
    options: ThroughputOptions,
    /// Marks at the ends of steps, the oldest first.
    marks: VecDeque<Mark>,
    clock: Box<dyn Fn() -> Duration + Send>,
    /// Time spent in validation so far, and when the one that is running began.
    validating: Duration,
    validation_began: Option<Duration>,
}

/// How far training was at a time.
#[derive(Clone, Copy)]
struct Mark {
    at: Duration,
    step: u64,
    batches: u64,
    tokens: u64,
}

impl Throughput {
    /// The kind's name.
    pub const KIND: &'static str = "throughput";

    /// A window of nothing is an error.
    pub fn new(options: ThroughputOptions) -> Result<Self, AttachError> {
        if !(1..=1 << 20).contains(&options.window) {
            let problems = vec![format!("`window` is {}, it must be 1 to 1048576 steps", options.window)];
            return Err(AttachError::BadOptions { kind: Self::KIND.to_string(), problems });
        }
        let began = Instant::now();
        Ok(Self {
            options,
            marks: VecDeque::new(),
            clock: Box::new(move || began.elapsed()),
            validating: Duration::ZERO,
            validation_began: None,
        })
    }

    fn mark(&mut self, state: &TrainState, batch_idx: u64) -> Mark {
        let mark = Mark {
            at: (self.clock)().saturating_sub(self.validating),
            step: state.step,
            batches: state.current_epoch * state.batches_per_epoch + batch_idx,
            tokens: state.tokens_seen,
        };
        self.marks.push_back(mark);
        while self.marks.len() > self.options.window + 1 {
            self.marks.pop_front();
        }
        mark
    }
}

impl Hook for Throughput {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
        // Times of an earlier attempt say nothing about this one.
        self.marks.clear();
        if let Some(state) = cx.state() {
            self.mark(state, state.current_batch_idx);
        }
        Ok(())
    }

    fn on_train_batch_end(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        let Some(state) = cx.state().filter(|_| batch.completes_step) else { return Ok(()) };
        let now = self.mark(state, batch.batch_idx + 1);
        let Some(first) = self.marks.front().filter(|first| first.at < now.at) else { return Ok(()) };
        let seconds = (now.at - first.at).as_secs_f64();
        let per_second = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let steps = now.step.saturating_sub(first.step);
        cx.log("time/tokens_per_s", per_second(now.tokens, first.tokens));
        cx.log("time/batches_per_s", per_second(now.batches, first.batches));
        if steps > 0 {
            cx.log("time/step_ms", seconds * 1000.0 / steps as f64);
        }
        Ok(())
    }

    fn on_validation_start(&mut self, _epoch: u64, _cx: &mut Cx) -> HookResult {
        self.validation_began = Some((self.clock)());
        Ok(())
    }

    fn on_validation_end(&mut self, _metrics: &Metrics, _cx: &mut Cx) -> HookResult {
        if let Some(began) = self.validation_began.take() {
            self.validating += (self.clock)().saturating_sub(began);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use tenterhook_hooks::{Event, HookOptions, MockTrainer};

    /// A trainer whose clock shows what the test says.
    fn trainer(window: usize, options: HookOptions) -> (MockTrainer, Arc<AtomicU64>) {
        let ms = Arc::new(AtomicU64::new(0));
        let shown = ms.clone();
        let mut hook = Throughput::new(ThroughputOptions { window }).unwrap();
        hook.clock = Box::new(move || Duration::from_millis(shown.load(Relaxed)));
        let mut trainer = MockTrainer::new();
        trainer.attach_with(hook, options).unwrap();
        trainer.fire(Event::TrainStart).unwrap();
        (trainer, ms)
    }

    fn step(trainer: &mut MockTrainer, clock: &AtomicU64, ms: u64) -> [f64; 3] {
        clock.fetch_add(ms, Relaxed);
        trainer.state.tokens_seen += 99; // the mock adds one more
        trainer.step(1.0).unwrap();
        ["time/tokens_per_s", "time/batches_per_s", "time/step_ms"].map(|name| trainer.metric(name).unwrap())
    }

    #[test]
    fn rates_are_those_of_the_window() {
        let (mut trainer, clock) = trainer(2, HookOptions::default());
        assert_eq!(step(&mut trainer, &clock, 500), [200.0, 2.0, 500.0]);
        assert_eq!(step(&mut trainer, &clock, 1500), [100.0, 1.0, 1000.0]);
        assert_eq!(step(&mut trainer, &clock, 500), [100.0, 1.0, 1000.0]);
        // The mean of the last two only: 500 ms and 300 ms.
        assert_eq!(step(&mut trainer, &clock, 300), [250.0, 2.5, 400.0]);
        trainer.next_epoch().unwrap();
    }

    #[test]
    fn validation_is_not_counted_and_a_hook_that_is_seldom_due_measures_the_same() {
        let (mut trainer, clock) = trainer(4, HookOptions::default());
        step(&mut trainer, &clock, 100);
        trainer.fire(Event::ValidationStart(0)).unwrap();
        clock.fetch_add(60_000, Relaxed);
        trainer.fire(Event::ValidationEnd(&Metrics::new())).unwrap();
        assert_eq!(step(&mut trainer, &clock, 100)[2], 100.0);

        let every = HookOptions { every: tenterhook_hooks::Every::Steps(2), ..HookOptions::default() };
        let (mut trainer, clock) = self::trainer(1, every);
        for _ in 0..5 {
            assert_eq!(step(&mut trainer, &clock, 100), [1000.0, 10.0, 100.0]);
        }
    }

    #[test]
    fn a_window_of_nothing_is_refused() {
        let error = Throughput::new(ThroughputOptions { window: 0 }).err().unwrap().to_string();
        assert!(error.contains("`window` is 0"), "{error}");
    }
}
