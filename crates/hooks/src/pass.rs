//! What one forward, and its backward, carries.

use std::any::Any;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use candle_core::{Error, Result, Tensor, Var};

use crate::clock::{Gradients, Mode, PassSetup};
use crate::cx::{Facts, Ledger};
use crate::error::HookError;
use crate::gradient_tap::{GradientHooks, GradientTap};
use crate::guard;
use crate::hook::At;
use crate::plan::{Listener, Listens, Plan};
use crate::point::{PointId, PointTable};
use crate::random::Stream;
use crate::receipt::{Control, HookReceipt, Report};
use crate::sync::lock;

/// Called with a gradient in the backward pass; for kernels that show a gradient beside their result.
pub type GradientObserver = Arc<dyn Fn(&Tensor) -> Result<()> + Send + Sync>;

/// What one forward, and its backward, carries: who listens where, in which mode, and what the hooks did.
///
/// A model hands it down (`forward(&self, x, &pass)`) and calls [`tap`](Pass::tap) at its points. Clones share everything.
#[derive(Clone)]
pub struct Pass {
    /// One byte per point, empty when nobody listens: the only thing an unarmed point reads.
    armed: Arc<[u8]>,
    plan: Arc<Plan>,
    facts: Arc<Facts>,
}

impl Default for Pass {
    fn default() -> Self {
        Self::silent(PassSetup::default())
    }
}

impl Pass {
    /// A pass with no hooks. Any model takes it.
    pub fn silent(setup: PassSetup) -> Self {
        static NOBODY: OnceLock<Arc<Plan>> = OnceLock::new();
        let plan = NOBODY.get_or_init(|| Arc::new(Plan::empty(Arc::default(), Vec::new())));
        let facts = Facts {
            table: plan.table.clone(),
            setup,
            ledger: Mutex::default(),
            number: 0,
            edited: false.into(),
            board: Arc::default(),
            states: None,
            manager: Weak::new(),
            running: Arc::default(),
        };
        Self::new(plan.clone(), facts)
    }

    pub(crate) fn new(plan: Arc<Plan>, facts: Facts) -> Self {
        let armed = match facts.setup.gradients {
            Gradients::Off => plan.armed_values.clone(),
            _ => plan.armed.clone(),
        };
        Self { armed, plan, facts: Arc::new(facts) }
    }

    /// Checks that this pass was made for the model with this table. Models call it once, at the door.
    pub fn enter(&self, table: &Arc<PointTable>) -> Result<()> {
        if self.armed.is_empty() || Arc::ptr_eq(&self.plan.table, table) {
            return Ok(());
        }
        Err(Error::msg(
            "this pass was made by the hook manager of another model: its hooks would listen at the wrong places",
        ))
    }

    /// Whether anybody listens at this point.
    #[inline(always)]
    pub fn armed(&self, point: PointId) -> bool {
        self.armed.get(point.0 as usize).is_some_and(|byte| *byte != 0)
    }

    /// Who listens at this point.
    #[inline]
    pub fn listens(&self, point: PointId) -> Listens {
        Listens::from_byte(self.armed.get(point.0 as usize).copied().unwrap_or(0))
    }

    /// Lets the hooks at this point see and replace a tensor that owns its storage. With nobody there it is one load and a branch.
    #[inline(always)]
    pub fn tap(&self, point: PointId, x: Tensor) -> Result<Tensor> {
        if self.armed(point) { self.fire(point, x, None, true) } else { Ok(x) }
    }

    /// The same for the output of a layer, whose input hooks can see as well.
    #[inline(always)]
    pub fn tap_output(&self, point: PointId, input: &Tensor, x: Tensor) -> Result<Tensor> {
        if self.armed(point) { self.fire(point, x, Some(input), true) } else { Ok(x) }
    }

    /// The same for a tensor that may share its storage with a parameter, a cache or something unknown: whoever keeps it gets a copy.
    #[inline(always)]
    pub fn tap_shared(&self, point: PointId, input: Option<&Tensor>, x: Tensor) -> Result<Tensor> {
        if self.armed(point) { self.fire(point, x, input, false) } else { Ok(x) }
    }

