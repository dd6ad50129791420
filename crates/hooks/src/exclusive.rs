//! One caller at a time, and an error instead of a deadlock when a caller comes back in.
//!
//! This is the only place with its own synchronisation protocol; `tests/loom_exclusive.rs` explores all its interleavings.

use super::sync::{AtomicU64, Mutex, Ordering, lock};

/// A value that one thread at a time may use. A thread that asks again while it is inside gets an error.
pub(crate) struct Exclusive<T: ?Sized> {
    /// The tag of the thread inside, 0 when nobody is. Only the thread itself ever writes its own tag here, while it holds
    /// the lock, so reading its own tag means that it is inside: relaxed order is enough.
    inside: AtomicU64,
    value: Mutex<T>,
}

/// The calling thread is inside already.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reentered;

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inside: AtomicU64::new(0), value: Mutex::new(value) }
    }

    /// Runs `f` with the value. `thread` is a number other than 0 that is unique to the calling thread.
    pub(crate) fn with<R>(&self, thread: u64, f: impl FnOnce(&mut T) -> R) -> Result<R, Reentered> {
        if self.inside.load(Ordering::Relaxed) == thread {
            return Err(Reentered);
        }
        let mut value = lock(&self.value);
        let leave = Leave::enter(&self.inside, thread);
        let result = f(&mut value);
        drop(leave); // before the lock is released
        Ok(result)
    }
}

/// Clears the tag also when `f` panics.
struct Leave<'a>(&'a AtomicU64);

impl<'a> Leave<'a> {
    fn enter(inside: &'a AtomicU64, thread: u64) -> Self {
        inside.store(thread, Ordering::Relaxed);
        Self(inside)
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
