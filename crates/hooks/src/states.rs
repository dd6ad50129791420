//! Captured states, and the limits that keep them from filling the memory.

use std::collections::BTreeMap;
use std::sync::Mutex;

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::HookResult;
use crate::hook::Site;
use crate::receipt::Receipt;
use crate::sync::lock;
use crate::tensors::byte_size;

/// A tensor that a hook kept.
#[derive(Clone, Debug)]
pub struct CapturedState {
    /// The name of the point that matched.
    pub point: String,
    /// Whether it is an output (`Forward`), an input (`PreForward`) or a gradient.
    pub site: Site,
    /// The layer's index: the one given at registration, else the point's block.
    pub layer_idx: Option<usize>,
    /// The step it was captured in.
    pub step: u64,
    /// The tensor, detached and in memory of its own.
    pub tensor: Tensor,
}

impl CapturedState {
    /// The sizes of the tensor's axes.
    pub fn shape(&self) -> &[usize] {
        self.tensor.dims()
    }

    /// Whether it is the input of a layer.
    pub fn is_input(&self) -> bool {
        self.site == Site::PreForward
    }
}

/// What happens when a limit is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AtLimit {
    /// The oldest states go.
    #[default]
    DropOldest,
    /// New states are not taken.
    Refuse,
    /// The oldest states are handed to the [`Spill`].
    Spill,
}

/// How much may be kept, over all hooks of a manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CaptureLimits {
    /// At most this many states.
    pub max_captured_states: Option<usize>,
    /// At most this many MiB of tensors. Holds at every moment.
    pub memory_limit_mb: Option<usize>,
    /// `max_captured_states` is enforced every so many forwards; 1 is at once.
    pub cleanup_interval: u64,
    /// What happens at a limit.
    pub at_limit: AtLimit,
}

impl Default for CaptureLimits {
    fn default() -> Self {
        Self { max_captured_states: None, memory_limit_mb: None, cleanup_interval: 1, at_limit: AtLimit::DropOldest }
    }
}

/// How much one hook keeps of its own states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Retention {
    /// Everything, within the manager's limits.
    #[default]
    All,
    /// The states of the latest step.
    Last,
    /// The newest n states.
    Ring(usize),
    /// The newest states that fit into so many bytes.
    Bytes(usize),
}

/// Where states go that no longer fit into memory: implemented by a store on disk.
pub trait Spill: Send {
    /// Takes a state over.
    fn put(&mut self, hook_id: &str, state: &CapturedState) -> HookResult;
    /// Everything taken over for this hook, oldest first.
    fn get(&mut self, hook_id: &str) -> HookResult<Vec<CapturedState>>;
    /// Forgets what was taken over: for one hook, or for all.
    fn clear(&mut self, hook_id: Option<&str>) -> HookResult;
}

/// All states of one manager.
pub(crate) struct StateStore {
    limits: CaptureLimits,
    kept: Mutex<Kept>,
    /// A lock of its own: writing to disk must not stop readers of what is in memory.
    spill: Mutex<Option<Box<dyn Spill>>>,
}

#[derive(Default)]
struct Kept {
    next: u64,
    forwards: u64,
    bytes: usize,
    owners: BTreeMap<u64, String>,
    by_hook: BTreeMap<String, HookStates>,
}

#[derive(Default)]
struct HookStates {
    states: BTreeMap<u64, CapturedState>,
    bytes: usize,
}

impl StateStore {
    pub(crate) fn new(limits: CaptureLimits) -> Self {
        Self { limits, kept: Mutex::default(), spill: Mutex::new(None) }
    }

    pub(crate) fn set_spill(&self, spill: Box<dyn Spill>) {
        *lock(&self.spill) = Some(spill);
    }

    /// Keeps a state and makes room for it. The receipt says what that took.
    pub(crate) fn keep(&self, hook: &str, state: CapturedState, retention: Retention) -> HookResult<Receipt> {
        let mut receipt = Receipt::default();
        let size = byte_size(&state.tensor);
        let evicted = {
            let mut kept = lock(&self.kept);
            if !self.has_room(&kept, size) {
                receipt.states_refused = 1;
                return Ok(receipt);
            }
            receipt.bytes_captured = size as u64;
            let step = state.step;
            kept.insert(hook, state, size);
            receipt.states_dropped += kept.retain(hook, retention, step);
            let at_once = self.limits.cleanup_interval <= 1;
            self.evict(&mut kept, at_once)
        };
        self.dispose(evicted, &mut receipt)?;
        Ok(receipt)
    }

    /// Counts a forward; every `cleanup_interval` of them the number of states is brought back under its limit.
    pub(crate) fn begin_forward(&self) -> HookResult<Receipt> {
        let mut receipt = Receipt::default();
        let evicted = {
            let mut kept = lock(&self.kept);
            kept.forwards += 1;
            let due = kept.forwards.is_multiple_of(self.limits.cleanup_interval.max(1));
            self.evict(&mut kept, due)
        };
        self.dispose(evicted, &mut receipt)?;
        Ok(receipt)
    }

