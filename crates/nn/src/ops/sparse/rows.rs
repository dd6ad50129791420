//! The nonzero elements of a matrix, by row and by column.

use rayon::prelude::*;

use super::super::cpu;
use super::super::real::Real;

/// Rows are worth looking at element by element when at most one in so many is not zero: a matrix product does that many per element in
/// the same time.
const WORTH_SKIPPING: usize = 10;

/// The places of the nonzero elements of a matrix, row by row.
pub(super) struct Nonzeros {
    /// Where each row begins in `columns`; one more at the end.
    starts: Vec<usize>,
    columns: Vec<u32>,
}

impl Nonzeros {
    /// Finds them, unless there are so many that a matrix product is faster.
    pub(super) fn find<T: Real>(values: &[T], columns: usize) -> Option<Self> {
        if columns == 0 || values.is_empty() || u32::try_from(columns).is_err() {
            return None;
        }
        let most = values.len() / WORTH_SKIPPING;
        let of_rows = |rows: &[T]| {
            let mut found = (Vec::new(), Vec::new());
            for row in rows.chunks_exact(columns) {
                let before = found.1.len();
                found.1.extend(
                    (0..columns as u32)
                        .zip(row)
                        .filter(|(_, value)| **value != T::zero())
                        .map(|(column, _)| column),
                );
                found.0.push(found.1.len() - before);
                if found.1.len() > most {
                    return None;
                }
            }
            Some(found)
        };
        let parts: Option<Vec<(Vec<usize>, Vec<u32>)>> =
            values.par_chunks(cpu::chunk_rows(columns) * columns).map(of_rows).collect();
        let parts = parts?;
        let total: usize = parts.iter().map(|(_, columns)| columns.len()).sum();
        if total > most {
            return None;
        }
        let (mut starts, mut all) = (vec![0], Vec::with_capacity(total));
        for (lengths, columns) in parts {
            for length in lengths {
                starts.push(starts[starts.len() - 1] + length);
            }
            all.extend(columns);
        }
        Some(Self { starts, columns: all })
    }

    /// The columns of a row, ascending.
    pub(super) fn row(&self, row: usize) -> &[u32] {
        &self.columns[self.starts[row]..self.starts[row + 1]]
    }

    /// The rows of every column, ascending.
    pub(super) fn by_column(&self, columns: usize) -> ByColumn {
        let mut starts = vec![0usize; columns + 1];
        for column in &self.columns {
            starts[*column as usize + 1] += 1;
        }
        for column in 0..columns {
            starts[column + 1] += starts[column];
        }
        let mut next = starts.clone();
        let mut rows = vec![0u32; self.columns.len()];
        for row in 0..self.starts.len() - 1 {
            for column in self.row(row) {
                rows[next[*column as usize]] = row as u32;
                next[*column as usize] += 1;
            }
        }
        ByColumn { starts, rows }
    }
}

/// The same, column by column.
pub(super) struct ByColumn {
    starts: Vec<usize>,
    rows: Vec<u32>,
}

impl ByColumn {
    pub(super) fn column(&self, column: usize) -> &[u32] {
        &self.rows[self.starts[column]..self.starts[column + 1]]
    }
}

/// `to += by * from`, element by element.
#[inline(always)]
pub(super) fn add_times<T: Real>(to: &mut [T], by: T, from: &[T]) {
    cpu::wide(
        #[inline(always)]
        || {
            for (to, from) in to.iter_mut().zip(from) {
                *to += by * *from;
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonzeros_are_found_by_row_and_by_column() {
        let mut values = vec![0f32; 3 * 40];
        for (row, column) in [(0, 3), (0, 39), (2, 3), (2, 0)] {
            values[row * 40 + column] = 1.0;
        }
        let found = Nonzeros::find(&values, 40).map(|found| {
            let columns = found.by_column(40);
            (
                [0, 1, 2].map(|row| found.row(row).to_vec()),
                [0, 3, 5, 39].map(|column| columns.column(column).to_vec()),
            )
        });
        assert_eq!(found, Some(([vec![3, 39], vec![], vec![0, 3]], [vec![2], vec![0, 2], vec![], vec![0]])));
        assert!(Nonzeros::find(&[1f32; 120], 40).is_none());
    }
}
