//! Where in a log a step stands.

/// After how many rows there is an entry, at first.
const STRIDE: u64 = 1024;
/// With more entries every second one goes.
const MOST: usize = 8192;

/// The begin of every so many rows of a log.
#[derive(Debug)]
pub(crate) struct Index {
    entries: Vec<(u64, u64)>,
    stride: u64,
    rows: u64,
}

impl Default for Index {
    fn default() -> Self {
        Self { entries: Vec::new(), stride: STRIDE, rows: 0 }
    }
}

impl Index {
    /// Adds a row of this step, whose line begins at this byte.
    pub(crate) fn add(&mut self, step: u64, begin: u64) {
        if self.rows.is_multiple_of(self.stride) {
            self.entries.push((step, begin));
        }
        self.rows += 1;
        if self.entries.len() > MOST {
            let mut keep = false;
            self.entries.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride *= 2;
        }
    }

    /// Bytes between which all rows of these steps stand; the first is the begin of a row.
    pub(crate) fn range(&self, from: u64, to: u64) -> (u64, u64) {
        let first = self.entries.partition_point(|(step, _)| *step < from);
        let begin = first.checked_sub(1).map_or(0, |i| self.entries[i].1);
        let after = self.entries.partition_point(|(step, _)| *step <= to);
        (begin, self.entries.get(after).map_or(u64::MAX, |(_, begin)| *begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_all_rows_of_its_steps_and_few_others() {
        let mut index = Index::default();
        // Two rows a step, each of ten bytes.
        (0..20_000_000).for_each(|row| index.add(row / 2, 10 * row));
        assert!(index.entries.len() <= MOST);
        for (from, to) in [(0, 5), (123_456, 234_567), (9_999_999, 9_999_999), (7, 3)] {
            let (begin, end) = index.range(from, to);
            assert!(begin <= 20 * from && end > 20 * to.max(from) + 10, "{from} {to}: {begin} {end}");
            assert!(20 * from - begin <= 20 * index.stride);
            assert!(end == u64::MAX || end - 20 * to.max(from) <= 20 * index.stride);
        }
    }
}
