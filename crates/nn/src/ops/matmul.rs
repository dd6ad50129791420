//! Matrix products on strided slices, through the `gemm` crate that candle uses too.

use candle_core::DType;
use gemm::Parallelism;

use super::real::Real;

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

    /// Some of the rows.
    pub(crate) fn some_rows(self, rows: &std::ops::Range<usize>) -> Self {
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

/// How many threads a product may use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    /// This one: inside a parallel loop.
    One,
    /// All of rayon's.
    All,
}

/// `dst = alpha * a @ b`, or `dst += alpha * a @ b` with `accumulate`. The result has the same bits at any number of threads.
pub(crate) fn matmul<T: Real>(
    dst: MatMut<T>,
    accumulate: bool,
    alpha: T,
    a: Mat<T>,
    b: Mat<T>,
    threads: Threads,
) {
    assert!(a.rows == dst.rows && b.cols == dst.cols && a.cols == b.rows, "matrix sizes do not fit");
    assert!(matches!(T::DTYPE, DType::F32 | DType::F64));
    let parallelism = match threads {
        Threads::One => Parallelism::None,
        Threads::All => Parallelism::Rayon(rayon::current_num_threads()),
    };
    // SAFETY: the constructors checked that the matrices lie inside their slices (or the caller of `from_raw` did),
    // and `dst` is a unique borrow.
    unsafe {
        gemm::gemm(
            dst.rows,
            dst.cols,
            a.cols,
            dst.data,
            1,
            dst.row_stride as isize,
            accumulate,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            T::one(),
            alpha,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_follow_strides_and_accumulate() {
        let a: Vec<f64> = (0..6).map(f64::from).collect(); // [2, 3]
        let b: Vec<f64> = (0..12).map(f64::from).collect(); // [3, 4]
        let mut y = vec![1.0; 8];
        matmul(MatMut::new(&mut y, 2, 4), false, 1.0, Mat::new(&a, 2, 3), Mat::new(&b, 3, 4), Threads::One);
        assert_eq!(y, [20., 23., 26., 29., 56., 68., 80., 92.]);
        matmul(MatMut::new(&mut y, 2, 4), true, 1.0, Mat::new(&a, 2, 3), Mat::new(&b, 3, 4), Threads::All);
        assert_eq!(y, [40., 46., 52., 58., 112., 136., 160., 184.]);
        let mut dw = vec![0.0; 12]; // a^T @ y: [3, 4]
        let y = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0];
        matmul(
            MatMut::new(&mut dw, 3, 4),
            false,
            2.0,
            Mat::new(&a, 2, 3).t(),
            Mat::new(&y, 2, 4),
            Threads::One,
        );
        assert_eq!(dw, [0., 6., 0., 0., 2., 8., 0., 0., 4., 10., 0., 0.]);
    }
}
