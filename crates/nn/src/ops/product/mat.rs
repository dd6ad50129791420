//! Strided matrices inside slices.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::real::Real;

/// A strided matrix inside a slice.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T: Real> Mat<'a, T> {
    /// A row-major matrix that fills `data`.
    pub(crate) fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols, 1)
    }

    /// Element `(r, c)` is `data[r * row_stride + c * col_stride]`.
    pub(crate) fn strided(
        data: &'a [T],
        rows: usize,
        cols: usize,
        row_stride: usize,
        col_stride: usize,
    ) -> Self {
        assert!(fits(data.len(), rows, cols, row_stride, col_stride), "matrix outside its slice");
        Self { data, rows, cols, row_stride, col_stride }
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn row_stride(&self) -> usize {
        self.row_stride
    }

    pub(super) fn col_stride(&self) -> usize {
        self.col_stride
    }

    pub(super) fn pointer(&self) -> *const T {
        self.data.as_ptr()
    }

    /// Some of the rows.
    pub(crate) fn some_rows(self, rows: &Range<usize>) -> Self {
        assert!(rows.end <= self.rows, "rows outside the matrix");
        Self { data: &self.data[rows.start * self.row_stride..], rows: rows.len(), ..self }
    }

    /// Writes the transposed matrix to `dst`, row-major.
    pub(crate) fn copy_transposed(self, dst: &mut [T]) {
        const TILE: usize = 16;
        assert_eq!(dst.len(), self.rows * self.cols);
        for start in (0..self.rows).step_by(TILE) {
            let end = (start + TILE).min(self.rows);
            for (c, dst) in dst.chunks_exact_mut(self.rows).enumerate() {
                for (dst, r) in dst[start..end].iter_mut().zip(start..) {
                    *dst = self.data[r * self.row_stride + c * self.col_stride];
                }
            }
        }
    }

    /// The transposed view.
    pub(crate) fn t(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }
}

/// A strided row-major matrix that a product is written to.
pub(crate) struct MatMut<T> {
    data: *mut T,
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<T: Real> MatMut<T> {
    /// A row-major matrix that fills `data`.
    pub(crate) fn new(data: &mut [T], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols)
    }

    /// Row `r` starts at `data[r * row_stride]`.
    pub(crate) fn strided(data: &mut [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(fits(data.len(), rows, cols, row_stride, 1), "matrix outside its slice");
        Self { data: data.as_mut_ptr(), rows, cols, row_stride }
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn row_stride(&self) -> usize {
        self.row_stride
    }

    pub(super) fn pointer(&self) -> *mut T {
        self.data
    }

    /// A matrix at a raw pointer, for parallel tasks that write disjoint, interleaved rows of one buffer.
    ///
    /// # Safety
    /// Every element of the matrix must lie inside one live allocation, and nobody else may touch those elements
    /// until the product is done.
    pub(crate) unsafe fn from_raw(data: *mut T, rows: usize, cols: usize, row_stride: usize) -> Self {
        Self { data, rows, cols, row_stride }
    }
}

fn fits(len: usize, rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> bool {
    rows == 0 || cols == 0 || (rows - 1) * row_stride + (cols - 1) * col_stride < len
}

/// The rows of a result, for tasks that each have a part of them.
pub(crate) struct Rows<'a, T> {
    data: *mut T,
    stride: usize,
    borrow: PhantomData<&'a MatMut<T>>,
}

// SAFETY: `part` is the only way to the data, and its caller promises that no two tasks have the same part.
unsafe impl<T: Send> Sync for Rows<'_, T> {}

impl<'a, T: Real> Rows<'a, T> {
    pub(crate) fn of(dst: &'a MatMut<T>) -> Self {
        Self { data: dst.data, stride: dst.row_stride, borrow: PhantomData }
    }

    /// # Safety
    /// The part must lie inside the matrix, and nobody else may use it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, row: usize, cols: Range<usize>) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(row * self.stride + cols.start), cols.len()) }
    }
}
