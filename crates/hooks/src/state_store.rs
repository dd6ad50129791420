//! Where captured states are kept, within the limits.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::error::HookResult;
use crate::receipt::Receipt;
use crate::states::{AtLimit, CaptureLimits, CapturedState, Retention, Spill};
use crate::sync::lock;
use crate::tensors::byte_size;

/// All states of one manager.
pub(crate) struct StateStore {
    limits: CaptureLimits,
    kept: Mutex<Kept>,
    /// Only used, and then always locked before `kept`, with [`AtLimit::Spill`]: a state on its way to disk is never out of sight.
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

type Evicted = Vec<(String, CapturedState)>;

impl StateStore {
    pub(crate) fn new(limits: CaptureLimits) -> Self {
        Self { limits, kept: Mutex::default(), spill: Mutex::new(None) }
    }

    pub(crate) fn set_spill(&self, spill: Box<dyn Spill>) {
        let previous = lock(&self.spill).replace(spill);
        drop(previous); // outside the lock: it may close files
    }

    /// Keeps a state and makes room for it. The receipt says what that took, also when it fails half-way.
    pub(crate) fn keep(
        &self,
        hook: &str,
        state: CapturedState,
        retention: Retention,
        receipt: &mut Receipt,
    ) -> HookResult {
        let spill = self.lock_spill();
        let (size, pass) = (byte_size(&state.tensor), state.pass);
        let (retired, evicted) = {
            let mut kept = lock(&self.kept);
            if !self.has_room(&kept, size) {
                receipt.states_refused += 1;
                return Ok(());
            }
            receipt.bytes_captured += size as u64;
            kept.insert(hook, state, size);
            let at_once = self.limits.cleanup_interval <= 1;
            (kept.retain(hook, retention, pass), self.evict(&mut kept, at_once))
        };
        receipt.states_dropped += retired.len() as u64;
        self.dispose(evicted, spill, |_, moved| receipt.add(&moved))
    }

    /// Counts a forward; every `cleanup_interval` of them the number of states is brought back under its limit. `moved` gets
    /// what that took, by the id of the hook whose states they were.
    pub(crate) fn begin_forward(&self, moved: &mut BTreeMap<String, Receipt>) -> HookResult {
        let spill = self.lock_spill();
        let evicted = {
            let mut kept = lock(&self.kept);
            kept.forwards += 1;
            let due = kept.forwards.is_multiple_of(self.limits.cleanup_interval.max(1));
            self.evict(&mut kept, due)
        };
        self.dispose(evicted, spill, |hook, receipt| moved.entry(hook.to_string()).or_default().add(&receipt))
    }

    pub(crate) fn get(&self, hook: &str) -> HookResult<Vec<CapturedState>> {
        let mut spill = self.lock_spill();
        let mut states = match spill.as_mut().and_then(|spill| spill.as_mut()) {
            Some(spill) => spill.get(hook)?,
            None => Vec::new(),
        };
        if let Some(kept) = lock(&self.kept).by_hook.get(hook) {
            states.extend(kept.states.values().cloned());
        }
        Ok(states)
    }

    pub(crate) fn clear(&self, hook: Option<&str>) -> HookResult {
        let mut spill = self.lock_spill();
        let gone = lock(&self.kept).take(hook);
        drop(gone); // outside the lock: freeing gigabytes takes a while
        match spill.as_mut().and_then(|spill| spill.as_mut()) {
            Some(spill) => spill.clear(hook),
            None => Ok(()),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        lock(&self.kept).bytes
    }

    fn lock_spill(&self) -> Option<MutexGuard<'_, Option<Box<dyn Spill>>>> {
        (self.limits.at_limit == AtLimit::Spill).then(|| lock(&self.spill))
    }

    fn byte_limit(&self) -> Option<usize> {
        self.limits.memory_limit_mb.map(|mib| mib.saturating_mul(1 << 20))
    }

    fn has_room(&self, kept: &Kept, size: usize) -> bool {
        match self.limits.at_limit {
            AtLimit::Spill => true,
            AtLimit::DropOldest => self.byte_limit().is_none_or(|limit| size <= limit),
            AtLimit::Refuse => {
                let fits = self.byte_limit().is_none_or(|limit| kept.bytes + size <= limit);
                fits && self.limits.max_captured_states.is_none_or(|max| kept.owners.len() < max)
            }
        }
    }

    fn evict(&self, kept: &mut Kept, count_too: bool) -> Evicted {
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

    /// Hands evicted states to the spill, or drops them. Every one is counted, whatever fails.
    fn dispose(
        &self,
        evicted: Evicted,
        mut spill: Option<MutexGuard<'_, Option<Box<dyn Spill>>>>,
        mut count: impl FnMut(&str, Receipt),
    ) -> HookResult {
        let mut outcome = Ok(());
        for (hook, state) in evicted {
            let spilled = match spill.as_mut().map(|spill| spill.as_mut()) {
                None => None, // dropping was asked for
                Some(Some(spill)) => Some(spill.put(&hook, &state)),
                Some(None) => {
                    Some(Err("`at_limit` is `spill`, and no store was given to `set_spill`".into()))
                }
            };
            match spilled {
                Some(Ok(())) => count(&hook, Receipt { states_spilled: 1, ..Receipt::default() }),
                dropped => {
                    count(&hook, Receipt { states_dropped: 1, ..Receipt::default() });
                    outcome = outcome.and(dropped.unwrap_or(Ok(())));
                }
            }
        }
        outcome
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

    /// Applies a hook's own retention; returns the states that went.
    fn retain(&mut self, hook: &str, retention: Retention, pass: u64) -> Vec<CapturedState> {
        let mut dropped = Vec::new();
        while let Some(states) = self.by_hook.get(hook) {
            let Some((&oldest, state)) = states.states.first_key_value() else { break };
            let surplus = match retention {
                Retention::All => false,
                Retention::Last => state.pass != pass,
                Retention::Ring(n) => states.states.len() > n.max(1),
                Retention::Bytes(limit) => states.bytes > limit && states.states.len() > 1,
            };
            if !surplus {
                break;
            }
            dropped.extend(self.remove(oldest, hook));
        }
        dropped
    }
}