    #[cold]
    #[inline(never)]
    fn fire(&self, point: PointId, mut x: Tensor, input: Option<&Tensor>, mut owned: bool) -> Result<Tensor> {
        let Some(listeners) = self.plan.listeners.get(&point) else { return Ok(x) };
        // What a controller handed out may pass at further points, unchanged.
        owned &= !self.facts.edited.load(Relaxed);
        let input = input.map(Tensor::detach);
        let (table, input) = (&*self.plan.table, input.as_ref());
        let observe = |list: &[Listener], x: &Tensor, owned: bool| -> Result<()> {
            if list.is_empty() {
                return Ok(());
            }
            let seen = x.detach(); // else an observer's own arithmetic grows the tape
            let owned = owned.then(|| seen.id());
            list.iter().try_for_each(|listener| {
                let at = At::listener(table, point, listener, input, owned);
                guard::observe(&listener.slot, &self.facts, &at, &seen)
            })
        };
        observe(&listeners.observe_before, &x, owned)?;
        for listener in &listeners.edit {
            let at = At::listener(table, point, listener, input, owned.then(|| x.id()));
            if let Some(edited) = guard::edit(&listener.slot, &self.facts, &at, &x)? {
                x = edited;
                owned = false; // a controller may hand out a tensor that it keeps, or a parameter
                self.facts.edited.store(true, Relaxed);
            }
        }
        observe(&listeners.observe, &x, owned)?;
        let gradients_wanted = !listeners.edit_gradient.is_empty() || !listeners.observe_gradient.is_empty();
        // Token ids and the like have no gradient: a glob may well match their points too.
        if gradients_wanted && self.facts.setup.gradients != Gradients::Off && x.dtype().is_float() {
            x = self.tap_gradient(GradientHooks::new(self.facts.clone(), point, listeners), x)?;
        }
        Ok(x)
    }

    /// Shows a value to the observers of a point that no controller listens to: for kernels that give out what they compute
    /// inside, beside their result.
    pub fn show(&self, point: PointId, x: &Tensor) -> Result<()> {
        let Some(listeners) = self.plan.listeners.get(&point) else { return Ok(()) };
        let seen = x.detach();
        listeners.observe_before.iter().chain(&listeners.observe).try_for_each(|listener| {
            let at = At::listener(&self.plan.table, point, listener, None, Some(seen.id()));
            guard::observe(&listener.slot, &self.facts, &at, &seen)
        })
    }

    /// `x`, or a leaf with its value where the pass is made for gradients and nothing upstream has any: what kernels need that
    /// show gradients with [`gradient_observer`](Pass::gradient_observer), or no gradient would ever come by.
    pub fn leaf(&self, x: &Tensor) -> Result<Tensor> {
        if x.track_op() || self.facts.setup.gradients == Gradients::Off {
            return Ok(x.clone());
        }
        Ok(Var::from_tensor(&x.contiguous()?)?.into_inner())
    }

    fn tap_gradient(&self, hooks: GradientHooks, x: Tensor) -> Result<Tensor> {
        // Nothing upstream may be trained: then the value becomes a leaf of its own.
        let x = self.leaf(&x)?;
        // Other devices copy whole storages, so a view into a larger one is copied out first.
        let x = if x.device().is_cpu() { x.contiguous()? } else { x.force_contiguous()? };
        x.apply_op1(GradientTap(hooks))
    }

    /// The gradient observers of a point, for a kernel that computes that gradient inside and can show it.
    pub fn gradient_observer(&self, point: PointId) -> Option<GradientObserver> {
        if !self.listens(point).gradient_observed() {
            return None;
        }
        let hooks = GradientHooks::new(self.facts.clone(), point, self.plan.listeners.get(&point)?);
        Some(Arc::new(move |gradient| hooks.observe(gradient)))
    }

    /// How the pass was set up.
    pub fn setup(&self) -> &PassSetup {
        &self.facts.setup
    }

    /// Whether dropout is on.
    pub fn is_training(&self) -> bool {
        self.facts.setup.mode == Mode::Train
    }

    /// Whether parameters are to get gradients.
    pub fn tracks_parameters(&self) -> bool {
        self.facts.setup.gradients == Gradients::Parameters
    }

    /// The randomness of layers in this pass: another one for every step and micro-batch.
    pub fn random(&self) -> Stream {
        let setup = &self.facts.setup;
        Stream::new(setup.seed).named("pass").at(setup.clock.step).at(setup.clock.micro_batch)
    }

    /// Which example of a larger batch is the first of this one, where several processes have parts of it.
    pub fn first_row(&self) -> usize {
        self.facts.setup.first_row
    }

    /// What the maker of the pass put in for layers, by type.
    pub fn extension<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.facts.setup.extensions.iter().find_map(|value| value.clone().downcast().ok())
    }

    pub(crate) fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        lock(&self.facts.ledger)
    }

    /// The failure that ended the pass, when a hook with [`OnError::Abort`](crate::OnError::Abort) failed.
    pub fn fatal(&self) -> Option<HookError> {
        lock(&self.facts.ledger).fatal.clone()
    }

    /// The end that a hook asked for.
    pub fn control(&self) -> Option<Control> {
        lock(&self.facts.ledger).control.clone()
    }

    /// What every hook did in this pass so far, those included that did nothing.
    pub fn report(&self) -> Report {
        let ledger: &Ledger = &lock(&self.facts.ledger);
        let hooks = self.plan.slots.iter().zip(&self.plan.active).map(|(slot, due)| {
            let receipt = ledger.receipts.get(&slot.serial).cloned().unwrap_or_default();
            HookReceipt { receipt, due: *due, ..slot.describe() }
        });
        Report {
            hooks: hooks.collect(),
            errors: ledger.errors.clone(),
            metrics: ledger.metrics.clone(),
            control: ledger.control.clone(),
        }
    }
}
