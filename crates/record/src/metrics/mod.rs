//! The metrics of a run: one JSON object per line, written as they come.
//!
//! A line is written by one call and is never changed, so a killed process loses at most the last one, and readers need
//! no lock. NaN and the infinities, which JSON has no numbers for, are the strings `"NaN"`, `"Infinity"` and
//! `"-Infinity"`. The names `step`, `epoch` and `time` are taken by the row itself; a metric of that name is refused.
//!
//! ```
//! use tenterhook_record::metrics::{self, MetricsLog, Row};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("metrics.jsonl");
//! let mut log = MetricsLog::open(&path, None)?;
//! let row = Row { step: 1, epoch: 0, time: 0.5, values: [("loss".to_string(), 2.25)].into() };
//! log.append(&row)?;
//! assert_eq!(std::fs::read_to_string(&path)?, "{\"step\":1,\"epoch\":0,\"time\":0.5,\"loss\":2.25}\n");
//! assert_eq!(metrics::read(&path)?, [row]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io;
use std::path::{Path, PathBuf};

mod digest;
mod histograms;
mod log;
mod read;
mod row;
mod tail;
mod view;

pub use digest::{Digest, Score};
pub use histograms::{Bins, HistogramLog, HistogramRow, for_each_histograms};
pub use log::MetricsLog;
pub use read::{for_each, read};
pub use row::{Number, Row};
pub use tail::{Piece, Tail, read_part};
pub use view::RowView;

/// Metrics that could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// The file system refused something.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A line is not what a log writes.
    #[error("{}: line {line}: {problem}", path.display())]
    BadLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The log is not the one a checkpoint was written beside.
    #[error("{}: cannot go back to byte {wanted}: {problem}; was the file changed or replaced?", path.display())]
    CannotGoBack {
        /// The file.
        path: PathBuf,
        /// Where the checkpoint says the log was.
        wanted: u64,
        /// What is there instead.
        problem: String,
    },
    /// A metric has the name of a field that every row has.
    #[error("a metric cannot be called `{0}`: every row has a field of that name; call it `train/{0}`, say")]
    TakenName(String),
}

impl MetricsError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_path_buf(), source }
    }
}

#[cfg(test)]
mod tests;
