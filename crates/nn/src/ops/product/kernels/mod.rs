//! f32 products for CPUs with vectors of 8 (AVX2 with FMA) or 16 floats (AVX-512): the same code for [both](vector), and the same bits.
//!
//! **The order of summation.** Every element of the result is added up over blocks of [`DEPTH`](tile::DEPTH) steps: within a block one
//! fused multiply-add after the other, from zero; the blocks' sums are scaled and added, in order, to what the result starts with.
//! Nothing else decides: not the number of rows and columns, not strides, not threads, not the CPU. So a token has the same bits alone
//! and in a batch, and zeros at the end of a sum change nothing.
//!
//! **The way through memory.** The result is cut into [tasks](tasks) of some rows and some columns. A [task](part) has a block of `b` that stays in the
//! second-level cache, takes `a` in blocks of a few rows that stay in the first-level cache, and lets the [kernel](tile) run over all panels of
//! two vectors. The kernel [packs](pack) on the way, wherever that is copying: `b` with the first block of rows, and the next block of rows. What comes after that is
//! [asked for](ahead) meanwhile. Where `b` lies by columns and `a` has few rows, the [turned](Job::turned) product is
//! computed, so that the large operand is read as it lies. With very few rows nothing is packed ([thin]).

mod ahead;
mod pack;
mod part;
mod tasks;
mod thin;
mod tile;
mod vector;

use std::arch::x86_64::{__m256, __m512};
use std::ops::Range;

use super::mat::Rows;
use super::{Finish, Mat, MatMut, Product, Start};
use crate::parallel;
use ahead::Lines;
use part::{Part, with_scratch};
use tasks::Tasks;
use tile::{DEPTH, Kernels};
use vector::Vector;

/// Floats of `b` that a task packs at a time: what leaves room for the rest in a second-level cache of 1 to 2 MiB.
const B_BLOCK: usize = 384 * DEPTH;

/// Rows up to which all of `a` is packed at once.
const FEW_ROWS: usize = 280;

/// How many terms of a sum are added up at a time.
pub(super) const SUMS_OF: usize = DEPTH;

/// Computes a product on this CPU.
pub(super) type Run = fn(&Product<f32>, &MatMut<f32>);

/// The kernels with the widest vectors that this CPU has; none where it has no vectors that we know.
pub(super) fn best() -> Option<Run> {
    all().into_iter().next()
}

/// All kernels that this CPU can run, the best first.
pub(super) fn all() -> Vec<Run> {
    let mut found: Vec<Run> = Vec::new();
    if __m512::available() {
        found.push(run::<__m512>);
    }
    if __m256::available() {
        found.push(run::<__m256>);
    }
    found
}

/// A matrix to read from.
#[derive(Clone, Copy)]
struct Operand {
    data: *const f32,
    row_stride: usize,
    col_stride: usize,
}

// SAFETY: it is only read through, and lives as long as the product's borrow.
unsafe impl Sync for Operand {}

impl Operand {
    fn of(mat: &Mat<f32>) -> Self {
        // A stride along an axis of one element says nothing: the kernels may take it for 1.
        let stride = |len: usize, stride: usize| if len == 1 { 1 } else { stride };
        Self {
            data: mat.pointer(),
            row_stride: stride(mat.rows(), mat.row_stride()),
            col_stride: stride(mat.cols(), mat.col_stride()),
        }
    }

    /// The part that starts at this element.
    ///
    /// # Safety
    /// The element must be in the matrix, or one behind its end.
    unsafe fn at(self, row: usize, col: usize) -> Self {
        // SAFETY: the caller's promise.
        Self { data: unsafe { self.data.add(row * self.row_stride + col * self.col_stride) }, ..self }
    }

    /// The lines of the cache of a part.
    fn lines(self, rows: &Range<usize>, cols: &Range<usize>) -> Lines {
        let data = self.data.wrapping_add(rows.start * self.row_stride + cols.start * self.col_stride);
        match self {
            Self { col_stride: 1, row_stride, .. } => Lines::of(data, row_stride, rows.len(), cols.len()),
            Self { row_stride: 1, col_stride, .. } => Lines::of(data, col_stride, cols.len(), rows.len()),
            _ => Lines::none(),
        }
    }
}

/// A product as the kernels see it.
struct Job<'a> {
    rows: usize,
    cols: usize,
    depth: usize,
    a: Operand,
    b: Operand,
    dst: Rows<'a, f32>,
    dst_stride: usize,
    start: Start<'a, f32>,
    scale: f32,
    finish: Option<&'a Finish<'a, f32>>,
    /// Whether rows and columns have changed places: element `(r, c)` of the job is element `(c, r)` of the result.
    turned: bool,
}

impl Job<'_> {
    /// The same product with rows and columns changed, `(a b)^T = b^T a^T`: the same sums in the same order.
    fn turned(self) -> Self {
        let turn = |operand: Operand| Operand {
            row_stride: operand.col_stride,
            col_stride: operand.row_stride,
            ..operand
        };
        Self {
            rows: self.cols,
            cols: self.rows,
            a: turn(self.b),
            b: turn(self.a),
            turned: !self.turned,
            ..self
        }
    }

    /// Whether `b` would have to be turned as it is packed, for too few rows to make up for it.
    fn is_better_turned(&self) -> bool {
        /// Columns from which reading them as they lie pays: those of a vocabulary.
        const MANY: usize = 8192;
        let few = 24..=B_BLOCK / DEPTH;
        self.b.row_stride == 1 && self.b.col_stride != 1 && few.contains(&self.rows) && self.cols >= MANY
    }

    /// Where a part of the result begins.
    ///
    /// # Safety
    /// The part must be the caller's own.
    unsafe fn place(&self, rows: &Range<usize>, cols: &Range<usize>) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe {
            match self.turned {
                false => self.dst.part(rows.start, cols.clone()).as_mut_ptr(),
                true => self.dst.part(cols.start, rows.clone()).as_mut_ptr(),
            }
        }
    }
}

/// Only for CPUs that have the vectors: see [`all`].
fn run<V: Kernels>(product: &Product<f32>, dst: &MatMut<f32>) {
    let job = Job {
        rows: dst.rows(),
        cols: dst.cols(),
        depth: product.a.cols(),
        a: Operand::of(&product.a),
        b: Operand::of(&product.b),
        dst: Rows::of(dst),
        dst_stride: dst.row_stride(),
        start: product.start,
        scale: product.scale,
        finish: product.finish,
        turned: false,
    };
    let threads = product.threads();
    if job.rows <= thin::ROWS {
        // SAFETY: the CPU has the vectors.
        return unsafe { thin::run::<V>(&job, threads) };
    }
    let job = if job.is_better_turned() { job.turned() } else { job };
    let tasks = Tasks::new::<V>(&job, threads);
    let work = |mine: usize| {
        while let Some((task, next)) = tasks.take(mine) {
            let next = next.map(|next| tasks.cols(next));
            with_scratch::<V, _>(|scratch| {
                // SAFETY: the CPU has the vectors; the job's matrices are as it says; the tasks' parts of the result do not overlap.
                unsafe { Part::<V>::new(&job, tasks.rows(task), tasks.cols(task), next, scratch).compute() };
            });
        }
    };
    parallel::share(threads, &work);
}

/// Whether all rows are few enough to be packed at once.
fn few_rows(rows: usize) -> bool {
    rows <= FEW_ROWS
}
