//! Saying what a run hangs on.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tenterhook_hooks::HookManager;

/// What a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Between things.
    Idle,
    /// Waiting for a data loader.
    Data,
    /// In a forward.
    Forward,
    /// In a backward.
    Backward,
    /// In the optimizers.
    Optimizer,
    /// In a validation batch.
    Validation,
    /// Writing a checkpoint.
    Save,
    /// Waiting for other ranks, or summing with them.
    Ranks,
}

const PHASES: [(Phase, &str); 8] = [
    (Phase::Idle, "the loop"),
    (Phase::Data, "the data loader"),
    (Phase::Forward, "the forward"),
    (Phase::Backward, "the backward"),
    (Phase::Optimizer, "the optimizer step"),
    (Phase::Validation, "validation"),
    (Phase::Save, "writing a checkpoint"),
    (Phase::Ranks, "waiting for the other ranks"),
];

impl Phase {
    /// The fail point where it begins.
    pub(crate) fn point(self) -> &'static str {
        match self {
            Phase::Idle => "train.idle",
            Phase::Data => "train.data",
            Phase::Forward => "train.forward",
            Phase::Backward => "train.backward",
            Phase::Optimizer => "train.optimizer",
            Phase::Validation => "train.validation",
            Phase::Save => "train.save",
            Phase::Ranks => "train.ranks",
        }
    }
}

/// Where a run stands: written by the loop, read by the watchdog.
#[derive(Debug)]
pub(crate) struct Whereabouts {
    began: Instant,
    phase: AtomicU8,
    since_ms: AtomicU64,
    step: AtomicU64,
}

impl Default for Whereabouts {
    fn default() -> Self {
        Self { began: Instant::now(), phase: 0.into(), since_ms: 0.into(), step: 0.into() }
    }
}

impl Whereabouts {
    /// Something else begins.
    pub(crate) fn enter(&self, phase: Phase, step: u64) {
        self.phase.store(phase as u8, Relaxed);
        self.step.store(step, Relaxed);
        self.since_ms.store(self.began.elapsed().as_millis() as u64, Relaxed);
    }

    /// What is going on, since when and in which step.
    fn now(&self) -> (&'static str, Duration, u64) {
        let name = PHASES[usize::from(self.phase.load(Relaxed)) % PHASES.len()].1;
        let since = Duration::from_millis(self.since_ms.load(Relaxed));
        (name, self.began.elapsed().saturating_sub(since), self.step.load(Relaxed))
    }
}

/// Warns, once per hang, when nothing has moved for a while, and names what it is waiting for. Ends when dropped.
pub(crate) struct Watchdog {
    ended: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub(crate) fn start(limit: Duration, at: Arc<Whereabouts>, hooks: HookManager) -> std::io::Result<Self> {
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let seen = ended.clone();
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(move || {
            let warned = AtomicBool::new(false);
            let pause = (limit / 4).max(Duration::from_millis(10));
            let mut done = seen.0.lock().unwrap_or_else(PoisonError::into_inner);
            while !*done {
                done = seen.1.wait_timeout(done, pause).unwrap_or_else(PoisonError::into_inner).0;
                let (phase, held, step) = at.now();
                if held < limit {
                    warned.store(false, Relaxed);
                } else if !warned.swap(true, Relaxed) {
                    warn(phase, held, step, hooks.running_hook());
                }
            }
        })?;
        Ok(Self { ended, thread: Some(thread) })
    }
}

fn warn(phase: &str, held: Duration, step: u64, hook: Option<String>) {
    let seconds = held.as_secs_f64();
    match hook {
        Some(hook) => {
            tracing::warn!(
                "step {step}: nothing has moved for {seconds:.1} s, it is in hook `{hook}` ({phase})"
            )
        }
        None => tracing::warn!("step {step}: nothing has moved for {seconds:.1} s, it is in {phase}"),
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.ended.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ended.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it only ever warns
        }
    }
}
