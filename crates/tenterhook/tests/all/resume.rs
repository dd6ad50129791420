//! A run that is interrupted anywhere goes on as if nothing had happened.

use std::sync::{Arc, Mutex};

use candle_core::Device;
use tenterhook::hooks::random::Stream;
use tenterhook::hooks::{
    BatchInfo, CheckpointInfo, Cx, Hook, HookRegistry, HookResult, Metrics, MetricsRow, NamedGrads, Request,
    RunStatus,
};
use tenterhook::train::Interrupt;
use tenterhook::train::config::Document;
use tenterhook::training::{Plan, Start, registry};

use crate::lab::{Lab, TINY};
use crate::support::campaign;
use crate::traces::{Traces, assert_same};

/// Every hook that remembers or decides something, beside a [`Witness`].
pub(crate) const HOOKS: &str = r#"
[[hooks]]
kind = "early_stopping"
monitor = "val/loss"
patience = 1000

[[hooks]]
kind = "model_checkpoint"
monitor = "val/loss"
save_top_k = 2
save_last = true

[[hooks]]
kind = "reduce_lr_on_plateau"
monitor = "val/loss"
patience = 1
threshold = 0.01

[[hooks]]
kind = "ema"
decay = 0.9
start_step = 3

[[hooks]]
kind = "freeze"
params = ["*ln_f*"]
until_epoch = 1

[[hooks]]
kind = "gradient_monitor"
log_frequency = 3

[[hooks]]
kind = "json_log"
log_every_n_batches = 1

[[hooks]]
kind = "csv_log"

[[hooks]]
kind = "tensorboard"
metrics = ["*loss", "lr", "*grad*", "witness/*"]
"#;

const STEPS: u64 = 76;

fn config() -> String {
    let train = TINY.replace("steps = 40", &format!("steps = {STEPS}"));
    let train = train.replace("validate_every = 10", "validate_every = 7");
    format!("{train}{HOOKS}\n[[hooks]]\nkind = \"witness\"\n")
}

/// Where in a step, or after it, somebody interrupts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    BatchStart,
    Forward,
    Backward,
    /// After the first of the batches that make a step.
    InsideWindow,
    Optimizer,
    BatchEnd,
    Row,
    ValidationStart,
    ValidationBatch,
    ValidationEnd,
    EpochEnd,
    EpochStart,
    Save,
}

use Moment::*;

const IN_A_STEP: [Moment; 7] = [BatchStart, Forward, Backward, InsideWindow, Optimizer, BatchEnd, Row];
const BETWEEN_STEPS: [Moment; 6] =
    [ValidationStart, ValidationBatch, ValidationEnd, EpochEnd, EpochStart, Save];

/// The first such moment once so many steps have been taken.
#[derive(Clone, Copy, Debug)]
struct Cut(u64, Moment);

/// What the next run of a [`Witness`] is to do.
#[derive(Clone, Default)]
struct Orders {
    cut: Arc<Mutex<Option<Cut>>>,
    interrupt: Arc<Mutex<Interrupt>>,
}

/// Interrupts the run where it is told to, logs what it is told of the time, and asks for a validation when an epoch ends.
struct Witness {
    orders: Orders,
    rows: u64,
}

impl Witness {
    fn pass(&self, moment: Moment, cx: &Cx) {
        let mut cut = self.orders.cut.lock().unwrap();
        let steps = cx.state().unwrap().step;
        if cut.is_some_and(|Cut(step, at)| at == moment && steps >= step) {
            *cut = None;
            self.orders.interrupt.lock().unwrap().raise();
        }
    }

    fn testify(&self, cx: &mut Cx) {
        let (clock, state) = (cx.clock(), cx.state().unwrap());
        let seen = [clock.step, clock.epoch, clock.batch, state.current_epoch, state.current_batch_idx];
        let names = ["step", "epoch", "batch", "current_epoch", "current_batch"];
        for (name, value) in names.iter().zip(seen) {
            cx.log(format!("witness/{name}"), value as f64);
        }
        let drawn = cx.random().uniform(0);
        cx.log("witness/drawn", drawn);
    }
}

