//! f32 products for CPUs with AVX-512.
//!
//! **The order of summation.** Every element of the result is added up over blocks of [`DEPTH`](tile::DEPTH) steps: within a block one
//! fused multiply-add after the other, from zero; the blocks' sums are scaled and added, in order, to what the result starts with.
//! Nothing else decides: not the number of rows and columns, not strides, not threads. So a token has the same bits alone
//! and in a batch, and zeros at the end of a sum change nothing.
//!
//! **The way through memory.** The result is cut into tasks of some rows and some columns. A task packs a block of `b` that stays in the second-level
//! cache, then takes `a` in blocks of 14 rows that stay in the first-level cache, and lets the [kernel](tile) run over all panels of
//! 32 columns. What comes next is [asked for](ahead) meanwhile. Where `b` lies by columns and `a` has few rows, the [turned](Job::turned) product is
//! computed, so that the large operand is read as it lies.

mod ahead;
mod pack;
mod thin;
mod tile;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::mat::Rows;
use super::{Finish, Mat, MatMut, Product, Start};
use crate::parallel;
use ahead::{Ahead, Lines};
use tile::{A_BLOCK, COLS, DEPTH, ROWS, Tile};

/// Floats of `b` that a task packs at a time: what leaves room for the rest in a second-level cache of 1 to 2 MiB.
const B_BLOCK: usize = 384 * DEPTH;

/// Blocks of rows up to which all of `a` is packed at once.
const FEW: usize = 20;

/// How many terms of a sum are added up at a time.
pub(super) const SUMS_OF: usize = DEPTH;

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
        let few = COLS * 3 / 4..=B_BLOCK / DEPTH;
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
        turned: false,
    };
    let threads = product.threads();
    if job.rows <= thin::ROWS {
        return thin::run(&job, threads);
    }
    let job = if job.is_better_turned() { job.turned() } else { job };
    let tasks = Tasks::new(&job, threads);
    let work = |mine: usize| {
        while let Some((task, next)) = tasks.take(mine) {
            let next = next.map(|next| tasks.cols(next));
            with_scratch(|scratch| {
                let part = Part { job: &job, rows: tasks.rows(task), cols: tasks.cols(task), next, scratch };
                // SAFETY: the CPU has AVX-512; the job's matrices are as it says; the tasks' parts of the result do not overlap.
                unsafe { part.compute() };
            });
        }
    };
    parallel::share(threads, &work);
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
        /// From this many rows for each thread on, all threads may pack the same columns of `b`.
        const ROWS_PER_THREAD: usize = 640;
        let panels = job.cols.div_ceil(COLS);
        let widest = match few_rows(job.rows) {
            true => job.cols.div_ceil(2 * threads).max(4 * COLS),
            false => (B_BLOCK / job.depth.clamp(1, DEPTH)).min(1024),
        };
        let row_parts = match job.turned {
            // All columns are packed for every part, and they are few.
            true => (job.rows / (8 * ROWS)).clamp(1, 4 * threads),
            false if job.rows / threads >= ROWS_PER_THREAD => threads,
            false => 1,
        };
        let mut col_parts = panels.div_ceil((widest / COLS).max(1));
        if row_parts == 1 {
            // As much for every thread.
            col_parts = col_parts.next_multiple_of(threads).min(panels);
        }
        let tasks = row_parts * col_parts;
        let queue = |t: usize| Mutex::new(t * tasks / threads..(t + 1) * tasks / threads);
        let queues = (0..threads).map(queue).collect();
        Self { rows: job.rows, row_parts, panels, col_parts, cols: job.cols, queues }
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
        part(self.rows, self.row_parts, task / self.col_parts)
    }

    fn cols(&self, task: usize) -> Range<usize> {
        let panels = part(self.panels, self.col_parts, task % self.col_parts);
        panels.start * COLS..(panels.end * COLS).min(self.cols)
    }
}

/// Part `i` when `len` things are shared out evenly.
fn part(len: usize, parts: usize, i: usize) -> Range<usize> {
    i * len / parts..(i + 1) * len / parts
}

