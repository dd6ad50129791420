//! Products through the `gemm` crate: f64, and CPUs for which we have no kernels.

use candle_core::DType;
use gemm::Parallelism;

use super::super::real::Real;
use super::mat::Rows;
use super::{MatMut, Product, Start};
use crate::parallel;

pub(super) fn run<T: Real>(product: &Product<T>, dst: &MatMut<T>) {
    assert!(matches!(T::DTYPE, DType::F32 | DType::F64));
    let threads = product.threads();
    let (rows, cols) = (Rows::of(dst), dst.cols());
    let each_row = |f: &(dyn Fn(usize, &mut [T]) + Sync)| {
        // SAFETY: every row is visited once.
        let visit = |row| f(row, unsafe { rows.part(row, 0..cols) });
        match threads {
            1 => (0..dst.rows()).for_each(visit),
            _ => parallel::for_each(dst.rows(), visit),
        }
    };
    if let Start::Row(start) = product.start {
        each_row(&|_, row| row.copy_from_slice(start));
    }
    let (a, b) = (product.a, product.b);
    let parallelism = match threads {
        1 => Parallelism::None,
        threads => Parallelism::Rayon(threads),
    };
    // SAFETY: the matrices lie inside their slices, and `dst` is a unique borrow: their constructors saw to it.
    unsafe {
        gemm::gemm(
            dst.rows(),
            dst.cols(),
            a.cols(),
            dst.pointer(),
            1,
            dst.row_stride() as isize,
            !matches!(product.start, Start::Zero),
            a.pointer(),
            a.col_stride() as isize,
            a.row_stride() as isize,
            b.pointer(),
            b.col_stride() as isize,
            b.row_stride() as isize,
            T::one(),
            product.scale,
            false,
            false,
            false,
            parallelism,
        );
    }
    if let Some(finish) = product.finish {
        each_row(&|row, part| finish(row, 0, part));
    }
}
