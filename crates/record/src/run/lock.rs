//! One writer per run.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{RunError, host, now};
use crate::disk::{self, DiskFile};

/// How often a lock that is held is tried again, and after which time: somebody may be looking at it just now ([`is_held`]).
const TRIES: usize = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// The lock of a run, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct RunLock {
    file: DiskFile,
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a process that is just being started from this one has it open as well, for a moment.
        let _ = self.file.unlock();
    }
}

/// Who holds a lock, as the lock's file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// The machine it runs on.
    pub host: String,
    /// Since when.
    pub since: String,
}

impl RunLock {
    pub(super) fn take(path: &Path) -> Result<Self, RunError> {
        let io = RunError::io;
        let mut file = DiskFile::append(path).map_err(io("open the lock", path))?;
        let mut tries = 1;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if tries < TRIES => thread::sleep(BETWEEN_TRIES),
                Err(TryLockError::WouldBlock) => {
                    return Err(RunError::Locked { path: path.to_path_buf(), holder: describe_holder(path) });
                }
                Err(TryLockError::Error(error)) => return Err(io("take the lock", path)(error)),
            }
            tries += 1;
        }
        let holder = Holder { pid: std::process::id(), host: host(), since: now() };
        let text = serde_json::to_string(&holder).unwrap_or_default();
        file.truncate(0).and_then(|()| writeln!(file, "{text}")).map_err(io("write the lock", path))?;
        Ok(Self { file })
    }
}

/// Whether some process holds the lock. Where nobody can tell, nobody does.
pub(super) fn is_held(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    // The lock goes again with the file, at the end of this function.
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// The holder in words; the file may be unreadable or half-written just now.
fn describe_holder(path: &Path) -> String {
    let holder = disk::read_bounded(path, 64 << 10).ok();
    match holder.and_then(|bytes| serde_json::from_slice::<Holder>(&bytes).ok()) {
        Some(Holder { pid, host, since }) => format!("process {pid} on {host} (since {since})"),
        None => "another process".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p09_a_lock_that_is_given_back_is_free_whoever_has_the_file_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.lock");
        let lock = RunLock::take(&path).unwrap();
        let inherited = lock.file.duplicate().unwrap();
        assert!(matches!(RunLock::take(&path), Err(RunError::Locked { .. })));
        drop(lock);
        assert!(RunLock::take(&path).is_ok());
        drop(inherited);
    }
}
