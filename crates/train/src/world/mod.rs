//! Several processes that train one model: who they are, and what they tell each other.
//!
//! A [`World`] is made of ranks, numbered from 0; without MPI, or when the process was started alone, it has one. Ranks work apart and
//! come together at places that have names. There every one says something and hears what all said ([`World::meet`]); a rank that failed
//! comes to the next such place too, and says that, so that nobody waits for it. Many numbers at once are summed in buckets, after a
//! meeting at which all were well.

mod environment;
#[cfg(feature = "mpi")]
mod heartbeat;
#[cfg(feature = "mpi")]
mod mpi;
mod share;
mod sums;
#[cfg(test)]
pub(crate) mod threads;
mod transport;

use std::fmt::{self, Display};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use share::Share;
pub(crate) use sums::sum_all;
use transport::{Alone, Transport};

/// Why ranks cannot go on together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// Another rank failed.
    #[error("rank {rank} on {host} failed: {problem}")]
    Failed {
        /// Which one; of several the first.
        rank: usize,
        /// Where it runs.
        host: String,
        /// What it said.
        problem: String,
    },
    /// Ranks do not do the same, and would wait for each other for ever.
    #[error("the ranks have come apart: {0}")]
    Apart(String),
    /// The process was started as one of several, and they cannot be reached.
    #[error("{0}")]
    Unreachable(String),
}

/// Bytes that rank 0 sends to all at a time: counts of MPI are 32 bits long.
const AT_A_TIME: usize = 64 << 20;

/// All processes that train together. Clones are the same world; it ends with the last of them.
#[derive(Clone)]
pub struct World(Arc<Shared>);

struct Shared {
    transport: Box<dyn Transport>,
    hosts: Vec<String>,
    /// Whether a rank has failed: nobody comes to a meeting any more.
    over: AtomicBool,
}

/// What a rank says at a meeting.
#[derive(Serialize, Deserialize)]
enum Said<T> {
    Well { at: String, what: T },
    Failed(String),
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World(rank {} of {})", self.rank(), self.size())
    }
}

impl World {
    /// A world of one.
    pub fn alone() -> Self {
        Self::with(Box::new(Alone), hosts_of(&Alone))
    }

    /// The world that this process was started in: that of `mpirun` or `srun` where the program is built with the feature `mpi`, else a
    /// world of one. It is an error to have been started as one of several and not to reach the others: all would do the same work. Where
    /// they are to work apart, the variable `TENTERHOOK_ALONE=1` says so.
    pub fn join() -> Result<Self, WorldError> {
        if environment::is_to_be_alone() {
            return Ok(Self::alone());
        }
        #[cfg(feature = "mpi")]
        {
            let mut mpi = mpi::Mpi::start()?;
            environment::check_size(mpi.size())?;
            let hosts = hosts_of(&mpi);
            mpi.watch(hosts.clone())?;
            Ok(Self::with(Box::new(mpi), hosts))
        }
        #[cfg(not(feature = "mpi"))]
        {
            environment::check_no_others()?;
            Ok(Self::alone())
        }
    }

    fn with(transport: Box<dyn Transport>, hosts: Vec<String>) -> Self {
        Self(Arc::new(Shared { transport, hosts, over: false.into() }))
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.0.transport.rank()
    }

    /// How many processes there are.
    pub fn size(&self) -> usize {
        self.0.transport.size()
    }

    /// Whether this is rank 0, which writes the record and talks to the user.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Whether there are no others.
    pub fn is_alone(&self) -> bool {
        self.size() == 1
    }

    /// The machines, in the order of the ranks.
    pub fn hosts(&self) -> &[String] {
        &self.0.hosts
    }

    /// The same for the record of a run, which has none where there is one process.
    pub fn hosts_of_several(&self) -> Vec<String> {
        if self.is_alone() { Vec::new() } else { self.0.hosts.clone() }
    }

    /// How many ranks share this machine with this one, which is counted too.
    pub fn on_this_host(&self) -> usize {
        let here = &self.0.hosts[self.rank()];
        self.0.hosts.iter().filter(|host| *host == here).count()
    }

    /// The part of a batch, or of a list of files, that is this rank's.
    pub fn share(&self) -> Share {
        Share { rank: self.rank(), size: self.size() }
    }

