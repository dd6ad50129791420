//! A part of the result, through the caches.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

use super::ahead::Lines;
use super::tasks::part;
use super::tile::{A_STRIDE, DEPTH, Kernels, MOST_COLS, MOST_ROWS, REQUESTS, Tile, a_block};
use super::{B_BLOCK, FEW_ROWS, Job, Start, few_rows, pack};

/// Room for packed blocks of `a`, and for those of `b` behind it.
pub(super) struct Scratch {
    a: *mut f32,
    b: *mut f32,
}

/// Calls `f` with this thread's room, which it keeps: fresh memory would cost more than the packing.
pub(super) fn with_scratch<R>(f: impl FnOnce(&Scratch) -> R) -> R {
    /// Bytes, and more floats than that takes.
    const LINE: usize = 64;
    const A_ROOM: usize = (FEW_ROWS + MOST_ROWS) * A_STRIDE;
    thread_local!(static ROOM: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
    ROOM.with_borrow_mut(|room| {
        // Blocks that are not full, and a partial panel at the end of a block, are as long as full ones.
        room.resize(A_ROOM + B_BLOCK + MOST_COLS * DEPTH + LINE, 0.0);
        let a = room.as_mut_ptr();
        // SAFETY: the room is longer than all blocks by more than a line.
        let (a, b) = unsafe {
            let a = a.add(a.align_offset(LINE));
            (a, a.add(A_ROOM))
        };
        f(&Scratch { a, b })
    })
}

/// A part of the result, as one task computes it.
pub(super) struct Part<'a, V> {
    job: &'a Job<'a>,
    rows: Range<usize>,
    cols: Range<usize>,
    /// The columns that this thread will do after it.
    next: Option<Range<usize>>,
    scratch: &'a Scratch,
    vector: PhantomData<V>,
}

impl<'a, V: Kernels> Part<'a, V> {
    /// These rows and columns. `next` are the columns that come after it on this thread.
    pub(super) fn new(
        job: &'a Job<'a>,
        rows: Range<usize>,
        cols: Range<usize>,
        next: Option<Range<usize>>,
        scratch: &'a Scratch,
    ) -> Self {
        Self { job, rows, cols, next, scratch, vector: PhantomData }
    }

    /// # Safety
    /// The CPU has the vectors; the part lies inside the result, and nobody else touches it.
    pub(super) unsafe fn compute(&self) {
        for d in 0..self.depth_blocks() {
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
    unsafe fn by_panels(&self, d: usize) {
        let (blocks, panels) = (self.blocks(), self.panels());
        // SAFETY: there is room for all rows; everything lies inside the part.
        unsafe {
            self.pack_a(0..blocks, d);
            for p in 0..panels {
                let mut next = match () {
                    _ if p + 1 < panels => self.job.b.lines(&self.depth(d), &self.panel(p + 1)),
                    _ if d + 1 < self.depth_blocks() => self.job.b.lines(&self.depth(d + 1), &self.panel(0)),
                    _ => Lines::none(),
                };
                let share = next.left().div_ceil(blocks);
                for r in 0..blocks {
                    let a = self.scratch.a.add(r * a_block::<V>());
                    self.tile(d, r, p, a, self.scratch.b, next.take(share));
                }
            }
            for r in 0..blocks {
                self.finish(d, r);
            }
        }
    }

    /// One block of the depth, with all columns of `b` packed and some rows of `a` at a time.
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
        let b_lines = b_next.left();
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
                // `a` is needed sooner: the first tiles ask for it, the others for `b`.
                let tiles = here.len() * panels;
                let for_b =
                    tiles.saturating_sub(a_next.left().div_ceil(REQUESTS)) * blocks.div_ceil(together);
                let b_share = b_lines.div_ceil(for_b.max(1));
                for r in here {
                    for p in 0..panels {
                        let ahead = match a_next.left() {
                            0 => b_next.take(b_share),
                            _ => a_next.take(REQUESTS),
                        };
                        let a = self.scratch.a.add((r - first) * a_block::<V>());
                        let b = self.scratch.b.add(p * V::COLS * self.depth(d).len());
                        self.tile(d, r, p, a, b, ahead);
                    }
                    self.finish(d, r);
                }
            }
        }
    }

    /// Packs these blocks of rows.
    unsafe fn pack_a(&self, blocks: Range<usize>, d: usize) {
        let sizes = blocks.clone().map(|r| self.block(r).len());
        // SAFETY: the blocks lie inside `a`; the caller has room for them.
        unsafe {
            let from = self.job.a.at(self.block(blocks.start).start, self.depth(d).start);
            pack::pack_a::<V>(self.scratch.a, from, sizes, self.depth(d).len());
        }
    }

    /// Block `r` of the rows in panel `p`. The first one packs the panel.
    unsafe fn tile(&self, d: usize, r: usize, p: usize, a: *const f32, panel: *mut f32, ahead: Lines) {
        let (job, rows, cols, depth) = (self.job, self.block(r), self.panel(p), self.depth(d));
        // SAFETY: the caller's promise: everything lies inside the part.
        unsafe {
            let mut from = (std::ptr::null(), 0);
            if r == 0 {
                let b = job.b.at(depth.start, cols.start);
                // What lies by rows is packed on the way.
                match b.col_stride == 1 && cols.len() == V::COLS {
                    true => from = (b.data, b.row_stride),
                    false => pack::pack_b::<V>(panel, b, depth.len(), cols.len()),
                }
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
                from,
                c,
                c_stride: job.dst_stride,
                start,
                scale: job.scale,
                columns: [V::first(cols.len()), V::first(cols.len().saturating_sub(V::LANES))],
                cols: cols.len(),
                ahead,
                turned: job.turned,
            };
            V::compute(rows.len(), &tile);
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
        self.rows.len().div_ceil(V::ROWS)
    }

    /// The rows of a block; all blocks have about as many.
    fn block(&self, r: usize) -> Range<usize> {
        let part = part(self.rows.len(), self.blocks(), r);
        self.rows.start + part.start..self.rows.start + part.end
    }

    fn panels(&self) -> usize {
        self.cols.len().div_ceil(V::COLS)
    }

    fn panel(&self, p: usize) -> Range<usize> {
        let start = self.cols.start + p * V::COLS;
        start..(start + V::COLS).min(self.cols.end)
    }

    fn depth_blocks(&self) -> usize {
        self.job.depth.div_ceil(DEPTH).max(1)
    }

    fn depth(&self, d: usize) -> Range<usize> {
        (d * DEPTH).min(self.job.depth)..((d + 1) * DEPTH).min(self.job.depth)
    }
}