impl Hook for Witness {
    fn kind(&self) -> &str {
        "witness"
    }

    fn on_epoch_start(&mut self, _epoch: u64, cx: &mut Cx) -> HookResult {
        self.pass(EpochStart, cx);
        Ok(())
    }

    fn on_train_batch_start(&mut self, _batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        self.pass(BatchStart, cx);
        Ok(())
    }

    fn on_after_forward(&mut self, _batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        self.pass(Forward, cx);
        Ok(())
    }

    fn on_after_backward(&mut self, _grads: &NamedGrads, cx: &mut Cx) -> HookResult {
        self.pass(Backward, cx);
        Ok(())
    }

    fn on_before_optimizer_step(&mut self, _optimizer: usize, cx: &mut Cx) -> HookResult {
        self.pass(Optimizer, cx);
        Ok(())
    }

    fn on_train_batch_end(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        self.pass(if batch.completes_step { BatchEnd } else { InsideWindow }, cx);
        Ok(())
    }

    fn on_validation_start(&mut self, _epoch: u64, cx: &mut Cx) -> HookResult {
        self.pass(ValidationStart, cx);
        Ok(())
    }

    fn on_validation_batch_end(&mut self, _batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        self.pass(ValidationBatch, cx);
        Ok(())
    }

    fn on_validation_end(&mut self, _metrics: &Metrics, cx: &mut Cx) -> HookResult {
        self.testify(cx);
        self.pass(ValidationEnd, cx);
        Ok(())
    }

    fn on_epoch_end(&mut self, _epoch: u64, cx: &mut Cx) -> HookResult {
        self.testify(cx);
        cx.request(Request::Validate);
        self.pass(EpochEnd, cx);
        Ok(())
    }

    fn on_metrics(&mut self, _row: &MetricsRow, cx: &mut Cx) -> HookResult {
        self.rows += 1;
        cx.log("witness/rows", self.rows as f64);
        self.pass(Row, cx);
        Ok(())
    }

    fn on_checkpoint_save(&mut self, _checkpoint: &CheckpointInfo, cx: &mut Cx) -> HookResult {
        self.pass(Save, cx);
        Ok(())
    }

    fn save_state(&self) -> HookResult<Option<serde_json::Value>> {
        Ok(Some(self.rows.into()))
    }

    fn load_state(&mut self, state: serde_json::Value) -> HookResult {
        self.rows = state.as_u64().ok_or("not a number")?;
        Ok(())
    }
}

/// The witness has no options.
#[derive(serde::Deserialize, schemars::JsonSchema)]
struct NoOptions {}

/// Runs in this process, which can be cut.
struct Theatre {
    lab: Lab,
    registry: HookRegistry,
    orders: Orders,
}

impl Theatre {
    fn with(config: &str) -> Self {
        let (orders, mut registry) = (Orders::default(), registry());
        let given = orders.clone();
        let make = move |_: NoOptions| -> HookResult<Box<dyn Hook>> {
            Ok(Box::new(Witness { orders: given.clone(), rows: 0 }))
        };
        registry.register("witness", "Interrupts and testifies.", make).unwrap();
        Self { lab: Lab::in_memory(config), registry, orders }
    }

    /// Begins the run or goes on with it, until it is cut or over.
    fn play(&self, cut: Option<Cut>) -> RunStatus {
        *self.orders.cut.lock().unwrap() = cut;
        let document = Document::read(&self.lab.path().join("run.toml")).unwrap();
        let mut plan = Plan::check(&document, &self.registry).unwrap();
        plan.config.run.dir = self.lab.path().join("runs");
        let (registry, device) = (&self.registry, &Device::Cpu);
        let start = Start { plan: &plan, registry, device, args: Vec::new(), parent: None };
        let run = self.lab.run_dir("tiny");
        let begun = if run.exists() { start.resume(&run) } else { start.new_one() };
        let mut trainer = begun.unwrap().trainer;
        *self.orders.interrupt.lock().unwrap() = trainer.interrupt();
        let finished = trainer.train().unwrap();
        assert!(!finished.degraded, "{:?}", trainer.errors());
        finished.status
    }

