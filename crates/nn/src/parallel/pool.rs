//! Threads that help with loops.
//!
//! There is one loop at a time; a caller who comes meanwhile, or from inside a loop, does its own alone. A loop is a gate: open, helpers may enter,
//! once each; when the caller has done its part it closes the gate and waits for those inside. Nobody waits for a
//! helper who has not come.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long a helper looks out for the next loop: longer than what lies between the loops of a model, shorter than anybody notices.
const AWAKE: Duration = Duration::from_micros(200);

/// More helpers are never made, whatever is asked for.
const MOST_HELPERS: usize = 255;

/// Calls `work(0)` here, and `work(1)` to `work(threads - 1)` on helpers, those of them who come before `work(0)` is done. Each call must
/// take what it does from a common store until nothing is left there: one alone must be able to do it all.
pub(crate) fn share(threads: usize, work: &(dyn Fn(usize) + Sync)) {
    static POOL: Pool = Pool::new();
    match threads {
        0 | 1 => work(0),
        _ => POOL.share(threads, work),
    }
}

/// A loop, as helpers see it. Only valid while the gate is open or somebody is inside.
#[derive(Clone, Copy)]
struct Loop {
    work: *const (dyn Fn(usize) + Sync),
    threads: usize,
}

struct Pool {
    /// Whose turn it is. The helpers there are.
    turn: Mutex<Vec<Helper>>,
    /// The number of the loop, whether one may enter, how many are inside.
    gate: AtomicU64,
    current: UnsafeCell<Option<Loop>>,
    /// The first panic of a helper in this loop.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `current` is written by who has the turn, with the gate closed and nobody inside, and read by those inside.
unsafe impl Sync for Pool {}

const INSIDE: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const ONE_LOOP: u64 = 1 << 17;

/// Which loop a gate is of.
fn number_of(gate: u64) -> u64 {
    gate & !(ONE_LOOP - 1)
}

struct Helper {
    asleep: Arc<AtomicBool>,
    thread: Thread,
}

impl Helper {
    fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}

impl Pool {
    const fn new() -> Self {
        Self {
            turn: Mutex::new(Vec::new()),
            gate: AtomicU64::new(0),
            current: UnsafeCell::new(None),
            panic: Mutex::new(None),
        }
    }

    fn share(&'static self, threads: usize, work: &(dyn Fn(usize) + Sync)) {
        let mut helpers = match self.turn.try_lock() {
            Ok(helpers) => helpers,
            // A caller's panic left the list as it was.
            Err(TryLockError::Poisoned(helpers)) => helpers.into_inner(),
            Err(TryLockError::WouldBlock) => return work(0),
        };
        self.hire(&mut helpers, (threads - 1).min(MOST_HELPERS));
        // SAFETY: this erases how long `work` lives. It is used by helpers inside the gate only, and `open` does not let go before they are out.
        let work_for_all: *const (dyn Fn(usize) + Sync) =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work) };
        // SAFETY: it is our turn, the gate is closed and nobody is inside.
        unsafe { *self.current.get() = Some(Loop { work: work_for_all, threads }) };
        // A loop whose caller panicked has left its helpers' panics behind.
        self.first_panic().take();
        let open = self.open();
        helpers.iter().take(threads - 1).for_each(Helper::wake);
        work(0);
        drop(open);
        let panic = self.first_panic().take();
        drop(helpers);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    fn first_panic(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes helpers until there are so many. Where the system gives no more threads, there are fewer.
    fn hire(&'static self, helpers: &mut Vec<Helper>, wanted: usize) {
        while helpers.len() < wanted {
            // From 1: the caller is 0.
            let number = helpers.len() + 1;
            let asleep = Arc::new(AtomicBool::new(false));
            let own = asleep.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("tenterhook-{number}"))
                .spawn(move || self.help(number, &own));
            match spawned {
                Ok(handle) => helpers.push(Helper { asleep, thread: handle.thread().clone() }),
                Err(_) => return,
            }
        }
    }

    fn open(&self) -> OpenGate<'_> {
        let number = number_of(self.gate.load(Ordering::Relaxed));
        self.gate.store(number.wrapping_add(ONE_LOOP) | OPEN, Ordering::SeqCst);
        OpenGate(self)
    }

    /// What a helper does all its life.
    fn help(&self, number: usize, asleep: &AtomicBool) {
        let mut last = 0;
        loop {
            let seen = self.await_loop(asleep, last);
            if self.gate.compare_exchange(seen, seen + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // Somebody else went in or out, or it was closed: another look.
                continue;
            }
            last = number_of(seen);
            // SAFETY: inside the gate, where it is not written.
            if let Some(Loop { work, threads }) = unsafe { *self.current.get() }
                && number < threads
            {
                // SAFETY: the caller waits until we are out.
                let done = catch_unwind(AssertUnwindSafe(|| unsafe { (*work)(number) }));
                if let (Err(panic), slot @ None) = (done, &mut *self.first_panic()) {
                    *slot = Some(panic);
                }
            }
            self.gate.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Waits for an open gate of another loop than the last: awake for a while, then asleep.
    fn await_loop(&self, asleep: &AtomicBool, last: u64) -> u64 {
        let is_new = |gate: u64| gate & OPEN != 0 && number_of(gate) != last;
        let mut since = Instant::now();
        let mut looks = 0u32;
        loop {
            let gate = self.gate.load(Ordering::SeqCst);
            if is_new(gate) {
                return gate;
            }
            looks = looks.wrapping_add(1);
            if !looks.is_multiple_of(64) || since.elapsed() < AWAKE {
                std::hint::spin_loop();
                continue;
            }
            asleep.store(true, Ordering::SeqCst);
            // A caller opens the gate before it looks who is asleep: one of us sees the other.
            while asleep.load(Ordering::SeqCst) {
                if is_new(self.gate.load(Ordering::SeqCst)) {
                    asleep.store(false, Ordering::SeqCst);
                    break;
                }
                std::thread::park();
            }
            since = Instant::now();
        }
    }
}

/// Closes the gate and waits for those inside, whatever happens.
struct OpenGate<'a>(&'a Pool);

impl Drop for OpenGate<'_> {
    fn drop(&mut self) {
        /// Looks before the processor is left to others: there may be more threads than processors.
        const PATIENCE: usize = 2000;
        self.0.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0;
        while self.0.gate.load(Ordering::Acquire) & INSIDE != 0 {
            looks += 1;
            match looks < PATIENCE {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
    }
}
