//! Ranks as threads of one process, for tests.

use std::sync::{Arc, Barrier, Mutex};

use super::transport::Transport;
use super::{World, hosts_of};

struct Thread {
    rank: usize,
    table: Arc<Table>,
}

struct Table {
    places: Vec<Mutex<Vec<u8>>>,
    barrier: Barrier,
}

impl Transport for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.table.places.len()
    }

    fn gather(&self, bytes: &[u8]) -> Vec<Vec<u8>> {
        *self.table.places[self.rank].lock().unwrap() = bytes.to_vec();
        self.table.barrier.wait();
        let all = self.table.places.iter().map(|place| place.lock().unwrap().clone()).collect();
        self.table.barrier.wait();
        all
    }

    fn all_to_all(&self, send: &[u8], receive: &mut [u8]) {
        let part = send.len() / self.size();
        let mine: Vec<u8> =
            self.gather(send).iter().flat_map(|sent| sent[self.rank * part..][..part].to_vec()).collect();
        receive.copy_from_slice(&mine);
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) {
        all.copy_from_slice(&self.gather(mine).concat());
    }

    fn broadcast(&self, bytes: &mut [u8]) {
        let all = self.gather(bytes);
        bytes.copy_from_slice(&all[0]);
    }
}

/// What every rank of a world of this size returns, in order.
pub(crate) fn in_threads<R: Send>(size: usize, work: impl Fn(World) -> R + Sync) -> Vec<R> {
    let places = (0..size).map(|_| Mutex::default()).collect();
    let table = Arc::new(Table { places, barrier: Barrier::new(size) });
    std::thread::scope(|scope| {
        let rank = |rank| {
            let (table, work) = (table.clone(), &work);
            scope.spawn(move || {
                let thread = Thread { rank, table };
                let hosts = hosts_of(&thread);
                work(World::with(Box::new(thread), hosts))
            })
        };
        let threads: Vec<_> = (0..size).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
