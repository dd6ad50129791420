//! What a hook can reach while it runs.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};

use candle_core::Tensor;

use crate::board::Board;
use crate::clock::{Clock, Gradients, Mode, PassSetup};
use crate::error::{HookError, HookResult};
use crate::hook::At;
use crate::manager::{HookInfo, Inner};
use crate::point::PointTable;
use crate::random::Stream;
use crate::receipt::{Control, Receipt};
use crate::state_store::StateStore;
use crate::states::{CapturedState, Retention};
use crate::sync::lock;
use crate::tensors::keepable;

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
}

/// What the hooks of one pass did.
#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) receipts: BTreeMap<u64, Receipt>,
    pub(crate) errors: Vec<HookError>,
    pub(crate) metrics: BTreeMap<String, f64>,
    pub(crate) control: Option<Control>,
    pub(crate) fatal: Option<HookError>,
}

/// What a hook can reach while it runs: the time, the board, metrics, its own randomness, and the way to ask for an end.
/// Never the model or the trainer.
pub struct Cx<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) hook_id: &'a str,
    pub(crate) extra: Receipt,
}

impl Cx<'_> {
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

    /// The absolute position of the first token of this pass.
    pub fn first_position(&self) -> usize {
        self.facts.setup.first_position
    }

    /// This hook's id.
    pub fn hook_id(&self) -> &str {
        self.hook_id
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

    /// Random values of this hook's own, for this step and micro-batch: no other hook and no layer draws from them. A hook
    /// that draws at several points takes `.named(at.name())` of it, or draws the same at all of them.
    pub fn random(&self) -> Stream {
        let Clock { step, micro_batch, .. } = self.facts.setup.clock;
        hook_stream(self.facts.setup.seed, self.hook_id).at(step).at(micro_batch)
    }

    /// Publishes a metric.
    pub fn log(&mut self, name: impl Into<String>, value: f64) {
        lock(&self.facts.ledger).metrics.insert(name.into(), value);
    }

    /// A metric that a hook published in this pass.
    pub fn metric(&self, name: &str) -> Option<f64> {
        lock(&self.facts.ledger).metrics.get(name).copied()
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
            tensor: keepable(x, at.owned == Some(x.id()))?,
        };
        states.keep(self.hook_id, state, retention, &mut self.extra)
    }
}

/// The random stream of a hook.
pub(crate) fn hook_stream(seed: u64, hook_id: &str) -> Stream {
    Stream::new(seed).named("hook").named(hook_id)
}
