//! f32 products for CPUs with AVX-512.
//!
//! **The order of summation.** Every element of the result is added up over blocks of [`DEPTH`](tile::DEPTH) steps: within a block one
//! fused multiply-add after the other, from zero; the blocks' sums are scaled and added, in order, to what the result starts with.
//! Nothing else decides: not the number of rows and columns, not strides, not threads. So a token has the same bits alone
//! and in a batch, and zeros at the end of a sum change nothing.
//!
//! **The way through memory.** The result is cut into tasks of some rows and some columns. A task packs a block of `b` that stays in the second-level
//! cache, then takes `a` in blocks of 14 rows that stay in the first-level cache, and lets the [kernel](tile) run over all panels of
//! 32 columns. What comes next is [asked for](ahead) meanwhile.

mod ahead;
mod pack;
mod thin;
mod tile;

use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::mat::Rows;
use super::{Finish, Mat, MatMut, Product, Start};
use ahead::{Ahead, Lines};
use tile::{A_DEPTH_STRIDE, A_STRIDE, COLS, DEPTH, Form, ROWS, Tile};

/// Floats of `b` that a task packs at a time: what leaves room for the rest in a second-level cache of 1 to 2 MiB.
const B_BLOCK: usize = 256 * DEPTH;

/// Whether this CPU has what the kernels need.
pub(super) fn available() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
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
}

pub(super) fn run(product: &Product<f32>, dst: &MatMut<f32>) {
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
    };
    let threads = product.threads();
    if job.rows <= thin::ROWS {
        return thin::run(&job, threads);
    }
    let tasks = Tasks::new(&job, threads);
    let work = |mine: usize| {
        while let Some((task, next)) = tasks.take(mine) {
            let next = next.map(|next| tasks.cols(next));
            // SAFETY: the CPU has AVX-512; the job's matrices are as it says; the tasks' parts of the result do not overlap.
            with_scratch(|scratch| unsafe { block(&job, tasks.rows(task), tasks.cols(task), next, scratch) });
        }
    };
    match threads {
        1 => work(0),
        _ => (0..threads).into_par_iter().with_max_len(1).for_each(work),
    }
}

/// The parts of a result, and who works on which.
struct Tasks {
    rows: usize,
    row_parts: usize,
    panels: usize,
    col_parts: usize,
    cols: usize,
    /// What every thread has left. Each takes from the front of its own, so that it knows what comes next, and then from the back of others'.
    queues: Vec<Mutex<Range<usize>>>,
}

impl Tasks {
    fn new(job: &Job, threads: usize) -> Self {
        /// Below this many rows, packing `b` again for each part would show.
        const FEWEST_ROWS: usize = 512;
        /// Below this many columns, packing `a` again for each part would show.
        const FEWEST_COLS: usize = 128;
        let panels = job.cols.div_ceil(COLS);
        let widest = B_BLOCK / job.depth.clamp(1, DEPTH) / COLS * COLS;
        let mut col_parts = job.cols.div_ceil(widest.min(1024));
        let mut row_parts = 1;
        if threads > 1 {
            // Several for each thread, so that one that is held up leaves the others something to take over.
            let wanted = 4 * threads;
            row_parts = wanted.div_ceil(col_parts).min(job.rows / FEWEST_ROWS).max(1);
            if row_parts * col_parts < wanted {
                col_parts = col_parts.max(wanted.div_ceil(row_parts).min(job.cols / FEWEST_COLS));
            }
            if row_parts == 1 {
                col_parts = col_parts.next_multiple_of(threads);
            }
        }
        let col_parts = col_parts.min(panels);
        let tasks = row_parts * col_parts;
        let queue = |t: usize| Mutex::new(t * tasks / threads..(t + 1) * tasks / threads);
        Self {
            rows: job.rows,
            row_parts,
            panels,
            col_parts,
            cols: job.cols,
            queues: (0..threads).map(queue).collect(),
        }
    }

    /// A task, and the one that comes after it if that is known.
    fn take(&self, mine: usize) -> Option<(usize, Option<usize>)> {
        let queue = |t: usize| self.queues[t].lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut queue = queue(mine);
            if let Some(task) = queue.next() {
                return Some((task, queue.clone().next()));
            }
        }
        (0..self.queues.len()).find_map(|other| queue(other).next_back().map(|task| (task, None)))
    }

    fn rows(&self, task: usize) -> Range<usize> {
        part(self.rows, self.row_parts, task % self.row_parts)
    }

    fn cols(&self, task: usize) -> Range<usize> {
        let panels = part(self.panels, self.col_parts, task / self.row_parts);
        panels.start * COLS..(panels.end * COLS).min(self.cols)
    }
}

