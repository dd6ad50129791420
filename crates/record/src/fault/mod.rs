//! Fail points: places where a test can make the disk fail or the process die.
//!
//! They exist in debug builds only; a release build compiles every one of them to nothing. A point is passed by
//! name with [`point`]; every write of [`crate::disk`] passes one of `disk.create`, `disk.write`, `disk.sync`,
//! `disk.rename`, `disk.sync_dir`, `disk.truncate` and `disk.remove`; a save passes `save.*`, the phases of training
//! `train.*`, a line of a hook's log `log.append`. What happens there is said by the environment
//! variable `TENTERHOOK_FAULTS`, which holds for the whole process, or by `fault::install` in a test, which holds
//! for one thread and those that [`Scope::enter`] it, so that tests beside it are not disturbed.
//!
//! The language is `name=action[@n]`, joined by `;`. A name may end in `*`. With `@n` only the n-th hit counts,
//! otherwise every hit does. The actions:
//!
//! | action | what happens |
//! |---|---|
//! | `abort`, `kill` | the process dies at once: no destructor runs, nothing is flushed |
//! | `enospc`, `eacces`, `eio` | the operation fails and has done nothing |
//! | `short` | a write puts half of its bytes into the file and then fails as with `enospc`; elsewhere like `enospc` |
//! | `sleep:MS` | the operation says so in the log, waits, then goes on |

use std::path::PathBuf;

#[cfg(debug_assertions)]
mod active;
#[cfg(debug_assertions)]
mod spec;

#[cfg(debug_assertions)]
pub use active::{Entered, Installed, Scope, Trace, install, point, trace};
#[cfg(debug_assertions)]
pub(crate) use active::{on_write, record};

/// One operation on the disk, as a trace lists it. Only what succeeded is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A directory was made.
    CreateDir(PathBuf),
    /// A new, empty file was made.
    Create(PathBuf),
    /// So many bytes were added to the end of a file.
    Write(PathBuf, usize),
    /// A file was cut to this length.
    Truncate(PathBuf, u64),
    /// A file's contents reached the disk.
    Sync(PathBuf),
    /// A file or a directory was renamed.
    Rename(PathBuf, PathBuf),
    /// A directory's entries reached the disk.
    SyncDir(PathBuf),
    /// A file, or a directory with all that was in it, was removed.
    Remove(PathBuf),
}

#[cfg(not(debug_assertions))]
mod inactive {
    use std::io;

    use super::Op;

    /// Nothing: fail points exist in debug builds only.
    #[inline(always)]
    pub fn point(_name: &str) -> io::Result<()> {
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn on_write(bytes: usize) -> (usize, Option<io::Error>) {
        (bytes, None)
    }

    #[inline(always)]
    pub(crate) fn record(_op: impl FnOnce() -> Op) {}

    /// The faults of a thread, to be handed to another one. Empty: faults exist in debug builds only.
    #[derive(Clone, Debug)]
    pub struct Scope;

    /// A thread that is inside a [`Scope`].
    #[derive(Debug)]
    pub struct Entered;

    impl Scope {
        /// What holds for this thread.
        pub fn current() -> Self {
            Self
        }

        /// Lets it hold for the calling thread until the guard is dropped.
        pub fn enter(&self) -> Entered {
            Entered
        }
    }
}

#[cfg(not(debug_assertions))]
pub use inactive::{Entered, Scope, point};
#[cfg(not(debug_assertions))]
pub(crate) use inactive::{on_write, record};
