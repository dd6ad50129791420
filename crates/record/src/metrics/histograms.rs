//! The histograms of a run, in a log of their own: a line of metrics stays a line of numbers.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::read::for_each_line;
use super::{MetricsError, MetricsLog, Number};

/// Counts in bins of equal width.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bins {
    /// Where the first bin begins.
    pub low: Number,
    /// Where the last bin ends.
    pub high: Number,
    /// Elements per bin.
    pub counts: Vec<u64>,
}

/// The histograms of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistogramRow {
    /// The optimizer step.
    pub step: u64,
    /// The epoch.
    pub epoch: u64,
    /// When it was written, in seconds since 1970.
    pub time: Number,
    /// The histograms by name.
    pub histograms: BTreeMap<String, Bins>,
}

/// A log of histograms that is being written, line by line as a [`MetricsLog`] is.
///
/// ```
/// use tenterhook_record::metrics::{Bins, HistogramLog, HistogramRow, Number, for_each_histograms};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("histograms.jsonl");
/// let bins = Bins { low: Number(0.0), high: Number(1.0), counts: vec![3, 1] };
/// let row = HistogramRow { step: 1, histograms: [("grad/w".to_string(), bins)].into(), ..HistogramRow::default() };
/// HistogramLog::open(&path, None)?.append(&row)?;
/// for_each_histograms(&path, |read| assert_eq!(read, row))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct HistogramLog(MetricsLog);

impl HistogramLog {
    /// See [`MetricsLog::open`].
    pub fn open(path: &Path, truncate_to: Option<u64>) -> Result<Self, MetricsError> {
        MetricsLog::open(path, truncate_to).map(Self)
    }

    /// Adds a line. After an error the log is as it was.
    pub fn append(&mut self, row: &HistogramRow) -> Result<(), MetricsError> {
        self.0.append_line(row)
    }

    /// See [`MetricsLog::sync`].
    pub fn sync(&self) -> Result<(), MetricsError> {
        self.0.sync()
    }

    /// See [`MetricsLog::position`].
    pub fn position(&self) -> u64 {
        self.0.position()
    }
}

/// Reads all rows, one after the other. A last line that was not finished is left out; any other line that cannot be read is an error.
pub fn for_each_histograms(path: &Path, each: impl FnMut(HistogramRow)) -> Result<(), MetricsError> {
    for_each_line(path, each)
}