/// Room for packed blocks of `a`, and for those of `b` behind it.
struct Scratch {
    a: *mut f32,
    b: *mut f32,
}

/// Calls `f` with this thread's room, which it keeps: fresh memory would cost more than the packing.
fn with_scratch<R>(f: impl FnOnce(&Scratch) -> R) -> R {
    const LINE: usize = 64;
    thread_local!(static ROOM: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
    ROOM.with_borrow_mut(|room| {
        // A partial panel at the end of a block is as long as a whole one.
        room.resize(FEW * A_BLOCK + B_BLOCK + COLS * DEPTH + LINE, 0.0);
        let a = room.as_mut_ptr();
        // SAFETY: the room is longer than all blocks by more than a line.
        let (a, b) = unsafe {
            let a = a.add(a.align_offset(LINE));
            (a, a.add(FEW * A_BLOCK))
        };
        f(&Scratch { a, b })
    })
}

/// Whether all rows are few enough to be packed at once.
fn few_rows(rows: usize) -> bool {
    rows <= FEW * ROWS
}

/// A part of the result, as one task computes it.
struct Part<'a> {
    job: &'a Job<'a>,
    rows: Range<usize>,
    cols: Range<usize>,
    /// The columns that this thread will do after it.
    next: Option<Range<usize>>,
    scratch: &'a Scratch,
}

