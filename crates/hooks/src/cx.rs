//! What a hook can reach while it runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, Weak};

use candle_core::Tensor;

use crate::board::Board;
use crate::clock::{Clock, Gradients, Mode, PassSetup};
use crate::error::{HookError, HookResult};
use crate::hook::At;
use crate::kinds::monitor::Histogram;
use crate::manager::{HookInfo, Inner};
use crate::point::PointTable;
use crate::random::Stream;
use crate::receipt::{Control, Receipt};
use crate::request::Request;
use crate::rows::Rows;
use crate::state_store::StateStore;
use crate::states::{CapturedState, Retention};
use crate::sync::lock;
use crate::train_state::TrainState;

/// What belongs to one pass and outlives it on the tape. It holds no hook: a hook may hold a tensor, whose tape holds a gradient tap,
/// which holds this.
pub(crate) struct Facts {
    pub(crate) table: Arc<PointTable>,
    pub(crate) setup: PassSetup,
    pub(crate) ledger: Mutex<Ledger>,
    /// Counts the passes of the manager.
    pub(crate) number: u64,
    /// Whether a controller has replaced a value in this pass.
    pub(crate) edited: AtomicBool,
    pub(crate) board: Arc<Board>,
    pub(crate) states: Option<Arc<StateStore>>,
    pub(crate) manager: Weak<Inner>,
    /// The serial of the hook that is running, 0 when none is: for whoever watches over a run that hangs.
    pub(crate) running: Arc<AtomicU64>,
}

/// What the hooks of one pass did.
#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) receipts: BTreeMap<u64, Receipt>,
    pub(crate) errors: Vec<HookError>,
    pub(crate) metrics: BTreeMap<String, f64>,
    pub(crate) histograms: BTreeMap<String, Histogram>,
    pub(crate) requests: Vec<(String, Request)>,
    pub(crate) control: Option<Control>,
    pub(crate) fatal: Option<HookError>,
}

/// What a hook can reach while it runs: the time, the board, metrics, its own randomness, and the way to ask for an end.
/// Never the model or the trainer.
pub struct Cx<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) state: Option<&'a TrainState>,
    pub(crate) hook_id: &'a str,
    pub(crate) verbose: bool,
    pub(crate) extra: Receipt,
}