    /// All ranks come here, say something and hear what all said, in the order of the ranks. `at` names the place; ranks that come to
    /// different ones have come apart, which is an error on all of them.
    pub fn meet<T: Serialize + DeserializeOwned>(&self, at: &str, what: T) -> Result<Vec<T>, WorldError> {
        if self.is_alone() {
            return Ok(vec![what]);
        }
        if self.is_over() {
            return Err(WorldError::Apart(format!(
                "a rank has failed before, and nobody comes to `{at}` any more"
            )));
        }
        let heard = self.exchange(&Said::Well { at: at.to_string(), what });
        self.first_failure(&heard)?;
        let mut all = Vec::with_capacity(heard.len());
        for (rank, said) in heard.into_iter().enumerate() {
            match said {
                Ok(Said::Well { at: there, what }) if there == at => all.push(what),
                Ok(Said::Well { at: there, .. }) => {
                    return Err(self.apart(rank, format!("it is at `{there}`"), at));
                }
                // What does not parse was said at another place: it is of another kind.
                Ok(Said::Failed(problem)) => return Err(self.apart(rank, problem, at)),
                Err(problem) => return Err(self.apart(rank, problem, at)),
            }
        }
        Ok(all)
    }

    /// What rank 0 says, on all ranks. The others say nothing.
    pub fn from_first<T: Serialize + DeserializeOwned>(
        &self,
        at: &str,
        what: Option<T>,
    ) -> Result<T, WorldError> {
        let said = self.meet(at, what)?.into_iter().next().flatten();
        said.ok_or_else(|| self.apart(0, "it said nothing".to_string(), at))
    }

    /// All ranks have done something, or failed to: if any did, it is an error on all, on those that did not that of the first who did.
    pub fn all_well<T, E: Display>(&self, at: &str, done: Result<T, E>) -> Result<T, Together<E>> {
        match done {
            Ok(done) => self.meet(at, ()).map(|_| done).map_err(Together::Others),
            Err(error) => {
                self.fail(&error.to_string());
                Err(Together::Own(error))
            }
        }
    }

    /// Tells the others that this rank has failed. They hear it at the place that they come to next. Nobody meets any more after that.
    pub fn fail(&self, problem: &str) {
        if !self.is_alone() && !self.0.over.swap(true, Relaxed) {
            self.exchange::<()>(&Said::Failed(problem.to_string()));
        }
    }

    /// Whether a rank has failed, this one or another.
    pub fn is_over(&self) -> bool {
        self.0.over.load(Relaxed)
    }

    fn exchange<T: Serialize + DeserializeOwned>(&self, said: &Said<T>) -> Vec<Result<Said<T>, String>> {
        let bytes = serde_json::to_vec(said)
            .or_else(|error| serde_json::to_vec(&Said::<()>::Failed(error.to_string())))
            .unwrap_or_default();
        let heard = self.0.transport.gather(&bytes);
        heard.iter().map(|bytes| serde_json::from_slice(bytes).map_err(|error| error.to_string())).collect()
    }

    fn first_failure<T>(&self, heard: &[Result<Said<T>, String>]) -> Result<(), WorldError> {
        let failed = heard.iter().enumerate().find_map(|(rank, said)| match said {
            Ok(Said::Failed(problem)) => Some((rank, problem.clone())),
            _ => None,
        });
        let Some((rank, problem)) = failed else { return Ok(()) };
        self.0.over.store(true, Relaxed);
        Err(WorldError::Failed { rank, host: self.0.hosts[rank].clone(), problem })
    }

    /// The ranks are not the same any more, as all of them have found: nobody meets after that.
    pub fn come_apart(&self, problem: String) -> WorldError {
        self.0.over.store(true, Relaxed);
        WorldError::Apart(problem)
    }

    fn apart(&self, rank: usize, problem: String, at: &str) -> WorldError {
        let (host, mine) = (&self.0.hosts[rank], self.rank());
        self.come_apart(format!("rank {mine} is at `{at}`; rank {rank} on {host}: {problem}"))
    }

    fn transport(&self) -> &dyn Transport {
        &*self.0.transport
    }

