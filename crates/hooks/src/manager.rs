//! The ordered set of hooks on one model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backtrace;
use crate::board::Board;
use crate::clock::PassSetup;
use crate::cx::{Facts, Ledger};
use crate::error::{AttachError, HookResult, nearest};
use crate::hook::{Access, Hook};
use crate::life::Events;
use crate::options::{Every, HookOptions};
use crate::pass::Pass;
use crate::plan::Plan;
use crate::point::PointTable;
use crate::receipt::{HookReceipt, Report};
use crate::selector::Selector;
use crate::slot::{Slot, Wiring, thread_tag};
use crate::state_store::StateStore;
use crate::states::{CaptureLimits, CapturedState, Spill};
use crate::sync::lock;

/// How a manager is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ManagerConfig {
    /// How much the hooks may keep.
    pub limits: CaptureLimits,
    /// Whether hooks may replace tensors at all.
    pub enable_intervention: bool,
}

impl Default for ManagerConfig {
    fn default() -> Self {
        Self { limits: CaptureLimits::default(), enable_intervention: true }
    }
}

/// What a hook keeps across a restart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedHook {
    /// Its id.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// Whether it was on.
    pub enabled: bool,
    /// Whether it was off because it kept failing.
    pub quarantined: bool,
    /// How often it had failed in a row.
    pub failures_in_a_row: u32,
    /// What it had failed in last.
    pub failed_in: String,
    /// Whether it had failed at all.
    pub failed: bool,
    /// What its `save_state` gave.
    pub state: Option<serde_json::Value>,
    /// What its `save_tensors` gave; kept in a file of their own.
    #[serde(skip)]
    pub tensors: Vec<(String, Tensor)>,
}

/// A registered hook, as it stands in lists and records.
pub type HookInfo = HookReceipt;

/// The ordered set of hooks on one model. Clones share it; it can be used from any thread, but run forwards on ordinary threads:
/// a rayon task that waits for a hook may pick up another forward and enter that hook again.
///
/// Registering, removing and toggling take effect at the next pass. User hooks run before built-in ones, each in the order of
/// registration; at one point controllers run before observers.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// use tenterhook_hooks::{HookManager, PassSetup, Point, PointTable, hook_fn};
///
/// let mut points = PointTable::builder();
/// let stream = points.point(Point::new("blocks.0.hook_resid_post", "batch pos d_model"))?;
/// let hooks = HookManager::new(points.build());
///
/// let id = hooks.register(hook_fn::edit("blocks.*.hook_resid_post", |_, x, _| Ok(Some((x * 2.0)?))))?;
/// let pass = hooks.pass(PassSetup::default());
/// let x = pass.tap(stream, Tensor::new(&[1f32, 2.0], &Device::Cpu)?)?;
/// assert_eq!(x.to_vec1::<f32>()?, [2.0, 4.0]);
/// assert_eq!(pass.report().receipt(&id).unwrap().elements_changed, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct HookManager(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) table: Arc<PointTable>,
    config: ManagerConfig,
    pub(crate) board: Arc<Board>,
    pub(crate) states: Arc<StateStore>,
    state: Mutex<State>,
    /// How many passes were made, by branches too: no two have the same number.
    pub(crate) passes: Arc<AtomicU64>,
    /// The serial of the hook that is running.
    pub(crate) running: Arc<AtomicU64>,
    /// Whether failures come with their backtraces.
    pub(crate) debug: AtomicBool,
}

#[derive(Default)]
struct State {
    /// In the order in which they run.
    slots: Vec<Arc<Slot>>,
    next_serial: u64,
    /// Per kind, how many ids were made from it: they are never used again.
    made_ids: BTreeMap<String, u64>,
    cached: Option<Arc<Plan>>,
}

impl HookManager {
    /// A manager for the model with these points.
    pub fn new(points: Arc<PointTable>) -> Self {
        Self::with_config(points, ManagerConfig::default())
    }

    /// The same with limits.
    pub fn with_config(points: Arc<PointTable>, config: ManagerConfig) -> Self {
        let states = Arc::new(StateStore::new(config.limits.clone()));
        Self(Arc::new(Inner {
            table: points,
            config,
            board: Arc::default(),
            states,
            state: Mutex::default(),
            passes: Arc::default(),
            running: Arc::default(),
            debug: AtomicBool::new(false),
        }))
    }

    /// The model's points.
    pub fn points(&self) -> &Arc<PointTable> {
        &self.0.table
    }

    /// Where hooks leave things for each other.
    pub fn board(&self) -> &Board {
        &self.0.board
    }

