//! The locks used in this crate. One module names them, so that the model checker can put its own in their place.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Locks, also when another thread panicked while it held the lock: what we keep behind locks is valid after every
/// single write, and a hook's panic must never poison a run.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
