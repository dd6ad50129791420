//! Products with few rows: every element of `b` is read once, so reading it is all that counts, and nothing is packed.
//! The sums are added up in the order of the module's comment.

use std::arch::x86_64::*;
use std::ops::Range;

use super::pack::{first, transposed};
use super::tile::DEPTH;
use super::{Job, Operand, Start};
use crate::parallel;

/// The most rows a product may have to be thin.
pub(super) const ROWS: usize = 4;

/// Columns in a vector.
const LANES: usize = 16;

/// The most columns of a task: its sums stay in the first-level cache.
const WIDEST: usize = 1024;

pub(super) fn run(job: &Job, threads: usize) {
    let width = match threads {
        1 => WIDEST,
        _ => job.cols.div_ceil(2 * threads).clamp(LANES * 8, WIDEST).next_multiple_of(LANES),
    };
    let task = |t: usize| {
        let cols = t * width..((t + 1) * width).min(job.cols);
        // SAFETY: the CPU has AVX-512, and the tasks' columns do not overlap.
        unsafe {
            match job.rows {
                1 => columns::<1>(job, cols),
                2 => columns::<2>(job, cols),
                3 => columns::<3>(job, cols),
                _ => columns::<ROWS>(job, cols),
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
#[target_feature(enable = "avx512f")]
unsafe fn columns<const R: usize>(job: &Job, cols: Range<usize>) {
    let mut sums = [[0.0f32; WIDEST]; R];
    let vectors = cols.len().div_ceil(LANES);
    for d in 0..job.depth.div_ceil(DEPTH).max(1) {
        let depth = (d * DEPTH).min(job.depth)..((d + 1) * DEPTH).min(job.depth);
        sums.iter_mut().for_each(|row| row[..vectors * LANES].fill(0.0));
        // SAFETY: the part lies inside the operands.
        unsafe {
            match job.b.col_stride {
                1 => add_rows(&mut sums, job, depth, &cols),
                _ if job.b.row_stride == 1 => add_columns(&mut sums, job, depth, &cols),
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
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn spread(a: Operand, row: usize, depth: usize) -> __m512 {
    // SAFETY: the caller's promise that it is inside `a`.
    _mm512_set1_ps(unsafe { *a.at(row, depth).data })
}

/// `b` lies row by row: four rows of it at a time go through the sums.
#[target_feature(enable = "avx512f")]
unsafe fn add_rows<const R: usize>(
    sums: &mut [[f32; WIDEST]; R],
    job: &Job,
    depth: Range<usize>,
    cols: &Range<usize>,
) {
    const STEPS: usize = 4;
    let mut p = depth.start;
    while p < depth.end {
        let steps = STEPS.min(depth.end - p);
        let mut a = [[_mm512_setzero_ps(); STEPS]; R];
        for (r, a) in a.iter_mut().enumerate() {
            for (q, a) in a[..steps].iter_mut().enumerate() {
                // SAFETY: inside the depth.
                *a = unsafe { spread(job.a, r, p + q) };
            }
        }
        for c in (0..cols.len()).step_by(LANES) {
            let lanes = first(cols.len() - c);
            // SAFETY: the mask keeps the loads inside the rows; the sums have room for whole vectors.
            unsafe {
                let from = job.b.at(p, cols.start + c).data;
                let mut total = [_mm512_setzero_ps(); R];
                for (total, sums) in total.iter_mut().zip(sums.iter()) {
                    *total = _mm512_loadu_ps(sums.as_ptr().add(c));
                }
                for q in 0..steps {
                    // The rows of the next steps: the CPU itself looks ahead along rows only.
                    let next = from.wrapping_add((q + STEPS) * job.b.row_stride);
                    _mm_prefetch::<_MM_HINT_T0>(next.cast());
                    let b = _mm512_maskz_loadu_ps(lanes, from.add(q * job.b.row_stride));
                    for (total, a) in total.iter_mut().zip(&a) {
                        *total = _mm512_fmadd_ps(a[q], b, *total);
                    }
                }
                for (total, sums) in total.iter().zip(sums.iter_mut()) {
                    _mm512_storeu_ps(sums.as_mut_ptr().add(c), *total);
                }
            }
        }
        p += steps;
    }
}

/// `b` lies column by column: squares of 16 by 16 are turned in the registers.
#[target_feature(enable = "avx512f")]
unsafe fn add_columns<const R: usize>(
    sums: &mut [[f32; WIDEST]; R],
    job: &Job,
    depth: Range<usize>,
    cols: &Range<usize>,
) {
    for c in (0..cols.len()).step_by(LANES) {
        let height = LANES.min(cols.len() - c);
        let mut total = [_mm512_setzero_ps(); R];
        for p in depth.clone().step_by(LANES) {
            let steps = LANES.min(depth.end - p);
            let mut square = [_mm512_setzero_ps(); LANES];
            for (i, row) in square[..height].iter_mut().enumerate() {
                // SAFETY: the mask keeps the load inside the column.
                unsafe {
                    let from = job.b.at(p, cols.start + c + i).data;
                    // The same place in the columns that come next.
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(LANES * job.b.col_stride).cast());
                    *row = _mm512_maskz_loadu_ps(first(steps), from);
                }
            }
            let square = transposed(square);
            for (q, b) in square[..steps].iter().enumerate() {
                for (r, total) in total.iter_mut().enumerate() {
                    // SAFETY: inside the depth.
                    *total = _mm512_fmadd_ps(unsafe { spread(job.a, r, p + q) }, *b, *total);
                }
            }
        }
        for (total, sums) in total.iter().zip(sums.iter_mut()) {
            // SAFETY: the sums have room for whole vectors.
            unsafe { _mm512_storeu_ps(sums.as_mut_ptr().add(c), *total) };
        }
    }
}

/// Nothing in `b` lies side by side.
#[target_feature(enable = "avx512f")]
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
