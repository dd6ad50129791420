//! All interleavings of the one synchronisation protocol that is our own: `Exclusive`.

#![allow(clippy::unwrap_used)]

#[path = "../src/exclusive.rs"]
mod exclusive;

/// The model checker's locks in the place of the real ones.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
}

use exclusive::{Exclusive, Reentered};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

struct Room {
    occupied: AtomicBool,
    visits: u32,
}

/// Goes in, tries to go in again, and leaves.
fn visit(room: &Exclusive<Room>, tag: u64, again: bool) {
    let outcome = room.with(tag, |inside| {
        assert!(!inside.occupied.swap(true, Ordering::Relaxed), "two inside at once");
        inside.visits += 1;
        if again {
            assert_eq!(room.with(tag, |_| ()), Err(Reentered), "came back in unnoticed");
        }
        inside.occupied.store(false, Ordering::Relaxed);
    });
    assert_eq!(outcome, Ok(()), "refused although not inside");
}

fn explore(visitors: u64, visits: u32) {
    loom::model(move || {
        let room = Arc::new(Exclusive::new(Room { occupied: AtomicBool::new(false), visits: 0 }));
        let handles: Vec<_> = (2..=visitors)
            .map(|tag| {
                let room = room.clone();
                thread::spawn(move || (0..visits).for_each(|i| visit(&room, tag, i == 0)))
            })
            .collect();
        (0..visits).for_each(|i| visit(&room, 1, i == 0));
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        assert_eq!(room.with(1, |room| room.visits), Ok(visitors as u32 * visits));
    });
}

#[test]
fn two_threads_that_come_and_come_again() {
    explore(2, 2);
}

#[test]
fn three_threads() {
    explore(3, 1);
}
