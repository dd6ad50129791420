//! Being asked to leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A flag that asks a run to save and leave, at the next safe place. Clones share it; a signal handler may set it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Asks the run to leave.
    pub fn raise(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether somebody asked.
    pub fn is_raised(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// The flag itself, for a signal handler.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}