    /// The numbers of all ranks, in order; they need not be equally many.
    pub fn gather_numbers<T: bytemuck::Pod>(&self, numbers: &[T]) -> Result<Vec<Vec<T>>, WorldError> {
        let counts = self.meet("numbers", numbers.len())?;
        let at_a_time = (AT_A_TIME / self.size() / size_of::<T>().max(1)).max(1);
        let rounds = counts.iter().map(|count| count.div_ceil(at_a_time)).max().unwrap_or(0);
        let mut all: Vec<Vec<T>> = counts.iter().map(|count| Vec::with_capacity(*count)).collect();
        for round in 0..rounds {
            let part = numbers.chunks(at_a_time).nth(round).unwrap_or_default();
            for (all, bytes) in all.iter_mut().zip(self.0.transport.gather(bytemuck::cast_slice(part))) {
                all.extend(bytemuck::pod_collect_to_vec::<u8, T>(&bytes));
            }
        }
        Ok(all)
    }

    /// Overwrites the numbers of all ranks with those of rank 0; all have as many.
    pub fn broadcast<T: bytemuck::Pod>(&self, numbers: &mut [T]) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(numbers);
        bytes.chunks_mut(AT_A_TIME).for_each(|part| self.0.transport.broadcast(part));
    }
}

/// The machines of all ranks.
fn hosts_of(transport: &dyn Transport) -> Vec<String> {
    let hosts = transport.gather(tenterhook_record::run::host().as_bytes());
    hosts.iter().map(|host| String::from_utf8_lossy(host).into()).collect()
}

/// What kept all ranks from going on: something of this rank's own, or of another's.
#[derive(Debug, thiserror::Error)]
pub enum Together<E> {
    /// It was this one.
    #[error("{0}")]
    Own(E),
    /// It was another one.
    #[error(transparent)]
    Others(WorldError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use threads::in_threads;

    #[test]
    fn everybody_hears_what_all_said_in_order() {
        for size in [1, 2, 3, 5] {
            let heard = in_threads(size, |world| {
                let squares = world.meet("squares", world.rank() * world.rank()).unwrap();
                let first = world.from_first("word", world.is_first().then_some("go".to_string())).unwrap();
                (squares, first, world.on_this_host())
            });
            let squares: Vec<usize> = (0..size).map(|rank| rank * rank).collect();
            assert!(heard.iter().all(|one| *one == (squares.clone(), "go".to_string(), size)));
        }
    }

    #[test]
    fn numbers_of_all_ranks_come_in_order() {
        for size in [1, 2, 3] {
            let all =
                in_threads(size, |world| world.gather_numbers(&vec![world.rank() as f32; 3 * world.rank()]));
            let expected: Vec<Vec<f32>> = (0..size).map(|rank| vec![rank as f32; 3 * rank]).collect();
            assert!(all.into_iter().all(|one| one.unwrap() == expected));
        }
    }

    #[test]
    fn p28_a_rank_that_fails_is_heard_wherever_the_others_are() {
        let heard = in_threads(3, |world| {
            world.meet("first", 1).unwrap();
            if world.rank() == 1 {
                world.fail("no more disk");
                return "told".to_string();
            }
            let error = world.meet("second", vec![1.5]).unwrap_err();
            world.fail("this is not told twice"); // nobody would listen
            error.to_string()
        });
        let host = tenterhook_record::run::host();
        let told = format!("rank 1 on {host} failed: no more disk");
        assert_eq!(heard, [told.clone(), "told".to_string(), told]);
    }

    #[test]
    fn p28_ranks_at_different_places_do_not_wait_for_each_other() {
        let heard = in_threads(2, |world| match world.rank() {
            0 => world.meet("a step", 1u64).unwrap_err().to_string(),
            _ => world.meet("a validation", "text".to_string()).unwrap_err().to_string(),
        });
        assert!(
            heard[0].starts_with("the ranks have come apart: rank 0 is at `a step`; rank 1"),
            "{}",
            heard[0]
        );
        assert!(
            heard[1].starts_with("the ranks have come apart: rank 1 is at `a validation`"),
            "{}",
            heard[1]
        );
    }

    #[test]
    fn all_or_none_go_on() {
        let heard = in_threads(3, |world| {
            let done = if world.rank() == 2 { Err("bad disk") } else { Ok(7) };
            match world.all_well("start", done) {
                Ok(_) => "went on".to_string(),
                Err(Together::Own(error)) => format!("own: {error}"),
                Err(Together::Others(error)) => error.to_string(),
            }
        });
        assert_eq!(heard[2], "own: bad disk");
        assert!(
            heard[..2]
                .iter()
                .all(|said| said.starts_with("rank 2 on ") && said.ends_with("failed: bad disk"))
        );
    }
}