/// Part `i` when `len` things are shared out evenly.
fn part(len: usize, parts: usize, i: usize) -> Range<usize> {
    i * len / parts..(i + 1) * len / parts
}

/// Room for a packed block of `a`, and one of `b` behind it.
struct Scratch {
    a: *mut f32,
    b: *mut f32,
}

/// Calls `f` with this thread's room, which it keeps: fresh memory would cost more than the packing.
fn with_scratch<R>(f: impl FnOnce(&Scratch) -> R) -> R {
    // By rows or by depth, whichever takes more.
    const A_BLOCK: usize = A_DEPTH_STRIDE * A_STRIDE;
    const LINE: usize = 64;
    thread_local!(static ROOM: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
    ROOM.with_borrow_mut(|room| {
        // A partial panel at the end of a block is as long as a whole one.
        room.resize(A_BLOCK + B_BLOCK + COLS * DEPTH + LINE, 0.0);
        let a = room.as_mut_ptr();
        // SAFETY: the room is longer than both blocks by more than a line.
        let (a, b) = unsafe {
            let a = a.add(a.align_offset(LINE));
            (a, a.add(A_BLOCK))
        };
        f(&Scratch { a, b })
    })
}

/// Computes a part of the result. `next` are the columns that this thread will do after it.
///
/// # Safety
/// The CPU has AVX-512; the part lies inside the result, and nobody else touches it.
#[target_feature(enable = "avx512f")]
unsafe fn block(
    job: &Job,
    rows: Range<usize>,
    cols: Range<usize>,
    next: Option<Range<usize>>,
    scratch: &Scratch,
) {
    let panels = cols.len().div_ceil(COLS);
    let row_blocks = rows.len().div_ceil(ROWS);
    let depth_blocks = job.depth.div_ceil(DEPTH).max(1);
    let depth_block = |i: usize| (i * DEPTH).min(job.depth)..((i + 1) * DEPTH).min(job.depth);
    let mut ahead = Ahead::new();
    for d in 0..depth_blocks {
        let depth = depth_block(d);
        let mut b_next = match &next {
            _ if d + 1 < depth_blocks => job.b.lines(&depth_block(d + 1), &cols),
            Some(next) if *next != cols => job.b.lines(&depth_block(0), next),
            _ => Lines::none(),
        };
        let b_share = b_next.left().div_ceil(row_blocks * panels);
        for r in 0..row_blocks {
            let of = |r: usize| {
                let part = part(rows.len(), row_blocks, r);
                rows.start + part.start..rows.start + part.end
            };
            let here = of(r);
            // SAFETY: inside `a`; a block of it has at most ROWS rows and DEPTH steps.
            let by_depth = unsafe {
                pack::pack_a(scratch.a, job.a.at(here.start, depth.start), here.len(), depth.len())
            };
            let mut a_next = match r + 1 < row_blocks {
                true => job.a.lines(&of(r + 1), &depth),
                false => Lines::none(),
            };
            let a_share = a_next.left().div_ceil(panels);
            for p in 0..panels {
                let first = cols.start + p * COLS;
                let width = COLS.min(cols.end - first);
                ahead.clear();
                ahead.take(&mut a_next, a_share);
                ahead.take(&mut b_next, b_share);
                // SAFETY: a panel inside the scratch and inside `b`; the tile lies inside the result, and so does what it starts with.
                unsafe {
                    let panel = scratch.b.add(p * COLS * depth.len());
                    let b = job.b.at(depth.start, first);
                    // A whole panel whose rows lie side by side is packed by the first kernel that reads it.
                    let packs = r == 0 && width == COLS && b.col_stride == 1;
                    if r == 0 && !packs {
                        pack::pack_b(panel, b, depth.len(), width);
                    }
                    let c = job.dst.part(here.start, first..first + width).as_mut_ptr();
                    let start = match job.start {
                        _ if d > 0 => (c.cast_const(), job.dst_stride),
                        Start::Zero => (std::ptr::null(), 0),
                        Start::Row(row) => (row.as_ptr().add(first), 0),
                        Start::There => (c.cast_const(), job.dst_stride),
                    };
                    let tile = Tile {
                        depth: depth.len(),
                        a: scratch.a,
                        b: panel,
                        b_from: (b.data, b.row_stride),
                        c,
                        c_stride: job.dst_stride,
                        start,
                        scale: job.scale,
                        left: pack::first(width),
                        right: pack::first(width.saturating_sub(16)),
                        ahead: ahead.lines(),
                    };
                    tile::compute(here.len(), Form { by_depth, packs }, &tile);
                }
            }
            if let (Some(finish), true) = (job.finish, d + 1 == depth_blocks) {
                for row in here {
                    // SAFETY: this part of the row is this task's.
                    finish(row, cols.start, unsafe { job.dst.part(row, cols.clone()) });
                }
            }
        }
    }
}
