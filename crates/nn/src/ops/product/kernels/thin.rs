//! Products with few rows: every element of `b` is read once, so reading it is all that counts, and nothing is packed.
//! The sums are added up in the order of the module's comment.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ops::Range;

use super::tile::DEPTH;
use super::vector::Vector;
use super::{Job, Operand, Start};
use crate::parallel;

/// The most rows a product may have to be thin.
pub(super) const ROWS: usize = 4;

/// The most columns of a task: its sums stay in the first-level cache.
const WIDEST: usize = 1024;

/// # Safety
/// The CPU has the vectors.
pub(super) unsafe fn run<V: Vector>(job: &Job, threads: usize) {
    let width = match threads {
        1 => WIDEST,
        _ => job.cols.div_ceil(2 * threads).clamp(128, WIDEST).next_multiple_of(V::LANES),
    };
    let task = |t: usize| {
        let cols = t * width..((t + 1) * width).min(job.cols);
        // SAFETY: the caller's promise, and the tasks' columns do not overlap.
        unsafe {
            match job.rows {
                1 => V::run(
                    #[inline(always)]
                    || columns::<V, 1>(job, cols),
                ),
                2 => V::run(
                    #[inline(always)]
                    || columns::<V, 2>(job, cols),
                ),
                3 => V::run(
                    #[inline(always)]
                    || columns::<V, 3>(job, cols),
                ),
                _ => V::run(
                    #[inline(always)]
                    || columns::<V, ROWS>(job, cols),
                ),
            }
        }
    };
    let tasks = job.cols.div_ceil(width);
    match threads {
        1 => (0..tasks).for_each(task),
        _ => parallel::for_each(tasks, task),
    }
}

/// Some columns of all rows.
#[inline(always)]
unsafe fn columns<V: Vector, const R: usize>(job: &Job, cols: Range<usize>) {
    let mut sums = [[0.0f32; WIDEST]; R];
    let used = cols.len().next_multiple_of(V::LANES);
    for d in 0..job.depth.div_ceil(DEPTH).max(1) {
        let depth = (d * DEPTH).min(job.depth)..((d + 1) * DEPTH).min(job.depth);
        sums.iter_mut().for_each(|row| row[..used].fill(0.0));
        // SAFETY: the part lies inside the operands.
        unsafe {
            match job.b.col_stride {
                1 => add_rows::<V, R>(&mut sums, job, depth, &cols),
                _ if job.b.row_stride == 1 => add_columns::<V, R>(&mut sums, job, depth, &cols),
                _ => add_elements(&mut sums, job, depth, &cols),
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            // SAFETY: this part of the row is this task's.
            let dst = unsafe { job.dst.part(r, cols.clone()) };
            for (i, (dst, sum)) in dst.iter_mut().zip(sums).enumerate() {
                let sum = sum * job.scale;
                *dst = match job.start {
                    Start::Zero if d == 0 => sum,
                    Start::Row(row) if d == 0 => sum + row[cols.start + i],
                    _ => sum + *dst,
                };
            }
        }
    }
    if let Some(finish) = job.finish {
        for r in 0..R {
            // SAFETY: this part of the row is this task's.
            finish(r, cols.start, unsafe { job.dst.part(r, cols.clone()) });
        }
    }
}

/// The element of `a`, in every lane.
#[inline(always)]
unsafe fn spread<V: Vector>(a: Operand, row: usize, depth: usize) -> V {
    // SAFETY: the caller's promise that it is inside `a`.
    unsafe { V::splat(*a.at(row, depth).data) }
}

/// `b` lies row by row: four rows of it at a time go through the sums.
#[inline(always)]
unsafe fn add_rows<V: Vector, const R: usize>(
    sums: &mut [[f32; WIDEST]; R],
    job: &Job,
    depth: Range<usize>,
    cols: &Range<usize>,
) {
    const STEPS: usize = 4;
    let mut p = depth.start;
    while p < depth.end {
        let steps = STEPS.min(depth.end - p);
        // SAFETY: inside the depth; the lanes keep the loads inside the rows; the sums have room for whole vectors.
        unsafe {
            let mut a = [[V::splat(0.0); STEPS]; R];
            for (r, a) in a.iter_mut().enumerate() {
                for (q, a) in a[..steps].iter_mut().enumerate() {
                    *a = spread(job.a, r, p + q);
                }
            }
            for c in (0..cols.len()).step_by(V::LANES) {
                let lanes = V::first(cols.len() - c);
                let from = job.b.at(p, cols.start + c).data;
                let mut total = [V::splat(0.0); R];
                for (total, sums) in total.iter_mut().zip(sums.iter()) {
                    *total = V::load(sums.as_ptr().add(c));
                }
                for q in 0..steps {
                    // The rows of the next steps: the CPU itself looks ahead along rows only.
                    let next = from.wrapping_add((q + STEPS) * job.b.row_stride);
                    _mm_prefetch::<_MM_HINT_T0>(next.cast());
                    let b = V::load_some(lanes, from.add(q * job.b.row_stride));
                    for (total, a) in total.iter_mut().zip(&a) {
                        *total = a[q].mul_add(b, *total);
                    }
                }
                for (total, sums) in total.iter().zip(sums.iter_mut()) {
                    total.store(sums.as_mut_ptr().add(c));
                }
            }
        }
        p += steps;
    }
}

/// `b` lies column by column: squares of it are turned in the registers.
#[inline(always)]
unsafe fn add_columns<V: Vector, const R: usize>(
    sums: &mut [[f32; WIDEST]; R],
    job: &Job,
    depth: Range<usize>,
    cols: &Range<usize>,
) {
    for c in (0..cols.len()).step_by(V::LANES) {
        let height = V::LANES.min(cols.len() - c);
        // SAFETY: the lanes keep the loads inside the columns; inside the depth; the sums have room for whole vectors.
        unsafe {
            let mut total = [V::splat(0.0); R];
            for p in depth.clone().step_by(V::LANES) {
                let steps = V::LANES.min(depth.end - p);
                let mut square = V::zeros();
                for (i, row) in square.as_mut()[..height].iter_mut().enumerate() {
                    let from = job.b.at(p, cols.start + c + i).data;
                    // The same place in the columns that come next.
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(V::LANES * job.b.col_stride).cast());
                    *row = V::load_some(V::first(steps), from);
                }
                let square = V::transposed(square);
                for (q, b) in square.as_ref()[..steps].iter().enumerate() {
                    for (r, total) in total.iter_mut().enumerate() {
                        *total = spread::<V>(job.a, r, p + q).mul_add(*b, *total);
                    }
                }
            }
            for (total, sums) in total.iter().zip(sums.iter_mut()) {
                total.store(sums.as_mut_ptr().add(c));
            }
        }
    }
}

/// Nothing in `b` lies side by side.
#[inline(always)]
unsafe fn add_elements<const R: usize>(
    sums: &mut [[f32; WIDEST]; R],
    job: &Job,
    depth: Range<usize>,
    cols: &Range<usize>,
) {
    for p in depth {
        for c in 0..cols.len() {
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: inside the operands.
                let (a, b) = unsafe { (*job.a.at(r, p).data, *job.b.at(p, cols.start + c).data) };
                sums[c] = a.mul_add(b, sums[c]);
            }
        }
    }
}