impl Part<'_> {
    /// # Safety
    /// The CPU has AVX-512; the part lies inside the result, and nobody else touches it.
    #[target_feature(enable = "avx512f")]
    unsafe fn compute(&self) {
        for d in 0..self.job.depth.div_ceil(DEPTH).max(1) {
            // SAFETY: the caller's promise.
            unsafe {
                match few_rows(self.job.rows) {
                    true => self.by_panels(d),
                    false => self.by_rows(d),
                }
            }
        }
    }

    /// One block of the depth, with all rows of `a` packed and one panel of `b` at a time.
    #[target_feature(enable = "avx512f")]
    unsafe fn by_panels(&self, d: usize) {
        let (blocks, panels) = (self.blocks(), self.panels());
        // SAFETY: there is room for all rows; everything lies inside the part.
        unsafe {
            self.pack_a(0..blocks, d);
            let mut ahead = Ahead::new();
            for p in 0..panels {
                let mut next = match () {
                    _ if p + 1 < panels => self.job.b.lines(&self.depth(d), &self.panel(p + 1)),
                    _ if d + 1 < self.depth_blocks() => self.job.b.lines(&self.depth(d + 1), &self.panel(0)),
                    _ => Lines::none(),
                };
                let share = next.left().div_ceil(blocks);
                for r in 0..blocks {
                    ahead.clear();
                    ahead.take(&mut next, share);
                    let a = self.scratch.a.add(r * A_BLOCK);
                    self.tile(d, r, p, a, self.scratch.b, &ahead);
                }
            }
            for r in 0..blocks {
                self.finish(d, r);
            }
        }
    }

    /// One block of the depth, with all columns of `b` packed and some rows of `a` at a time.
    #[target_feature(enable = "avx512f")]
    unsafe fn by_rows(&self, d: usize) {
        /// Blocks of rows that are packed together where they share lines of the cache.
        const TOGETHER: usize = 4;
        let together = if self.job.a.col_stride == 1 { 1 } else { TOGETHER };
        let (blocks, panels) = (self.blocks(), self.panels());
        let mut b_next = match &self.next {
            _ if d + 1 < self.depth_blocks() => self.job.b.lines(&self.depth(d + 1), &self.cols),
            Some(next) if *next != self.cols => self.job.b.lines(&self.depth(0), next),
            _ => Lines::none(),
        };
        let b_share = b_next.left().div_ceil(blocks * panels);
        let mut ahead = Ahead::new();
        for first in (0..blocks).step_by(together) {
            let group = |first: usize| first..(first + together).min(blocks);
            let here = group(first);
            // SAFETY: there is room for a group; everything lies inside the part.
            unsafe {
                self.pack_a(here.clone(), d);
                let next = group(here.end);
                let mut a_next = match next.is_empty() {
                    true => Lines::none(),
                    false => self
                        .job
                        .a
                        .lines(&(self.block(next.start).start..self.block(next.end - 1).end), &self.depth(d)),
                };
                let a_share = a_next.left().div_ceil(panels * here.len());
                for r in here {
                    for p in 0..panels {
                        ahead.clear();
                        ahead.take(&mut a_next, a_share);
                        ahead.take(&mut b_next, b_share);
                        let a = self.scratch.a.add((r - first) * A_BLOCK);
                        let b = self.scratch.b.add(p * COLS * self.depth(d).len());
                        self.tile(d, r, p, a, b, &ahead);
                    }
                    self.finish(d, r);
                }
            }
        }
    }

    /// Packs these blocks of rows.
    #[target_feature(enable = "avx512f")]
    unsafe fn pack_a(&self, blocks: Range<usize>, d: usize) {
        let sizes = blocks.clone().map(|r| self.block(r).len());
        // SAFETY: the blocks lie inside `a`; the caller has room for them.
        unsafe {
            let from = self.job.a.at(self.block(blocks.start).start, self.depth(d).start);
            pack::pack_a(self.scratch.a, from, sizes, self.depth(d).len());
        }
    }

    /// Block `r` of the rows in panel `p`. The first one packs the panel.
    #[target_feature(enable = "avx512f")]
    unsafe fn tile(&self, d: usize, r: usize, p: usize, a: *const f32, panel: *mut f32, ahead: &Ahead) {
        let (job, rows, cols, depth) = (self.job, self.block(r), self.panel(p), self.depth(d));
        // SAFETY: the caller's promise: everything lies inside the part.
        unsafe {
            if r == 0 {
                pack::pack_b(panel, job.b.at(depth.start, cols.start), depth.len(), cols.len());
            }
            let c = job.place(&rows, &cols);
            let start = match job.start {
                Start::Zero if d == 0 => (std::ptr::null(), 0),
                Start::Row(row) if d == 0 => {
                    (row.as_ptr().add(if job.turned { rows.start } else { cols.start }), 0)
                }
                _ => (c.cast_const(), job.dst_stride),
            };
            let tile = Tile {
                depth: depth.len(),
                a,
                b: panel,
                c,
                c_stride: job.dst_stride,
                start,
                scale: job.scale,
                left: pack::first(cols.len()),
                right: pack::first(cols.len().saturating_sub(16)),
                ahead: ahead.lines(),
                turned: job.turned,
            };
            tile::compute(rows.len(), &tile);
        }
    }

    /// Tells who waits for complete rows.
    unsafe fn finish(&self, d: usize, r: usize) {
        if let (Some(finish), true) = (self.job.finish, d + 1 == self.depth_blocks()) {
            if self.job.turned {
                // What is a row to them is a column here, and complete with the last block.
                let whole = if r + 1 == self.blocks() { self.cols.clone() } else { 0..0 };
                for col in whole {
                    // SAFETY: this part of the row is this task's.
                    finish(col, self.rows.start, unsafe { self.job.dst.part(col, self.rows.clone()) });
                }
                return;
            }
            for row in self.block(r) {
                // SAFETY: this part of the row is this task's.
                finish(row, self.cols.start, unsafe { self.job.dst.part(row, self.cols.clone()) });
            }
        }
    }

    fn blocks(&self) -> usize {
        self.rows.len().div_ceil(ROWS)
    }

    /// The rows of a block; all blocks have about as many.
    fn block(&self, r: usize) -> Range<usize> {
        let part = part(self.rows.len(), self.blocks(), r);
        self.rows.start + part.start..self.rows.start + part.end
    }

    fn panels(&self) -> usize {
        self.cols.len().div_ceil(COLS)
    }

    fn panel(&self, p: usize) -> Range<usize> {
        let start = self.cols.start + p * COLS;
        start..(start + COLS).min(self.cols.end)
    }

    fn depth_blocks(&self) -> usize {
        self.job.depth.div_ceil(DEPTH).max(1)
    }

    fn depth(&self, d: usize) -> Range<usize> {
        (d * DEPTH).min(self.job.depth)..((d + 1) * DEPTH).min(self.job.depth)
    }
}
