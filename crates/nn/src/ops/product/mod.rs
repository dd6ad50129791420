//! Matrix products on strided slices.
//!
//! In f32 on CPUs with AVX2 or AVX-512 they are our own ([`kernels`]): close to the machine's limit at the sizes transformers have, thin ones
//! included, and every element is added up in an order that depends on nothing but the length of the sum. Everything else goes
//! through the `gemm` crate that candle uses too.

#[cfg(target_arch = "x86_64")]
mod kernels;
mod mat;
mod through_gemm;

pub(crate) use mat::{Mat, MatMut, Rows};

#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;
use std::time::Instant;

use super::real::Real;
use crate::parallel;

/// How many threads a product may use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    /// This one: inside a parallel loop.
    One,
    /// All there are.
    All,
}

/// What the products are added to.
#[derive(Clone, Copy)]
enum Start<'a, T> {
    Zero,
    /// The same row everywhere.
    Row(&'a [T]),
    /// What stands in the result already.
    There,
}

/// What is done to a part of a row of the result once it is complete, while it is still in the cache: `(row, first column, part)`.
pub(crate) type Finish<'a, T> = dyn Fn(usize, usize, &mut [T]) + Sync + 'a;

/// `scale * a @ b`, and where it goes. The result has the same bits at any number of threads.
///
/// ```text
/// Product::of(x, w).plus_row(bias).write(y)
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Product<'a, T> {
    a: Mat<'a, T>,
    b: Mat<'a, T>,
    scale: T,
    start: Start<'a, T>,
    finish: Option<&'a Finish<'a, T>>,
    threads: Threads,
}

impl<'a, T: Real> Product<'a, T> {
    pub(crate) fn of(a: Mat<'a, T>, b: Mat<'a, T>) -> Self {
        assert_eq!(a.cols(), b.rows(), "matrix sizes do not fit");
        Self { a, b, scale: T::one(), start: Start::Zero, finish: None, threads: Threads::All }
    }

    pub(crate) fn scaled(self, scale: T) -> Self {
        Self { scale, ..self }
    }

    /// Adds this row to every row of the result.
    pub(crate) fn plus_row(self, row: Option<&'a [T]>) -> Self {
        match row {
            None => self,
            Some(row) => {
                assert_eq!(row.len(), self.b.cols(), "matrix sizes do not fit");
                Self { start: Start::Row(row), ..self }
            }
        }
    }

    /// Calls `finish` with every complete part of a row. It must not start products or parallel loops.
    pub(crate) fn then(self, finish: Option<&'a Finish<'a, T>>) -> Self {
        Self { finish, ..self }
    }

    pub(crate) fn on(self, threads: Threads) -> Self {
        Self { threads, ..self }
    }

    /// Writes the result to `dst`.
    pub(crate) fn write(self, dst: MatMut<T>) {
        assert!(self.a.rows() == dst.rows() && self.b.cols() == dst.cols(), "matrix sizes do not fit");
        if dst.rows() > 0 && dst.cols() > 0 && !T::fast_product(&self, &dst) {
            through_gemm::run(&self, &dst);
        }
    }

    /// Adds the result to `dst`.
    pub(crate) fn add_to(self, dst: MatMut<T>) {
        Self { start: Start::There, ..self }.write(dst);
    }

    /// How many terms of a sum are added up before they are added to the ones before: a sum that is cut at multiples of this and goes on
    /// with [`add_to`](Self::add_to) has the same bits. `None` where that depends on more than the length of the sum.
    pub(crate) fn sums_of() -> Option<usize> {
        T::sums_of()
    }

    /// How many threads are worth while.
    fn threads(&self) -> usize {
        /// Multiplications below which the pool costs more than it brings.
        const SMALL: usize = 1 << 20;
        let work = self.a.rows().saturating_mul(self.a.cols()).saturating_mul(self.b.cols());
        match self.threads {
            Threads::One => 1,
            Threads::All if work < SMALL => 1,
            Threads::All => parallel::threads(),
        }
    }
}

/// Seconds that each of `repeat` f32 products took, `[m, k]` by `[k, n]`: what the machine can do, to measure models by.
/// A transposed operand lies in memory column by column.
pub fn product_seconds(
    [m, k, n]: [usize; 3],
    a_transposed: bool,
    b_transposed: bool,
    repeat: usize,
) -> Vec<f64> {
    let (a, b) = (vec![0.5f32; m * k], vec![0.25f32; k * n]);
    let mut y = vec![0f32; m * n];
    let a = if a_transposed { Mat::new(&a, k, m).t() } else { Mat::new(&a, m, k) };
    let b = if b_transposed { Mat::new(&b, n, k).t() } else { Mat::new(&b, k, n) };
    let once = |_| {
        let start = Instant::now();
        Product::of(a, b).write(MatMut::new(&mut y, m, n));
        start.elapsed().as_secs_f64()
    };
    (0..repeat).map(once).collect()
}

/// How many terms our own kernels add up at a time, if this CPU has what they need.
pub(super) fn fast_f32_sums_of() -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    return kernel().map(|_| kernels::SUMS_OF);
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Runs an f32 product on our own kernels, if this CPU has what they need.
pub(super) fn fast_f32(product: &Product<f32>, dst: &MatMut<f32>) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(run) = kernel() {
        run(product, dst);
        return true;
    }
    let _ = (product, dst);
    false
}

/// The kernels for this CPU.
#[cfg(target_arch = "x86_64")]
fn kernel() -> Option<kernels::Run> {
    static BEST: LazyLock<Option<kernels::Run>> = LazyLock::new(kernels::best);
    *BEST
}

#[cfg(test)]
mod tests;