    /// Whether failures of hooks come with their backtraces, in the log and in [`HookError`](crate::HookError). For that, panics of the
    /// whole process leave a backtrace behind from the first time it is asked for.
    pub fn set_debug(&self, on: bool) {
        if on {
            backtrace::keep_those_of_panics();
        }
        self.0.debug.store(on, Relaxed);
    }

    /// Registers a hook under an id made from its kind, which is returned.
    pub fn register(&self, hook: impl Hook) -> Result<String, AttachError> {
        self.register_with(hook, HookOptions::default())
    }

    /// Registers a hook with options, and returns its id.
    pub fn register_with(&self, hook: impl Hook, options: HookOptions) -> Result<String, AttachError> {
        self.register_boxed(Box::new(hook), options)
    }

    /// The same for a hook whose type is not known, such as one made by a registry.
    pub fn register_boxed(&self, hook: Box<dyn Hook>, options: HookOptions) -> Result<String, AttachError> {
        self.insert(hook, options, None).map(|slot| slot.id.clone())
    }

    /// Registers a hook at these points, in place of those that it names itself.
    pub fn register_at(
        &self,
        select: impl Into<Selector>,
        hook: impl Hook,
        options: HookOptions,
    ) -> Result<String, AttachError> {
        self.insert(Box::new(hook), options, Some(select.into())).map(|slot| slot.id.clone())
    }

    fn insert(
        &self,
        hook: Box<dyn Hook>,
        options: HookOptions,
        at: Option<Selector>,
    ) -> Result<Arc<Slot>, AttachError> {
        // Everything that calls the hook comes before the lock.
        let kind = hook.kind().to_string();
        let problems = options.problems();
        if !problems.is_empty() {
            return Err(AttachError::BadOptions { kind, problems });
        }
        let wiring = self.wire(&*hook, at)?;
        let mut state = lock(&self.0.state);
        let id = state.claim_id(&kind, &options)?;
        state.next_serial += 1;
        let slot = Arc::new(Slot::new(state.next_serial, id, kind, options, wiring, hook));
        let at = state.slots.partition_point(|other| other.options.builtin <= slot.options.builtin);
        state.slots.insert(at, slot.clone());
        state.cached = None;
        Ok(slot)
    }

    /// Registers a hook for as long as the returned guard lives, whatever happens in between.
    pub fn scoped(&self, hook: impl Hook) -> Result<ScopedHook, AttachError> {
        self.scoped_with(hook, HookOptions::default())
    }

    /// The same with options.
    pub fn scoped_with(&self, hook: impl Hook, options: HookOptions) -> Result<ScopedHook, AttachError> {
        let slot = self.insert(Box::new(hook), options, None)?;
        Ok(ScopedHook { id: slot.id.clone(), serial: slot.serial, manager: self.clone() })
    }

