//! A part of the result, through the caches.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

use super::ahead::Lines;
use super::pack::{self, Copies, Lies, a_block};
use super::tasks::part;
use super::tile::{DEPTH, Kernels, MOST_COLS, REQUESTS, Tile};
use super::vector::Vector;
use super::{B_BLOCK, FEW_ROWS, Job, Start, few_rows};

/// Room for packed blocks of `a`, and for those of `b` behind it.
pub(super) struct Scratch {
    a: *mut f32,
    b: *mut f32,
}

/// Calls `f` with this thread's room, which it keeps: fresh memory would cost more than the packing.
pub(super) fn with_scratch<V: Vector, R>(f: impl FnOnce(&Scratch) -> R) -> R {
    /// Bytes, and more floats than that takes.
    const LINE: usize = 64;
    thread_local!(static ROOM: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
    ROOM.with_borrow_mut(|room| {
        let a_room = FEW_ROWS.div_ceil(V::ROWS) * a_block::<V>();
        // Blocks that are not full, and a partial panel at the end of a block, are as long as full ones.
        room.resize(a_room + B_BLOCK + MOST_COLS * DEPTH + LINE, 0.0);
        let a = room.as_mut_ptr();
        // SAFETY: the room is longer than all blocks by more than a line.
        let (a, b) = unsafe {
            let a = a.add(a.align_offset(LINE));
            (a, a.add(a_room))
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
        // SAFETY: the caller's promise.
        unsafe {
            match few_rows(self.job.rows) {
                true => (0..self.depth_blocks()).for_each(|d| self.by_panels(d)),
                false => self.by_rows(),
            }
        }
    }

    /// One block of the depth, with all rows of `a` packed and one panel of `b` at a time.
    unsafe fn by_panels(&self, d: usize) {
        let (blocks, panels) = (self.blocks(), self.panels());
        // SAFETY: there is room for all rows; everything lies inside the part.
        unsafe {
            let a = |r: usize| self.scratch.a.add(r * a_block::<V>());
            for r in 0..blocks {
                self.pack_a(a(r), d, r);
            }
            for p in 0..panels {
                let mut next = match () {
                    _ if p + 1 < panels => self.job.b.lines(&self.depth(d), &self.panel(p + 1)),
                    _ if d + 1 < self.depth_blocks() => self.job.b.lines(&self.depth(d + 1), &self.panel(0)),
                    _ => Lines::none(),
                };
                let share = next.left().div_ceil(blocks);
                for r in 0..blocks {
                    let rows = self.block(r);
                    let mut tile = Tile { ahead: next.take(share), ..self.tile(d, a(r)) };
                    self.run(&mut tile, d, &rows, p, self.scratch.b);
                }
            }
            for r in 0..blocks {
                self.finish(d, r);
            }
        }
    }

    /// All columns of `b` packed, and a block of rows of `a` at a time: while it is used, the next one is packed, and the one after that asked for.
    unsafe fn by_rows(&self) {
        let (blocks, panels, depths) = (self.blocks(), self.panels(), self.depth_blocks());
        // All blocks of `a`, one after the other: over the first block of the depth, then over the next.
        let block = |i: usize| (i / blocks < depths).then_some((i / blocks, i % blocks));
        // SAFETY: there is room for two blocks of `a`; everything lies inside the part.
        unsafe {
            let room = |i: usize| self.scratch.a.add(i % 2 * a_block::<V>());
            self.pack_a(room(0), 0, 0);
            for d in 0..depths {
                let mut b_next = match &self.next {
                    _ if d + 1 < depths => self.job.b.lines(&self.depth(d + 1), &self.cols),
                    Some(next) if *next != self.cols => self.job.b.lines(&self.depth(0), next),
                    _ => Lines::none(),
                };
                let b_lines = b_next.left();
                for r in 0..blocks {
                    let (i, rows) = (d * blocks + r, self.block(r));
                    let mut a_next = match block(i + 2) {
                        None => Lines::none(),
                        Some((d, r)) => self.job.a.lines(&self.block(r), &self.depth(d)),
                    };
                    let next = block(i + 1);
                    let copies = next.and_then(|(d, r)| self.copies(room(i + 1), d, r));
                    // `a` is needed sooner: the first tiles ask for it, the others for `b`.
                    let for_b = panels.saturating_sub(a_next.left().div_ceil(REQUESTS)) * blocks;
                    let b_share = b_lines.div_ceil(for_b.max(1));
                    let mut tile = Tile { copies: copies.unwrap_or(Copies::none()), ..self.tile(d, room(i)) };
                    for p in 0..panels {
                        tile.ahead = match a_next.left() {
                            0 => b_next.take(b_share),
                            _ => a_next.take(REQUESTS),
                        };
                        let b = self.scratch.b.add(p * V::COLS * tile.depth);
                        self.run(&mut tile, d, &rows, p, b);
                    }
                    match next {
                        Some((d, r)) if copies.is_none() => self.pack_a(room(i + 1), d, r),
                        _ => tile.copies.rest::<V>(),
                    }
                    self.finish(d, r);
                }
            }
        }
    }

    /// Packs a block of rows.
    unsafe fn pack_a(&self, to: *mut f32, d: usize, r: usize) {
        let (rows, depth) = (self.block(r), self.depth(d));
        // SAFETY: the block lies inside `a`; the caller has room for it.
        unsafe { pack::pack_a::<V>(to, self.job.a.at(rows.start, depth.start), rows.len(), depth.len()) };
    }

    /// The same as copies to be made on the way, if it can be.
    unsafe fn copies(&self, to: *mut f32, d: usize, r: usize) -> Option<Copies> {
        let (rows, depth) = (self.block(r), self.depth(d));
        let below = self.job.rows - rows.end;
        // SAFETY: the block lies inside `a`.
        let from = unsafe { self.job.a.at(rows.start, depth.start) };
        Copies::of::<V>(to, from, rows.len(), below, depth.len())
    }

    /// What the tiles of a block of rows that is packed at `a` have in common.
    fn tile(&self, d: usize, a: *const f32) -> Tile<V> {
        let job = self.job;
        Tile {
            depth: self.depth(d).len(),
            a,
            a_lies: Lies::packed_from(job.a),
            b: std::ptr::null_mut(),
            from: (std::ptr::null(), 0),
            c: std::ptr::null_mut(),
            c_stride: job.dst_stride,
            start: (std::ptr::null(), 0),
            scale: job.scale,
            columns: [V::first(0); 2],
            cols: 0,
            ahead: Lines::none(),
            copies: Copies::none(),
            turned: job.turned,
        }
    }

    /// Computes the tile in panel `p`. The first block of rows packs the panel.
    unsafe fn run(&self, tile: &mut Tile<V>, d: usize, rows: &Range<usize>, p: usize, panel: *mut f32) {
        let (job, cols) = (self.job, self.panel(p));
        // SAFETY: the caller's promise: everything lies inside the part.
        unsafe {
            tile.b = panel;
            tile.from = (std::ptr::null(), 0);
            if rows.start == self.rows.start {
                let b = job.b.at(d * DEPTH, cols.start);
                // What lies by rows is packed on the way.
                match b.col_stride == 1 && cols.len() == V::COLS {
                    true => tile.from = (b.data, b.row_stride),
                    false => pack::pack_b::<V>(panel, b, tile.depth, cols.len()),
                }
            }
            tile.c = job.place(rows, &cols);
            tile.start = match job.start {
                Start::Zero if d == 0 => (std::ptr::null(), 0),
                Start::Row(row) if d == 0 => {
                    (row.as_ptr().add(if job.turned { rows.start } else { cols.start }), 0)
                }
                _ => (tile.c.cast_const(), job.dst_stride),
            };
            tile.columns = [V::first(cols.len()), V::first(cols.len().saturating_sub(V::LANES))];
            tile.cols = cols.len();
            V::compute(rows.len(), tile);
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
