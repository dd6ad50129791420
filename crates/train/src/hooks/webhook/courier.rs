//! Messages on their way, off the training thread.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::address::shown;
use super::post::{Failure, Post, TRIES};

/// How many messages wait; when there are more, the oldest go.
pub(super) const CAPACITY: usize = 64;

/// What became of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) sent: u64,
    pub(super) failed: u64,
    pub(super) dropped: u64,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<String>,
    sending: bool,
    closed: bool,
    counts: Counts,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is done under the lock that could leave it half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready`, at most so long.
    fn wait(&self, at_most: Duration, ready: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let deadline = Instant::now() + at_most;
        let mut state = self.lock();
        while !ready(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    /// The next message, or `None` when there will be no more.
    fn next(&self) -> Option<String> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(text) = state.waiting.pop_front() {
                state.sending = true;
                return Some(text);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self, arrived: bool) {
        let mut state = self.lock();
        state.sending = false;
        match arrived {
            true => state.counts.sent += 1,
            false => state.counts.failed += 1,
        }
        self.changed.notify_all();
    }
}

/// A thread that sends one message after the other. When it is dropped the thread ends by itself, at the latest when its time is up.
pub(super) struct Courier(Arc<Queue>);

impl Courier {
    pub(super) fn start(post: Post) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let theirs = queue.clone();
        // What it has to say goes where the training thread's words go.
        let dispatch = tracing::dispatcher::get_default(Clone::clone);
        let work = move || tracing::dispatcher::with_default(&dispatch, || deliver(&theirs, &post));
        thread::Builder::new().name("webhook".to_string()).spawn(work)?;
        Ok(Self(queue))
    }

    /// Puts a message into the queue. Never waits for the network.
    pub(super) fn send(&self, text: String) {
        let mut state = self.0.lock();
        if state.waiting.len() >= CAPACITY {
            state.waiting.pop_front();
            state.counts.dropped += 1;
        }
        state.waiting.push_back(text);
        self.0.changed.notify_all();
    }

    /// Waits until everything was sent or given up, at most so long. Says how many are still on their way.
    pub(super) fn drain(&self, at_most: Duration) -> usize {
        let state = self.0.wait(at_most, |state| state.waiting.is_empty() && !state.sending);
        state.waiting.len() + usize::from(state.sending)
    }

    pub(super) fn counts(&self) -> Counts {
        self.0.lock().counts
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

fn deliver(queue: &Queue, post: &Post) {
    while let Some(text) = queue.next() {
        let mut pause = post.pause;
        let mut tries = 1;
        let arrived = loop {
            match post.send(&text) {
                Ok(()) => break true,
                Err(Failure::Again(_)) if tries < TRIES => {
                    tries += 1;
                    if queue.wait(pause, |state| state.closed).closed {
                        break false;
                    }
                    pause *= 2;
                }
                Err(Failure::Again(why) | Failure::Final(why)) => {
                    tracing::warn!(to = shown(&post.url), tries, "a webhook message did not arrive: {why}");
                    break false;
                }
            }
        };
        queue.done(arrived);
    }
}
