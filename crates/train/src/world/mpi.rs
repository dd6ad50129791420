//! Ranks as processes of MPI.

use mpi::Threading;
use mpi::datatype::PartitionMut;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};

use super::WorldError;
use super::heartbeat::Heartbeat;
use super::transport::Transport;

/// This process among those that `mpirun` or `srun` started.
pub(super) struct Mpi {
    rank: usize,
    size: usize,
    /// Ends before MPI does.
    heartbeat: Option<Heartbeat>,
    /// MPI ends with it.
    _universe: Universe,
}

impl Mpi {
    /// Starts MPI, which a process can do once.
    pub(super) fn start() -> Result<Self, WorldError> {
        // The heartbeat has a thread of its own.
        let (universe, threading) = mpi::initialize_with_threading(Threading::Multiple)
            .ok_or_else(|| failed("it has been started in this process before"))?;
        let world = universe.world();
        let (rank, size) = (world.rank() as usize, world.size() as usize);
        if size > 1 && threading < Threading::Multiple {
            return Err(failed("this MPI allows calls from one thread only (MPI_THREAD_MULTIPLE is needed)"));
        }
        Ok(Self { rank, size, heartbeat: None, _universe: universe })
    }

    /// Misses ranks that are gone from now on; they run on these machines.
    pub(super) fn watch(&mut self, hosts: Vec<String>) -> Result<(), WorldError> {
        if self.size > 1 {
            let started = Heartbeat::start(self.rank, hosts);
            self.heartbeat = Some(started.map_err(|error| failed(&format!("no thread: {error}")))?);
        }
        Ok(())
    }
}

fn failed(problem: &str) -> WorldError {
    WorldError::Unreachable(format!("MPI does not start: {problem}"))
}

/// The handle is made where it is used: it may not be sent to another thread.
fn everybody() -> SimpleCommunicator {
    SimpleCommunicator::world()
}

impl Transport for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn gather(&self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let world = everybody();
        let mut lengths = vec![0u64; self.size];
        world.all_gather_into(&(bytes.len() as u64), &mut lengths[..]);
        // All ranks have the same sum before them, so all end here.
        assert!(lengths.iter().sum::<u64>() <= i32::MAX as u64, "ranks have more than 2 GiB to say");
        let lengths: Vec<i32> = lengths.into_iter().map(|length| length as i32).collect();
        let starts: Vec<i32> = lengths
            .iter()
            .scan(0, |end, length| {
                let start = *end;
                *end += length;
                Some(start)
            })
            .collect();
        let mut all = vec![0u8; lengths.iter().map(|length| *length as usize).sum()];
        let mut parts = PartitionMut::new(&mut all[..], &lengths[..], &starts[..]);
        world.all_gather_varcount_into(bytes, &mut parts);
        let part = |(start, length): (&i32, &i32)| all[*start as usize..][..*length as usize].to_vec();
        starts.iter().zip(&lengths).map(part).collect()
    }

    fn all_to_all(&self, send: &[u8], receive: &mut [u8]) {
        everybody().all_to_all_into(send, receive);
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) {
        everybody().all_gather_into(mine, all);
    }

    fn broadcast(&self, bytes: &mut [u8]) {
        everybody().process_at_rank(0).broadcast_into(bytes);
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The others are somewhere else and would be waited for.
            everybody().abort(super::heartbeat::LOST);
        }
        if self.size > 1 {
            // Nobody stops being heard of while another one is still at work.
            everybody().barrier();
            drop(self.heartbeat.take());
        }
    }
}
