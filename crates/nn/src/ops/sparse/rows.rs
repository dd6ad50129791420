//! The nonzero elements of a matrix, by row and by column.

use std::ops::Range;

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
        if columns == 0 || values.is_empty() || u32::try_from(values.len() / WORTH_SKIPPING).is_err() {
            return None;
        }
        let most = values.len() / WORTH_SKIPPING;
        let of_rows = |_, rows: &[T]| {
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
        let parts = cpu::map_chunks(values, cpu::chunk_rows(columns) * columns, of_rows);
        let parts: Vec<(Vec<usize>, Vec<u32>)> = parts.into_iter().collect::<Option<_>>()?;
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

    /// Those of rows that are given one after the other, each with ascending columns.
    pub(super) fn from_rows(rows: impl IntoIterator<Item = Vec<u32>>) -> Self {
        let (mut starts, mut columns) = (vec![0], Vec::new());
        for row in rows {
            columns.extend(row);
            starts.push(columns.len());
        }
        Self { starts, columns }
    }

    /// The columns of a row, ascending.
    pub(super) fn row(&self, row: usize) -> &[u32] {
        &self.columns[self.entries(row)]
    }

    /// Where the elements of a row are among all of them.
    pub(super) fn entries(&self, row: usize) -> Range<usize> {
        self.starts[row]..self.starts[row + 1]
    }

    /// The column of an element.
    pub(super) fn latent(&self, entry: usize) -> usize {
        self.columns[entry] as usize
    }

    /// How many rows there are.
    pub(super) fn rows(&self) -> usize {
        self.starts.len() - 1
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
        let mut places = vec![(0u32, 0u32); self.columns.len()];
        for row in 0..self.rows() {
            for entry in self.entries(row) {
                let next = &mut next[self.columns[entry] as usize];
                places[*next] = (row as u32, entry as u32);
                *next += 1;
            }
        }
        ByColumn { starts, places }
    }
}

/// The same, column by column.
pub(super) struct ByColumn {
    starts: Vec<usize>,
    /// The row of an element, and which one of all it is.
    places: Vec<(u32, u32)>,
}

impl ByColumn {
    /// The rows of a column, ascending, each with the number of its element.
    pub(super) fn column(&self, column: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let places = &self.places[self.starts[column]..self.starts[column + 1]];
        places.iter().map(|(row, entry)| (*row as usize, *entry as usize))
    }

    pub(super) fn is_empty(&self, column: usize) -> bool {
        self.starts[column] == self.starts[column + 1]
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
                [0, 3, 5, 39].map(|column| columns.column(column).map(|(row, _)| row).collect::<Vec<_>>()),
            )
        });
        assert_eq!(found, Some(([vec![3, 39], vec![], vec![0, 3]], [vec![2], vec![0, 2], vec![], vec![0]])));
        assert!(Nonzeros::find(&[1f32; 120], 40).is_none());
        let given = Nonzeros::from_rows([vec![1, 3], vec![], vec![3]]);
        assert_eq!(given.by_column(4).column(3).collect::<Vec<_>>(), [(0, 1), (2, 2)]);
    }
}