    pub(crate) fn get(&self, hook: &str) -> HookResult<Vec<CapturedState>> {
        let mut states = match &mut *lock(&self.spill) {
            Some(spill) => spill.get(hook)?,
            None => Vec::new(),
        };
        if let Some(kept) = lock(&self.kept).by_hook.get(hook) {
            states.extend(kept.states.values().cloned());
        }
        Ok(states)
    }

    pub(crate) fn clear(&self, hook: Option<&str>) -> HookResult {
        let gone = lock(&self.kept).take(hook);
        drop(gone); // outside the lock: freeing gigabytes takes a while
        match &mut *lock(&self.spill) {
            Some(spill) => spill.clear(hook),
            None => Ok(()),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        lock(&self.kept).bytes
    }

    fn byte_limit(&self) -> Option<usize> {
        self.limits.memory_limit_mb.map(|mib| mib << 20)
    }

    fn has_room(&self, kept: &Kept, size: usize) -> bool {
        let fits_at_all = self.byte_limit().is_none_or(|limit| size <= limit);
        if self.limits.at_limit != AtLimit::Refuse {
            return fits_at_all;
        }
        let fits_now = self.byte_limit().is_none_or(|limit| kept.bytes + size <= limit);
        fits_now && self.limits.max_captured_states.is_none_or(|max| kept.owners.len() < max)
    }

    fn evict(&self, kept: &mut Kept, count_too: bool) -> Vec<(String, CapturedState)> {
        let mut evicted = Vec::new();
        loop {
            let too_many =
                count_too && self.limits.max_captured_states.is_some_and(|max| kept.owners.len() > max);
            let too_large = self.byte_limit().is_some_and(|limit| kept.bytes > limit);
            if !too_many && !too_large {
                return evicted;
            }
            match kept.pop_oldest() {
                Some(oldest) => evicted.push(oldest),
                None => return evicted,
            }
        }
    }

    fn dispose(&self, evicted: Vec<(String, CapturedState)>, receipt: &mut Receipt) -> HookResult {
        for (hook, state) in evicted {
            match &mut *lock(&self.spill) {
                Some(spill) if self.limits.at_limit == AtLimit::Spill => {
                    spill.put(&hook, &state)?;
                    receipt.states_spilled += 1;
                }
                _ => receipt.states_dropped += 1,
            }
        }
        Ok(())
    }
}

impl Kept {
    fn insert(&mut self, hook: &str, state: CapturedState, size: usize) {
        let serial = self.next;
        self.next += 1;
        self.bytes += size;
        self.owners.insert(serial, hook.to_string());
        let states = self.by_hook.entry(hook.to_string()).or_default();
        states.bytes += size;
        states.states.insert(serial, state);
    }

    /// Takes out the states of one hook, or all.
    fn take(&mut self, hook: Option<&str>) -> Vec<HookStates> {
        let gone: Vec<HookStates> = match hook {
            Some(hook) => self.by_hook.remove(hook).into_iter().collect(),
            None => std::mem::take(&mut self.by_hook).into_values().collect(),
        };
        for states in &gone {
            self.bytes -= states.bytes;
            for serial in states.states.keys() {
                self.owners.remove(serial);
            }
        }
        gone
    }

    fn pop_oldest(&mut self) -> Option<(String, CapturedState)> {
        let (serial, hook) = self.owners.pop_first()?;
        let state = self.remove(serial, &hook)?;
        Some((hook, state))
    }

    fn remove(&mut self, serial: u64, hook: &str) -> Option<CapturedState> {
        let states = self.by_hook.get_mut(hook)?;
        let state = states.states.remove(&serial)?;
        let size = byte_size(&state.tensor);
        states.bytes -= size;
        if states.states.is_empty() {
            self.by_hook.remove(hook);
        }
        self.bytes -= size;
        self.owners.remove(&serial);
        Some(state)
    }

    /// Applies a hook's own retention; returns how many states went.
    fn retain(&mut self, hook: &str, retention: Retention, step: u64) -> u64 {
        let mut dropped = 0;
        while let Some(states) = self.by_hook.get(hook) {
            let Some((&oldest, state)) = states.states.first_key_value() else { break };
            let surplus = match retention {
                Retention::All => false,
                Retention::Last => state.step != step,
                Retention::Ring(n) => states.states.len() > n.max(1),
                Retention::Bytes(limit) => states.bytes > limit && states.states.len() > 1,
            };
            if !surplus {
                break;
            }
            self.remove(oldest, hook);
            dropped += 1;
        }
        dropped
    }
}
