//! What every hook really did.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::error::HookError;

/// What one hook did: in one pass, or in all passes so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Receipt {
    /// How often it was called at its points.
    pub fired: u64,
    /// How many events of the run it was told of, updates of gradients included.
    pub events: u64,
    /// How often it replaced a tensor.
    pub edits: u64,
    /// How many elements its replacements changed. Edits that changed nothing are worth a look.
    pub elements_changed: u64,
    /// Bytes of the states it captured.
    pub bytes_captured: u64,
    /// States that had to go to stay within the limits.
    pub states_dropped: u64,
    /// States that were not taken because of the limits.
    pub states_refused: u64,
    /// States that were moved to disk because of the limits.
    pub states_spilled: u64,
    /// Time spent inside it.
    pub nanoseconds: u64,
    /// Calls slower than its `slow_after_ms`.
    pub slow_calls: u64,
    /// How often it failed.
    pub errors: u64,
}

impl Receipt {
    pub(crate) const NOTHING: Self = Self {
        fired: 0,
        events: 0,
        edits: 0,
        elements_changed: 0,
        bytes_captured: 0,
        states_dropped: 0,
        states_refused: 0,
        states_spilled: 0,
        nanoseconds: 0,
        slow_calls: 0,
        errors: 0,
    };

    pub(crate) fn add(&mut self, other: &Receipt) {
        self.fired += other.fired;
        self.events += other.events;
        self.edits += other.edits;
        self.elements_changed += other.elements_changed;
        self.bytes_captured += other.bytes_captured;
        self.states_dropped += other.states_dropped;
        self.states_refused += other.states_refused;
        self.states_spilled += other.states_spilled;
        self.nanoseconds += other.nanoseconds;
        self.slow_calls += other.slow_calls;
        self.errors += other.errors;
    }
}

/// A hook, where it listens, and its receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HookReceipt {
    /// The hook's id.
    pub id: String,
    /// The hook's kind.
    pub kind: String,
    /// Whether it is on.
    pub enabled: bool,
    /// Whether it was disabled because it kept failing.
    pub quarantined: bool,
    /// Whether it took part in this pass: on, and due by `every`, `sample_rate` and `start_after_epoch`. Over all passes: whether it is on.
    pub due: bool,
    /// Whether it may replace tensors.
    pub controls: bool,
    /// The names of the points it listens to.
    pub matched: Vec<String>,
    /// What it did.
    #[serde(flatten)]
    pub receipt: Receipt,
}

/// An end that a hook asked for. Not a failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Control {
    /// The run should end in good order after this step.
    Stop {
        /// Who asked.
        hook_id: String,
        /// Why.
        reason: String,
    },
    /// The pass ended at once.
    Abort {
        /// Who asked.
        hook_id: String,
        /// Why.
        reason: String,
    },
}

/// What all hooks did, with failures, metrics and requests.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// One entry per hook, in the order in which they run.
    pub hooks: Vec<HookReceipt>,
    /// Every failure.
    pub errors: Vec<HookError>,
    /// The last value of every metric that hooks logged.
    pub metrics: BTreeMap<String, f64>,
    /// The first end that was asked for.
    pub control: Option<Control>,
}

impl Report {
    /// Adds what the same hooks did in another pass.
    pub fn add(&mut self, other: Report) {
        for theirs in other.hooks {
            match self.hooks.iter_mut().find(|hook| hook.id == theirs.id) {
                Some(ours) => {
                    ours.receipt.add(&theirs.receipt);
                    ours.due |= theirs.due;
                }
                None => self.hooks.push(theirs),
            }
        }
        self.errors.extend(other.errors);
        self.metrics.extend(other.metrics);
        self.control = self.control.take().or(other.control);
    }

    /// The receipt of one hook.
    pub fn receipt(&self, id: &str) -> Option<&Receipt> {
        self.hooks.iter().find(|hook| hook.id == id).map(|hook| &hook.receipt)
    }

    /// Hooks that took part and listen somewhere, and were never called.
    pub fn never_fired(&self) -> impl Iterator<Item = &HookReceipt> {
        self.hooks.iter().filter(|hook| hook.due && !hook.matched.is_empty() && hook.receipt.fired == 0)
    }

    /// Controllers that were called and did not change a single element.
    pub fn without_effect(&self) -> impl Iterator<Item = &HookReceipt> {
        let called = |hook: &&HookReceipt| hook.receipt.fired > hook.receipt.errors && hook.controls;
        self.hooks.iter().filter(called).filter(|hook| hook.receipt.elements_changed == 0)
    }

    /// What is worth a look, in words: hooks that were never called, controllers that changed nothing.
    pub fn warnings(&self) -> Vec<String> {
        let idle = self.never_fired().map(|hook| format!("hook `{}` was never called", hook.id));
        let vain = self.without_effect().map(|hook| {
            format!("hook `{}` was called {} times and changed no element", hook.id, hook.receipt.fired)
        });
        idle.chain(vain).collect()
    }

    /// Whether any hook failed.
    pub fn degraded(&self) -> bool {
        self.hooks.iter().any(|hook| hook.receipt.errors > 0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<24} {:>7} {:>7} {:>7} {:>12} {:>9} {:>7}",
            "hook", "points", "fired", "edits", "bytes", "ms", "errors"
        )?;
        for hook in &self.hooks {
            let receipt = &hook.receipt;
            let milliseconds = receipt.nanoseconds as f64 / 1e6;
            write!(f, "{:<24} {:>7} {:>7} ", hook.id, hook.matched.len(), receipt.fired)?;
            writeln!(
                f,
                "{:>7} {:>12} {milliseconds:>9.2} {:>7}",
                receipt.edits, receipt.bytes_captured, receipt.errors
            )?;
        }
        for warning in self.warnings() {
            writeln!(f, "warning: {warning}")?;
        }
        self.errors.iter().try_for_each(|error| writeln!(f, "error: {error}"))
    }
}