    /// A manager with the same hooks, to which others can be added without this one noticing: for one thread, or one pass. The hooks, their
    /// switches and receipts, the board and the captured states are shared.
    ///
    /// ```
    /// # use tenterhook_hooks::{HookManager, Point, PointTable, hook_fn};
    /// # let mut points = PointTable::builder();
    /// # points.point(Point::new("p", "batch"))?;
    /// let hooks = HookManager::new(points.build());
    /// hooks.register(hook_fn::observe("p", |_, _, _| Ok(())))?;
    /// let branch = hooks.branch();
    /// branch.register(hook_fn::edit("p", |_, x, _| Ok(Some((x * 2.0)?))))?;
    /// assert_eq!((hooks.list_hooks().len(), branch.list_hooks().len()), (1, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn branch(&self) -> Self {
        self.branch_of(|_| true)
    }

    /// The same without the hooks that may replace tensors.
    pub fn branch_of_observers(&self) -> Self {
        self.branch_of(|slot| slot.wiring.iter().all(|wire| wire.access == Access::Observe))
    }

    fn branch_of(&self, keeps: impl Fn(&Slot) -> bool) -> Self {
        let state = lock(&self.0.state);
        let branched = State {
            slots: state.slots.iter().filter(|slot| keeps(slot)).cloned().collect(),
            next_serial: state.next_serial,
            made_ids: state.made_ids.clone(),
            cached: None,
        };
        Self(Arc::new(Inner {
            table: self.0.table.clone(),
            config: self.0.config.clone(),
            board: self.0.board.clone(),
            states: self.0.states.clone(),
            state: Mutex::new(branched),
            passes: self.0.passes.clone(),
            running: self.0.running.clone(),
            debug: self.0.debug.load(Relaxed).into(),
        }))
    }

    /// Puts another hook in the place of the one with this id: the same options, the same turn, on or off as it was. The old
    /// one's receipt goes with it; what it captured stays.
    pub fn replace_hook(&self, id: &str, hook: impl Hook) -> Result<(), AttachError> {
        let kind = hook.kind().to_string();
        let wiring = self.wire(&hook, None)?; // before the old one goes
        let removed = {
            let mut state = lock(&self.0.state);
            let at = state.slots.iter().position(|slot| slot.id == id).ok_or_else(|| state.unknown(id))?;
            let old = &state.slots[at];
            let new =
                Slot::new(old.serial, id.to_string(), kind, old.options.clone(), wiring, Box::new(hook));
            new.set_enabled(old.is_enabled() || old.is_quarantined());
            let old = std::mem::replace(&mut state.slots[at], Arc::new(new));
            (old, state.cached.take())
        };
        drop(removed); // outside the lock: a hook's drop may call the manager
        Ok(())
    }

    /// Removes a hook. What it captured stays readable until it is cleared.
    pub fn remove_hook(&self, id: &str) -> Result<(), AttachError> {
        self.remove_where(id, |slot| slot.id == id)
    }

    fn remove_where(&self, id: &str, is_it: impl Fn(&Slot) -> bool) -> Result<(), AttachError> {
        let removed = {
            let mut state = lock(&self.0.state);
            let at = state.slots.iter().position(|slot| is_it(slot)).ok_or_else(|| state.unknown(id))?;
            // A plan that is kept for the next pass holds the hooks of this one.
            let cached = state.cached.take();
            (state.slots.remove(at), cached)
        };
        drop(removed); // outside the lock: a hook's drop may call the manager
        Ok(())
    }

    /// Removes every hook.
    pub fn remove_all(&self) {
        let removed = {
            let mut state = lock(&self.0.state);
            (std::mem::take(&mut state.slots), state.cached.take())
        };
        drop(removed); // outside the lock: a hook's drop may call the manager
    }

    /// Switches a hook on, also one that was disabled because it kept failing.
    pub fn enable_hook(&self, id: &str) -> Result<(), AttachError> {
        self.0.slot(id).map(|slot| slot.set_enabled(true))
    }

    /// Switches a hook off; it keeps its place and its state.
    pub fn disable_hook(&self, id: &str) -> Result<(), AttachError> {
        self.0.slot(id).map(|slot| slot.set_enabled(false))
    }

    /// Whether a hook is on.
    pub fn is_enabled(&self, id: &str) -> Result<bool, AttachError> {
        self.0.slot(id).map(|slot| slot.is_enabled())
    }

    /// All hooks in the order in which they run, with what they did in all passes so far.
    pub fn list_hooks(&self) -> Vec<HookInfo> {
        self.0.list()
    }

    /// What all hooks did in all passes so far. Failures and metrics stand in the reports of the passes.
    pub fn report(&self) -> Report {
        Report { hooks: self.list_hooks(), ..Report::default() }
    }

    /// Calls `f` with the hook of this id, as its own type. An error when it is of another type, or when it is running on this thread.
    pub fn with_hook<H: Hook, R>(&self, id: &str, f: impl FnOnce(&mut H) -> R) -> Result<R, AttachError> {
        let slot = self.0.slot(id)?;
        let found = slot.hook.with(thread_tag(), |hook| {
            let hook: &mut dyn std::any::Any = &mut **hook;
            hook.downcast_mut::<H>().map(f)
        });
        let wrong = || AttachError::WrongKind { id: id.to_string(), expected: std::any::type_name::<H>() };
        found.map_err(|_| AttachError::Busy(id.to_string()))?.ok_or_else(wrong)
    }

    /// A controller that is on and runs in some passes only (`every`, `sample_rate`) at a place that keys and values depend on, with that
    /// place: in a generation with a cache, tokens would stay as they were computed when they came.
    pub fn unsteady_before_cache(&self) -> Option<(String, String)> {
        let unsteady = |slot: &&Arc<Slot>| {
            slot.is_enabled() && (slot.options.every != Every::Steps(1) || slot.options.sample_rate < 1.0)
        };
        self.0.slots().iter().filter(unsteady).find_map(|slot| {
            let feeds = |wire: &&Wiring| {
                wire.access == Access::Edit && self.0.table.point(wire.found.point).feeds_cache
            };
            slot.wiring.iter().find(feeds).map(|wire| (slot.id.clone(), wire.found.name.to_string()))
        })
    }

    /// A pass with the hooks that are on and due at this time.
    pub fn pass(&self, setup: PassSetup) -> Pass {
        let plan = lock(&self.0.state).plan(&self.0.table, &setup);
        let ledger = self.0.begin_forward();
        let facts = Facts {
            table: self.0.table.clone(),
            setup,
            ledger: Mutex::new(ledger),
            number: self.0.passes.fetch_add(1, Relaxed) + 1,
            edited: false.into(),
            board: self.0.board.clone(),
            states: Some(self.0.states.clone()),
            manager: Arc::downgrade(&self.0),
            running: self.0.running.clone(),
        };
        Pass::new(plan, facts)
    }

    /// The events of a step, for whoever runs the loop.
    pub fn events(&self, setup: PassSetup) -> Events {
        Events::new(self.0.clone(), self.0.begin_event_facts(setup))
    }

    /// The hook that is running at this moment, on whichever thread, if any: for whoever watches over a run that hangs.
    pub fn running_hook(&self) -> Option<String> {
        let serial = self.0.running.load(Relaxed);
        self.0.slots().into_iter().find(|slot| slot.serial == serial).map(|slot| slot.id.clone())
    }

    /// What the hook with this id captured, oldest first; also after the hook was removed.
    pub fn get_captured_states(&self, id: &str) -> HookResult<Vec<CapturedState>> {
        self.0.states.get(id)
    }

    /// Forgets what one hook captured, or what all did.
    pub fn clear_captured_states(&self, id: Option<&str>) -> HookResult {
        self.0.states.clear(id)
    }

    /// Bytes of all captured states in memory.
    pub fn captured_bytes(&self) -> usize {
        self.0.states.bytes()
    }

    /// Where captured states go that do not fit, with [`AtLimit::Spill`](crate::AtLimit::Spill).
    pub fn set_spill(&self, spill: impl Spill + 'static) {
        self.0.states.set_spill(Box::new(spill));
    }

    /// What a hook must keep across a restart: its own state, and whether it is on.
    pub fn save_hook(&self, id: &str) -> HookResult<SavedHook> {
        let slot = self.0.slot(id)?;
        let (state, tensors) = slot
            .hook
            .with(thread_tag(), |hook| HookResult::Ok((hook.save_state()?, hook.save_tensors()?)))
            .map_err(|_| "the hook is running on this thread")??;
        Ok(SavedHook {
            id: slot.id.clone(),
            kind: slot.kind.clone(),
            enabled: slot.is_enabled(),
            quarantined: slot.is_quarantined(),
            failures_in_a_row: slot.failures_in_a_row.load(Relaxed),
            failed_in: lock(&slot.failed_in).clone(),
            failed: slot.said_failed.load(Relaxed),
            state,
            tensors,
        })
    }

    /// Gives a hook back what it saved. One of another kind is an error.
    pub fn load_hook(&self, saved: SavedHook) -> HookResult {
        let slot = self.0.slot(&saved.id)?;
        if slot.kind != saved.kind {
            return Err(format!("hook `{}` was a `{}` when it was saved", saved.id, saved.kind).into());
        }
        slot.restore(&saved);
        slot.hook
            .with(thread_tag(), |hook| {
                saved.state.map_or(Ok(()), |state| hook.load_state(state))?;
                if saved.tensors.is_empty() { Ok(()) } else { hook.load_tensors(saved.tensors) }
            })
            .map_err(|_| "the hook is running on this thread")?
    }

    /// The weights that some hook wants validation to use, with that hook's id.
    pub fn validation_weights(&self) -> Option<(String, Vec<(String, Tensor)>)> {
        self.0.slots().iter().filter(|slot| slot.is_enabled()).find_map(|slot| {
            let weights = slot.hook.with(thread_tag(), |hook| hook.validation_weights()).ok().flatten()?;
            Some((slot.id.clone(), weights))
        })
    }

    /// Finds every point the hook wants; a want that matches nothing is an error.
    fn wire(&self, hook: &dyn Hook, at: Option<Selector>) -> Result<Vec<Wiring>, AttachError> {
        let mut wiring: Vec<Wiring> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut wants = hook.wants();
        if let Some(at) = at {
            if wants.is_empty() {
                let problems =
                    vec!["it listens at no point, so that it cannot be attached to one".to_string()];
                return Err(AttachError::BadOptions { kind: hook.kind().to_string(), problems });
            }
            wants.iter_mut().for_each(|want| want.select = at.clone());
        }
        for want in wants {
            if want.access == Access::Edit && !self.0.config.enable_intervention {
                return Err(AttachError::InterventionRefused(hook.kind().to_string()));
            }
            let mut matches = want.select.resolve(&self.0.table, want.site)?;
            if want.site.is_gradient() {
                // A glob over everything also names places such as token ids; asking for those alone is a mistake.
                matches.retain(|found| self.0.table.point(found.point).differentiable);
                if matches.is_empty() {
                    return Err(AttachError::NoGradient(want.select.to_string()));
                }
            }
            for found in matches {
                hook.fits(self.0.table.point(found.point)).map_err(|problem| AttachError::Unfit {
                    kind: hook.kind().to_string(),
                    problem: problem.to_string(),
                })?;
                if want.access == Access::Edit && !self.0.table.point(found.point).writable {
                    return Err(AttachError::NotWritable(found.name.to_string()));
                }
                if seen.insert((found.point, want.site, want.access)) {
                    wiring.push(Wiring { found, site: want.site, access: want.access });
                }
            }
        }
        Ok(wiring)
    }
}