    fn traces(&self) -> Traces {
        self.lab.traces("tiny")
    }
}

fn straight(config: &str) -> Traces {
    let theatre = Theatre::with(config);
    assert_eq!(theatre.play(None), RunStatus::Completed);
    theatre.traces()
}

/// Plays the run with these cuts, each in an attempt of its own, then to its end. A moment that does not come any more cuts nothing.
fn assert_resumes(config: &str, want: &Traces, cuts: &[Cut]) {
    let theatre = Theatre::with(config);
    for cut in cuts {
        assert_eq!(theatre.play(Some(*cut)), RunStatus::Interrupted, "{cut:?} of {cuts:?}");
    }
    assert_eq!(theatre.play(None), RunStatus::Completed, "{cuts:?}");
    assert_same(&theatre.traces(), want, &format!("{cuts:?}"));
}

#[test]
fn p04_cut_in_any_step_a_run_ends_as_if_it_had_not_been() {
    let (config, drawn) = (config(), Stream::new(4).named("cuts"));
    let want = straight(&config);
    let later = (0..campaign(20, 400)).map(|i| 50 + drawn.below(i, STEPS - 50));
    let mut cuts = 0;
    for (i, step) in (0..50).chain(later).enumerate() {
        let moments = match campaign(0, 1) {
            0 => &IN_A_STEP[i % IN_A_STEP.len()..][..1],
            _ => &IN_A_STEP[..],
        };
        for moment in moments {
            assert_resumes(&config, &want, &[Cut(step, *moment)]);
            cuts += 1;
        }
    }
    println!("p04: {cuts} runs cut in a step, {} traces equal in each", want.len());
}

#[test]
fn p04_cut_between_steps_a_run_ends_as_if_it_had_not_been() {
    let config = config();
    let want = straight(&config);
    let steps: Vec<u64> = if campaign(0, 1) == 0 { vec![1, 30] } else { (0..60).collect() };
    for step in &steps {
        for moment in BETWEEN_STEPS {
            assert_resumes(&config, &want, &[Cut(*step, moment)]);
        }
    }
    println!("p04: {} runs cut between steps", steps.len() * BETWEEN_STEPS.len());
}

#[test]
fn p04_five_cuts_in_one_run_leave_no_trace() {
    let config = config();
    let want = straight(&config);
    let edge = [
        Cut(0, EpochStart),
        Cut(7, ValidationBatch),
        Cut(7, EpochEnd),
        Cut(20, Save),
        Cut(69, ValidationEnd),
    ];
    assert_resumes(&config, &want, &edge);
    // In one step: again and again where the last cut was.
    let again = [
        Cut(13, Optimizer),
        Cut(14, ValidationStart),
        Cut(14, ValidationBatch),
        Cut(14, ValidationStart),
        Cut(14, BatchStart),
    ];
    assert_resumes(&config, &want, &again);
    let drawn = Stream::new(5).named("cuts");
    for round in 0..campaign(2, 200) {
        let mut steps: Vec<u64> = (0..5).map(|i| drawn.at(round).below(i, STEPS - 6)).collect();
        steps.sort_unstable();
        let moment = |i: u64| IN_A_STEP[drawn.at(round).below(10 + i, IN_A_STEP.len() as u64) as usize];
        let cuts: Vec<Cut> = steps.iter().zip(0..).map(|(step, i)| Cut(*step, moment(i))).collect();
        assert_resumes(&config, &want, &cuts);
    }
}

#[test]
fn p08_cut_while_checkpoints_are_written_beside_training_a_run_ends_the_same() {
    let config = config().replace("[train]", "[train]\nasync_checkpoints = true");
    let want = straight(&config);
    for cut in [Cut(9, BatchEnd), Cut(20, BatchStart), Cut(35, ValidationBatch)] {
        assert_resumes(&config, &want, &[cut]);
    }
}
