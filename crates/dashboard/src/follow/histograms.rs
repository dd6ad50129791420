//! Histograms over time, in bounded memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use serde::Serialize;
use tenterhook_record::metrics::HistogramRow;

use crate::places::is_plain_file;

/// The most steps of one histogram; with more, every second one goes.
const MOST_STEPS: usize = 200;
/// The most histograms, and bins of one. What is more is left out.
const MOST_NAMES: usize = 500;
const MOST_BINS: usize = 256;
/// How much is read at a time, and the longest line.
const PIECE: u64 = 4 << 20;

/// The histograms of a run, as far as they were read.
#[derive(Default)]
pub(crate) struct Histograms {
    by_name: BTreeMap<String, Kept>,
    /// Where reading goes on.
    position: u64,
}

/// One histogram: every `stride`-th row of it.
#[derive(Default)]
struct Kept {
    rows: Vec<(u64, f64, f64, Vec<u64>)>,
    stride: u64,
    seen: u64,
}

/// As the API gives it.
#[derive(Serialize)]
pub(crate) struct Columns {
    name: String,
    steps: Vec<u64>,
    low: Vec<f64>,
    high: Vec<f64>,
    counts: Vec<Vec<u64>>,
}

impl Histograms {
    /// Reads on, a piece at a time. A log that has become shorter is read from its begin: a resumed run went back.
    pub(super) fn read(&mut self, path: &Path) {
        let Some(mut file) = is_plain_file(path).then(|| File::open(path).ok()).flatten() else { return };
        let length = file.metadata().map_or(0, |about| about.len());
        if length < self.position {
            *self = Self::default();
        }
        if length == self.position || file.seek(SeekFrom::Start(self.position)).is_err() {
            return;
        }
        let mut lines = BufReader::new(file.take(PIECE));
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) && line.ends_with(b"\n") {
            self.position += line.len() as u64;
            if let Ok(row) = serde_json::from_slice::<HistogramRow>(&line) {
                self.add(row);
            }
            line.clear();
        }
    }

    /// Everything is read again: the log of metrics went back to a checkpoint, so this one did too.
    pub(super) fn begin_again(&mut self) {
        *self = Self::default();
    }

    fn add(&mut self, row: HistogramRow) {
        for (name, bins) in row.histograms {
            if !self.by_name.contains_key(&name) && self.by_name.len() >= MOST_NAMES {
                continue;
            }
            let kept = self.by_name.entry(name).or_default();
            let (low, high) = (bins.low.0, bins.high.0);
            kept.add(row.step, low, high, bins.counts);
        }
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.by_name.keys().map(String::as_str).collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Columns> {
        let rows = &self.by_name.get(name)?.rows;
        Some(Columns {
            name: name.to_string(),
            steps: rows.iter().map(|row| row.0).collect(),
            low: rows.iter().map(|row| row.1).collect(),
            high: rows.iter().map(|row| row.2).collect(),
            counts: rows.iter().map(|row| row.3.clone()).collect(),
        })
    }
}

impl Kept {
    fn add(&mut self, step: u64, low: f64, high: f64, counts: Vec<u64>) {
        self.stride = self.stride.max(1);
        let is_kept = self.seen.is_multiple_of(self.stride) && counts.len() <= MOST_BINS;
        self.seen += 1;
        if !is_kept {
            return;
        }
        if self.rows.len() == MOST_STEPS {
            let mut keep = false;
            self.rows.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride *= 2;
            if !(self.seen - 1).is_multiple_of(self.stride) {
                return;
            }
        }
        self.rows.push((step, low, high, counts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_logs_are_thinned_evenly() {
        let mut kept = Kept::default();
        (0..10_000).for_each(|step| kept.add(step, 0.0, 1.0, vec![step]));
        let steps: Vec<u64> = kept.rows.iter().map(|row| row.0).collect();
        assert!((100..=MOST_STEPS).contains(&steps.len()), "{}", steps.len());
        assert!(steps.windows(2).all(|pair| pair[1] - pair[0] == kept.stride), "{steps:?}");
        assert_eq!(steps[0], 0);
    }
}