impl Inner {
    fn slot(&self, id: &str) -> Result<Arc<Slot>, AttachError> {
        let state = lock(&self.state);
        state.slots.iter().find(|slot| slot.id == id).cloned().ok_or_else(|| state.unknown(id))
    }

    /// Brings the captured states back under their limits. What that takes is counted with the hooks whose states they are.
    fn begin_forward(&self) -> Ledger {
        let (mut ledger, mut moved) = (Ledger::default(), BTreeMap::new());
        if let Err(error) = self.states.begin_forward(&mut moved) {
            tracing::warn!("captured states could not be moved to disk: {error}");
        }
        for (id, receipt) in moved {
            if let Ok(slot) = self.slot(&id) {
                lock(&slot.totals).add(&receipt);
                ledger.receipts.insert(slot.serial, receipt);
            }
        }
        ledger
    }

    /// All hooks in the order in which they run.
    pub(crate) fn slots(&self) -> Vec<Arc<Slot>> {
        lock(&self.state).slots.clone()
    }

    pub(crate) fn list(&self) -> Vec<HookInfo> {
        let slots = self.slots();
        slots.iter().map(|slot| HookInfo { receipt: lock(&slot.totals).clone(), ..slot.describe() }).collect()
    }
}

impl State {
    fn unknown(&self, id: &str) -> AttachError {
        let ids = self.slots.iter().map(|slot| slot.id.as_str());
        AttachError::UnknownId { id: id.to_string(), nearest: nearest(id, ids, 3) }
    }