impl Cx<'_> {
    /// The number of this pass, counted by its manager.
    pub fn pass_number(&self) -> u64 {
        self.facts.number
    }

    /// Step, epoch and batch.
    pub fn clock(&self) -> Clock {
        self.facts.setup.clock
    }

    /// Training, evaluation or generation.
    pub fn mode(&self) -> Mode {
        self.facts.setup.mode
    }

    /// Which gradients the pass is made for.
    pub fn gradients(&self) -> Gradients {
        self.facts.setup.gradients
    }

    /// Which example of a larger batch is the first of this one, where several processes have parts of it.
    pub fn first_row(&self) -> usize {
        self.facts.setup.first_row
    }

    /// The absolute position of the first token of this pass.
    pub fn first_position(&self) -> usize {
        self.facts.setup.first_position
    }

    /// Whether keys and values of this pass are kept for later ones: what is edited at earlier tokens now stays edited.
    pub fn keeps_cache(&self) -> bool {
        self.facts.setup.keeps_cache
    }

    /// Where the tokens of each sequence stand, when some of the batch is padding.
    pub fn rows(&self) -> Option<&Rows> {
        self.facts.setup.rows.as_deref()
    }

    /// This hook's id.
    pub fn hook_id(&self) -> &str {
        self.hook_id
    }

    /// Whether this hook's `verbose` option is on.
    pub fn verbose(&self) -> bool {
        self.verbose
    }

    /// The points and layers of the model.
    pub fn points(&self) -> &PointTable {
        &self.facts.table
    }

    /// All hooks of the manager, in the order in which they run.
    pub fn hooks(&self) -> Vec<HookInfo> {
        self.facts.manager.upgrade().map(|manager| manager.list()).unwrap_or_default()
    }

    /// Where hooks leave things for each other.
    pub fn board(&self) -> &Board {
        &self.facts.board
    }

    /// Random values of this hook's own, the same in every step.
    pub fn random_of_hook(&self) -> Stream {
        hook_stream(self.facts.setup.seed, self.hook_id)
    }

    /// Random values of this hook's own, for this step and micro-batch: no other hook and no layer draws from them. A hook
    /// that draws at several points takes `.named(at.name())` of it, or draws the same at all of them.
    pub fn random(&self) -> Stream {
        let Clock { step, micro_batch, .. } = self.facts.setup.clock;
        self.random_of_hook().at(step).at(micro_batch)
    }

    /// Publishes a metric.
    pub fn log(&mut self, name: impl Into<String>, value: f64) {
        lock(&self.facts.ledger).metrics.insert(name.into(), value);
    }

    /// A metric that a hook published in this pass.
    pub fn metric(&self, name: &str) -> Option<f64> {
        lock(&self.facts.ledger).metrics.get(name).copied()
    }

    /// Publishes a histogram, for logs that can hold one.
    pub fn log_histogram(&mut self, name: impl Into<String>, histogram: Histogram) {
        lock(&self.facts.ledger).histograms.insert(name.into(), histogram);
    }

    /// All metrics that were published in this step or pass so far.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        lock(&self.facts.ledger).metrics.clone()
    }

    /// The state of the run, in its events. `None` at the points of a pass, where there may be no run.
    pub fn state(&self) -> Option<&TrainState> {
        self.state
    }

    /// Asks the trainer for something. It is done before the next event, or for a checkpoint at the next safe place: after the step, with its
    /// validation if one is due. Without a trainer nothing comes of it.
    pub fn request(&mut self, request: Request) {
        lock(&self.facts.ledger).requests.push((self.hook_id.to_string(), request));
    }

    /// Asks for another learning rate, in all groups of all optimizers.
    pub fn set_lr(&mut self, lr: f64) {
        self.request(Request::SetLr { optimizer: None, group: None, lr });
    }

    /// Asks for the learning rates to be multiplied, in all groups of all optimizers.
    pub fn scale_lr(&mut self, factor: f64) {
        self.request(Request::ScaleLr { optimizer: None, group: None, factor });
    }

    /// Asks for the end of the run, in good order, after this step.
    pub fn stop(&mut self, reason: impl Into<String>) {
        let control = Control::Stop { hook_id: self.hook_id.to_string(), reason: reason.into() };
        lock(&self.facts.ledger).control.get_or_insert(control);
    }

    /// Ends the pass at once. Not a failure of the hook.
    pub fn abort(&mut self, reason: impl Into<String>) {
        let control = Control::Abort { hook_id: self.hook_id.to_string(), reason: reason.into() };
        let mut ledger = lock(&self.facts.ledger);
        if !matches!(ledger.control, Some(Control::Abort { .. })) {
            ledger.control = Some(control);
        }
    }

    /// Counts bytes that the hook keeps somewhere else than in the manager's store, for its receipt.
    pub fn count_captured(&mut self, bytes: u64) {
        self.extra.bytes_captured += bytes;
    }

    /// Keeps a tensor in the manager's store of captured states, within its limits.
    pub fn keep(
        &mut self,
        at: &At,
        x: &Tensor,
        retention: Retention,
        layer_idx: Option<usize>,
    ) -> HookResult {
        let states = self.facts.states.as_ref().ok_or("this pass has no store for captured states")?;
        let state = CapturedState {
            point: at.name().to_string(),
            site: at.site(),
            layer_idx: layer_idx.or(at.point().block),
            step: self.facts.setup.clock.step,
            pass: self.facts.number,
            tensor: at.owned(x)?,
        };
        states.keep(self.hook_id, state, retention, &mut self.extra)
    }
}

/// The random stream of a hook.
pub(crate) fn hook_stream(seed: u64, hook_id: &str) -> Stream {
    Stream::new(seed).named("hook").named(hook_id)
}
