//! Between the one who captures and the thread that writes: a queue, and the memory that both may take together.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::batch::Parts;
use super::error::StoreError;
use super::writer::WhenFull;

/// The queue and the budget. One lock for both, so that nobody waits for memory that only the other one, who waits for work, could free.
#[derive(Debug)]
pub(super) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    peak: usize,
    /// Somebody waits for memory: what is not worth a shard yet has to go too.
    waiting: usize,
    queue: VecDeque<Parts>,
    closed: bool,
    failure: Option<String>,
}

/// What there is to do for the thread that writes.
pub(super) enum Work {
    Batch(Box<Parts>),
    /// Write what there is, whole shard or not.
    Flush,
    /// Nothing will come any more.
    End,
}

impl Desk {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), limit })
    }

    /// The most bytes that were held at a time.
    pub(super) fn peak(&self) -> usize {
        self.lock().peak
    }

    /// Takes memory for `bytes` more of a batch that has `own` already, and waits for it where that is wanted.
    pub(super) fn reserve(
        self: &Arc<Self>,
        bytes: usize,
        own: usize,
        when_full: WhenFull,
    ) -> Result<Held, StoreError> {
        let needed = own.saturating_add(bytes);
        if needed > self.limit {
            return Err(StoreError::TooLarge { needed, limit: self.limit });
        }
        let mut state = self.lock();
        loop {
            if let Some(failure) = &state.failure {
                return Err(StoreError::Stopped(failure.clone()));
            }
            if state.used + bytes <= self.limit {
                state.used += bytes;
                state.peak = state.peak.max(state.used);
                return Ok(Held { desk: self.clone(), bytes });
            }
            if when_full != WhenFull::Wait {
                return Err(StoreError::Full { limit: self.limit });
            }
            state.waiting += 1;
            self.changed.notify_all();
            state = self.wait(state);
            state.waiting -= 1;
        }
    }

    pub(super) fn hand_over(&self, batch: Parts) -> Result<(), StoreError> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(StoreError::Stopped(failure.clone()));
        }
        state.queue.push_back(batch);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// The next thing to do; waits until there is something. `pending` says whether the thread has something that is not written yet.
    pub(super) fn next(&self, pending: bool) -> Work {
        let mut state = self.lock();
        loop {
            if let Some(batch) = state.queue.pop_front() {
                return Work::Batch(Box::new(batch));
            }
            if state.closed {
                return Work::End;
            }
            if pending && state.waiting > 0 {
                return Work::Flush;
            }
            state = self.wait(state);
        }
    }

    /// Nothing will come any more.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Nothing will be written any more: whoever waits is told, and what was queued is let go.
    pub(super) fn fail(&self, failure: String) {
        let mut state = self.lock();
        state.failure = Some(failure);
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        drop(queue); // gives its memory back, which takes the lock
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

/// A share of the budget, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    desk: Arc<Desk>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.desk.lock().used -= self.bytes;
        self.desk.changed.notify_all();
    }
}
