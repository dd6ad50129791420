//! Ranks hear of each other all the time, so that one that is gone or stands still is missed, and named.
//!
//! Every rank sends a word to the next one twice a second, from a thread of its own, and listens to the one before. A process that is stopped, or
//! whose machine is gone, sends none; one that is merely busy does. Whoever misses the rank before it says so and ends the job. (A process that was
//! killed is missed by the launcher too, and sooner.)

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, Source};

/// The exit code of a job that has lost a rank.
pub(super) const LOST: i32 = 70;

/// A word of this kind: nothing else has this tag.
const TAG: i32 = 7321;

const PAUSE: Duration = Duration::from_millis(500);

/// How long a rank may be silent, unless the variable `TENTERHOOK_RANK_SILENCE` has another number of seconds.
const SILENCE: Duration = Duration::from_secs(5);

/// Sends and listens until it is dropped.
pub(super) struct Heartbeat {
    ended: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// The ranks run on these hosts.
    pub(super) fn start(rank: usize, hosts: Vec<String>) -> io::Result<Self> {
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let seen = ended.clone();
        let given = std::env::var("TENTERHOOK_RANK_SILENCE").ok().and_then(|seconds| seconds.parse().ok());
        let limit =
            given.filter(|limit| *limit > 0.0 && *limit < 1e9).map_or(SILENCE, Duration::from_secs_f64);
        let thread = std::thread::Builder::new().name("heartbeat".into()).spawn(move || {
            let before = (rank + hosts.len() - 1) % hosts.len();
            let next = (rank + 1) % hosts.len();
            let mut heard = Instant::now();
            let mut awake = Instant::now();
            let mut done = seen.0.lock().unwrap_or_else(PoisonError::into_inner);
            while !*done {
                let world = SimpleCommunicator::world();
                world.process_at_rank(next as i32).send_with_tag(&0u8, TAG);
                let now = Instant::now();
                // Who stood still itself, and was let go on, has heard nobody meanwhile.
                if listen(&world, before) || now - awake > limit / 2 {
                    heard = now;
                }
                awake = now;
                if now - heard > limit {
                    lost(&world, before, &hosts[before], now - heard);
                }
                done =
                    seen.1.wait_timeout(done, PAUSE.min(limit / 4)).unwrap_or_else(PoisonError::into_inner).0;
            }
        })?;
        Ok(Self { ended, thread: Some(thread) })
    }
}

/// Takes all words that have come from a rank; whether there was one.
fn listen(world: &SimpleCommunicator, rank: usize) -> bool {
    let mut heard = false;
    while let Some((message, _)) = world.process_at_rank(rank as i32).immediate_matched_probe_with_tag(TAG) {
        let mut word = 0u8;
        message.matched_receive_into(&mut word);
        heard = true;
    }
    heard
}

#[expect(clippy::print_stderr, reason = "the process ends here, and nobody else can say why")]
fn lost(world: &SimpleCommunicator, rank: usize, host: &str, silent: Duration) -> ! {
    eprintln!(
        "error: rank {rank} on {host} has not been heard of for {:.1} s: it is stopped, or its machine is gone. The job ends here; --resume goes on from the last checkpoint",
        silent.as_secs_f64()
    );
    world.abort(LOST)
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        *self.ended.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ended.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it only ever sends and listens
        }
    }
}
