//! What a log of metrics says, in bounded memory however long it is.

use std::collections::HashMap;

use tenterhook_record::metrics::RowView;

use super::index::Index;
use super::series::Series;

/// The most points of one series.
pub(crate) const MOST_POINTS: usize = 4000;
/// The most points of all series together; with more series each has fewer.
const ALL_POINTS: usize = 250_000;
/// What every series has at least.
const FEWEST_POINTS: usize = 32;
/// Further metrics are counted, not kept.
const MOST_SERIES: usize = 5000;
/// The most new points of a series, and of all, that are sent at once.
const FRESH_POINTS: usize = 50;
const ALL_FRESH_POINTS: usize = 2000;

/// All metrics of a run.
pub(crate) struct Log {
    names: Vec<String>,
    by_name: HashMap<String, usize>,
    series: Vec<Series>,
    pub(crate) index: Index,
    /// Another one when points that were given before have changed.
    pub(crate) version: u64,
    /// Metrics that are not kept.
    pub(crate) left_out: u64,
    /// What came since it was last sent, while somebody listens.
    fresh: Option<HashMap<usize, Series>>,
}

impl Log {
    pub(crate) fn new(version: u64) -> Self {
        Self {
            names: Vec::new(),
            by_name: HashMap::new(),
            series: Vec::new(),
            index: Index::default(),
            version,
            left_out: 0,
            fresh: None,
        }
    }

    pub(crate) fn add(&mut self, begin: u64, row: &RowView<'_>) {
        self.index.add(row.step, begin);
        let mut changed = false;
        for (name, value) in &row.values {
            let id = match self.by_name.get(name.as_ref()) {
                Some(id) => *id,
                None if self.series.len() == MOST_SERIES => {
                    self.left_out += 1;
                    continue;
                }
                None => {
                    changed |= self.make_room();
                    let id = self.series.len();
                    self.by_name.insert(name.to_string(), id);
                    self.names.push(name.to_string());
                    self.series.push(Series::new(capacity(id + 1)));
                    id
                }
            };
            changed |= self.series[id].push(row.step, row.time, *value);
            if let Some(fresh) = &mut self.fresh {
                let room = (ALL_FRESH_POINTS / self.series.len()).clamp(2, FRESH_POINTS);
                fresh.entry(id).or_insert_with(|| Series::new(room)).push(row.step, row.time, *value);
            }
        }
        self.version += u64::from(changed);
    }

    /// For one more series; true when points were joined for it.
    fn make_room(&mut self) -> bool {
        let room = capacity(self.series.len() + 1);
        self.series.iter_mut().fold(false, |joined, series| series.set_capacity(room) | joined)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Series> {
        self.by_name.get(name).map(|id| &self.series[*id])
    }

    /// All series by name, in the order in which they were first seen.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Series)> {
        self.names.iter().map(String::as_str).zip(&self.series)
    }

    /// Whether new points are kept for sending from now on.
    pub(crate) fn keep_fresh(&mut self, keep: bool) {
        match keep {
            true => drop(self.fresh.get_or_insert_default()),
            false => self.fresh = None,
        }
    }

    /// The points that came since the last call, by name.
    pub(crate) fn take_fresh(&mut self) -> Vec<(&str, Series)> {
        let mut fresh: Vec<_> =
            self.fresh.as_mut().map(std::mem::take).unwrap_or_default().into_iter().collect();
        fresh.sort_by_key(|(id, _)| *id);
        fresh.into_iter().map(|(id, series)| (self.names[id].as_str(), series)).collect()
    }
}

fn capacity(series: usize) -> usize {
    (ALL_POINTS / series.max(1)).clamp(FEWEST_POINTS, MOST_POINTS)
}
