//! Writing checkpoints while training goes on.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A thread that does one job at a time, in order. A second job waits until the first is done: what is written is never more than one
/// step behind what was asked for, and never takes more memory than one snapshot.
pub(crate) struct Saver<R> {
    desk: Arc<Desk<R>>,
    thread: Option<JoinHandle<()>>,
}

type Job<R> = Box<dyn FnOnce() -> R + Send>;

struct Desk<R> {
    tray: Mutex<Tray<R>>,
    changed: Condvar,
}

struct Tray<R> {
    job: Option<Job<R>>,
    busy: bool,
    done: Vec<R>,
    closed: bool,
}

impl<R: Send + 'static> Saver<R> {
    pub(crate) fn start() -> std::io::Result<Self> {
        let tray = Tray { job: None, busy: false, done: Vec::new(), closed: false };
        let desk = Arc::new(Desk { tray: Mutex::new(tray), changed: Condvar::new() });
        let worker = desk.clone();
        let thread = std::thread::Builder::new().name("saver".into()).spawn(move || worker.work())?;
        Ok(Self { desk, thread: Some(thread) })
    }

    /// Hands over a job; waits while another one is not done.
    pub(crate) fn submit(&self, job: impl FnOnce() -> R + Send + 'static) {
        let mut tray = self.desk.idle();
        tray.job = Some(Box::new(job));
        drop(tray);
        self.desk.changed.notify_all();
    }

    /// What has been done since it was last asked, in order.
    pub(crate) fn take_done(&self) -> Vec<R> {
        std::mem::take(&mut self.desk.lock().done)
    }

    /// Waits until nothing is left to do.
    pub(crate) fn drain(&self) -> Vec<R> {
        std::mem::take(&mut self.desk.idle().done)
    }
}

impl<R> Desk<R> {
    fn lock(&self) -> MutexGuard<'_, Tray<R>> {
        self.tray.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, tray: MutexGuard<'a, Tray<R>>) -> MutexGuard<'a, Tray<R>> {
        self.changed.wait(tray).unwrap_or_else(PoisonError::into_inner)
    }

    /// The tray when no job is waiting or running.
    fn idle(&self) -> MutexGuard<'_, Tray<R>> {
        let mut tray = self.lock();
        while tray.busy || tray.job.is_some() {
            tray = self.wait(tray);
        }
        tray
    }

    fn work(&self) {
        let mut tray = self.lock();
        loop {
            if let Some(job) = tray.job.take() {
                tray.busy = true;
                drop(tray);
                let result = job();
                tray = self.lock();
                tray.busy = false;
                tray.done.push(result);
                self.changed.notify_all();
            } else if tray.closed {
                return;
            } else {
                tray = self.wait(tray);
            }
        }
    }
}

impl<R> Drop for Saver<R> {
    fn drop(&mut self) {
        self.desk.lock().closed = true;
        self.desk.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a job that was handed over is done before this returns
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    #[test]
    fn p08_jobs_are_done_in_order_one_at_a_time_and_none_is_lost() {
        let running = Arc::new(AtomicUsize::new(0));
        let saver = Saver::start().unwrap();
        for i in 0..500 {
            let running = running.clone();
            saver.submit(move || {
                assert_eq!(running.fetch_add(1, SeqCst), 0, "two at once");
                if i % 50 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                running.fetch_sub(1, SeqCst);
                i
            });
        }
        assert_eq!(saver.drain(), (0..500).collect::<Vec<_>>());
        assert!(saver.take_done().is_empty());
    }

    #[test]
    fn p08_dropping_finishes_what_was_handed_over() {
        let done = Arc::new(AtomicUsize::new(0));
        let saver = Saver::start().unwrap();
        let counted = done.clone();
        saver.submit(move || {
            std::thread::sleep(std::time::Duration::from_millis(5));
            counted.fetch_add(1, SeqCst);
        });
        drop(saver);
        assert_eq!(done.load(SeqCst), 1);
    }
}
