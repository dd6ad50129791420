//! A registered hook.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::clock::Clock;
use crate::cx::hook_stream;
use crate::exclusive::Exclusive;
use crate::hook::{Access, Hook, Site};
use crate::manager::SavedHook;
use crate::options::HookOptions;
use crate::receipt::{HookReceipt, Receipt};
use crate::selector::Match;
use crate::sync::lock;

/// Where a hook listens: resolved once, so that making a plan compares no strings.
pub(crate) struct Wiring {
    pub(crate) found: Match,
    pub(crate) site: Site,
    pub(crate) access: Access,
}

pub(crate) struct Slot {
    pub(crate) serial: u64,
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) options: HookOptions,
    pub(crate) wiring: Vec<Wiring>,
    pub(crate) enabled: AtomicBool,
    pub(crate) quarantined: AtomicBool,
    pub(crate) failures_in_a_row: AtomicU32,
    /// What it failed in last. Only the same going well ends a row of failures: most events do nothing in most hooks.
    pub(crate) failed_in: Mutex<String>,
    pub(crate) said_failed: AtomicBool,
    pub(crate) said_slow: AtomicBool,
    pub(crate) totals: Mutex<Receipt>,
    pub(crate) hook: Exclusive<Box<dyn Hook>>,
}

impl Slot {
    pub(crate) fn new(
        serial: u64,
        id: String,
        kind: String,
        options: HookOptions,
        wiring: Vec<Wiring>,
        hook: Box<dyn Hook>,
    ) -> Self {
        Self {
            serial,
            id,
            kind,
            enabled: options.enabled.into(),
            options,
            wiring,
            quarantined: false.into(),
            failures_in_a_row: 0.into(),
            failed_in: Mutex::default(),
            said_failed: false.into(),
            said_slow: false.into(),
            totals: Mutex::default(),
            hook: Exclusive::new(hook),
        }
    }

    /// Whether the hook takes part in a pass at this time.
    pub(crate) fn is_active(&self, clock: &Clock, seed: u64) -> bool {
        self.enabled.load(Relaxed)
            && clock.epoch >= self.options.start_after_epoch
            && self.options.every.is_due(clock)
            && self.is_sampled(clock, seed)
    }

    fn is_sampled(&self, clock: &Clock, seed: u64) -> bool {
        self.options.sample_rate >= 1.0
            || hook_stream(seed, &self.id).named("sample").uniform(clock.step) < self.options.sample_rate
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    pub(crate) fn is_quarantined(&self) -> bool {
        self.quarantined.load(Relaxed)
    }

    pub(crate) fn set_enabled(&self, on: bool) {
        self.failures_in_a_row.store(0, Relaxed);
        self.quarantined.store(false, Relaxed);
        self.enabled.store(on, Relaxed);
    }

    pub(crate) fn note_success(&self, event: &str) {
        if self.failures_in_a_row.load(Relaxed) > 0 && *lock(&self.failed_in) == event {
            self.failures_in_a_row.store(0, Relaxed);
        }
    }

    /// Returns how many failures in a row it is now.
    pub(crate) fn note_failure(&self, event: &str) -> u32 {
        *lock(&self.failed_in) = event.to_string();
        self.failures_in_a_row.fetch_add(1, Relaxed) + 1
    }

    pub(crate) fn quarantine(&self) {
        self.quarantined.store(true, Relaxed);
        self.enabled.store(false, Relaxed);
    }

    /// Brings back how the hook stood when it was saved.
    pub(crate) fn restore(&self, saved: &SavedHook) {
        self.enabled.store(saved.enabled, Relaxed);
        self.quarantined.store(saved.quarantined, Relaxed);
        self.failures_in_a_row.store(saved.failures_in_a_row, Relaxed);
        lock(&self.failed_in).clone_from(&saved.failed_in);
        self.said_failed.store(saved.failed, Relaxed);
    }

    /// The hook with an empty receipt.
    pub(crate) fn describe(&self) -> HookReceipt {
        HookReceipt {
            id: self.id.clone(),
            kind: self.kind.clone(),
            enabled: self.enabled.load(Relaxed),
            quarantined: self.quarantined.load(Relaxed),
            due: self.enabled.load(Relaxed),
            controls: self.wiring.iter().any(|wire| wire.access == Access::Edit),
            matched: self.matched_names(),
            receipt: Receipt::default(),
        }
    }

    fn matched_names(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let names = self.wiring.iter().map(|wire| &*wire.found.name);
        names.filter(|name| seen.insert(*name)).map(str::to_string).collect()
    }
}

/// A number for the calling thread, never 0.
pub(crate) fn thread_tag() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static TAG: u64 = NEXT.fetch_add(1, Relaxed));
    TAG.with(|tag| *tag)
}