    fn is_taken(&self, id: &str) -> bool {
        self.slots.iter().any(|slot| slot.id == id)
    }

    /// Whether this id was made from some kind, at any time.
    fn was_made(&self, id: &str) -> bool {
        let by_number =
            |(kind, number): (&str, &str)| Some(*self.made_ids.get(kind)? >= number.parse().ok()?);
        self.made_ids.contains_key(id) || id.rsplit_once('-').and_then(by_number).unwrap_or(false)
    }

    /// The id given, or the kind, then kind-2, kind-3: readable, and never used twice.
    fn claim_id(&mut self, kind: &str, options: &HookOptions) -> Result<String, AttachError> {
        if let Some(id) = &options.id {
            return if self.is_taken(id) {
                Err(AttachError::DuplicateId(id.clone()))
            } else {
                Ok(id.clone())
            };
        }
        loop {
            let number = self.made_ids.get(kind).copied().unwrap_or(0) + 1;
            let id = if number == 1 { kind.to_string() } else { format!("{kind}-{number}") };
            let is_free = !self.is_taken(&id) && !self.was_made(&id);
            self.made_ids.insert(kind.to_string(), number);
            if is_free {
                return Ok(id);
            }
        }
    }

    /// The plan of the hooks that are active now: the last one, unless somebody came, went, or is not due.
    fn plan(&mut self, table: &Arc<PointTable>, setup: &PassSetup) -> Arc<Plan> {
        let is_active = |slot: &Arc<Slot>| slot.is_active(&setup.clock, setup.seed);
        if let Some(plan) = &self.cached
            && self.slots.iter().map(is_active).eq(plan.active.iter().copied())
        {
            return plan.clone();
        }
        let active: Vec<bool> = self.slots.iter().map(is_active).collect();
        let plan = Arc::new(Plan::new(table.clone(), self.slots.clone(), active));
        self.cached = Some(plan.clone());
        plan
    }
}

/// Removes its hook when dropped.
#[must_use = "the hook is removed when this is dropped"]
pub struct ScopedHook {
    manager: HookManager,
    id: String,
    serial: u64,
}

impl ScopedHook {
    /// The hook's id.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for ScopedHook {
    fn drop(&mut self) {
        // Somebody may have removed it by hand, which is fine, and have given its id to another hook, which is not ours.
        let _ = self.manager.remove_where(&self.id, |slot| slot.serial == self.serial);
    }
}
