//! How a result is shared out among threads.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::tile::DEPTH;
use super::vector::Vector;
use super::{B_BLOCK, Job, few_rows};

/// The parts of a result, and who works on which.
pub(super) struct Tasks {
    rows: usize,
    row_parts: usize,
    /// Columns of a panel.
    panel: usize,
    panels: usize,
    col_parts: usize,
    cols: usize,
    /// What every thread has left. Each takes from the front of its own, so that it knows what comes next, and then from the back of others'.
    queues: Vec<Mutex<Range<usize>>>,
}

impl Tasks {
    pub(super) fn new<V: Vector>(job: &Job, threads: usize) -> Self {
        let panels = job.cols.div_ceil(V::COLS);
        let widest = match few_rows(job.rows) {
            true => job.cols.div_ceil(2 * threads).max(128),
            false => (B_BLOCK / job.depth.clamp(1, DEPTH)).min(1024),
        };
        let row_parts = match job.turned {
            // All columns are packed for every part, and they are few.
            true => (job.rows / 112).clamp(1, 4 * threads),
            false if has_rows_for(job, threads) => threads,
            false => 1,
        };
        let mut col_parts = panels.div_ceil((widest / V::COLS).max(1));
        if row_parts == 1 {
            // As much for every thread.
            col_parts = col_parts.next_multiple_of(threads).min(panels);
        }
        let tasks = row_parts * col_parts;
        let queue = |t: usize| Mutex::new(t * tasks / threads..(t + 1) * tasks / threads);
        let queues = (0..threads).map(queue).collect();
        Self { rows: job.rows, row_parts, panel: V::COLS, panels, col_parts, cols: job.cols, queues }
    }

    /// A task, and the one that comes after it if that is known.
    pub(super) fn take(&self, mine: usize) -> Option<(usize, Option<usize>)> {
        let queue = |t: usize| self.queues[t].lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut queue = queue(mine);
            if let Some(task) = queue.next() {
                return Some((task, queue.clone().next()));
            }
        }
        (0..self.queues.len()).find_map(|other| queue(other).next_back().map(|task| (task, None)))
    }

    pub(super) fn rows(&self, task: usize) -> Range<usize> {
        part(self.rows, self.row_parts, task / self.col_parts)
    }

    pub(super) fn cols(&self, task: usize) -> Range<usize> {
        let panels = part(self.panels, self.col_parts, task % self.col_parts);
        panels.start * self.panel..(panels.end * self.panel).min(self.cols)
    }
}

/// Whether threads share out rows, and all of them pack the same columns of `b`.
fn has_rows_for(job: &Job, threads: usize) -> bool {
    /// Rows for each thread that make up for it,
    const MANY_ROWS: usize = 640;
    /// and those that do where there are fewer columns for each than this: rows that are packed would not be used often enough otherwise.
    const ENOUGH_ROWS: usize = 64;
    const FEW_COLS: usize = 512;
    let (rows, cols) = (job.rows / threads, job.cols / threads);
    rows >= MANY_ROWS || !few_rows(job.rows) && rows >= ENOUGH_ROWS && cols < FEW_COLS
}

/// Part `i` when `len` things are shared out evenly.
pub(super) fn part(len: usize, parts: usize, i: usize) -> Range<usize> {
    i * len / parts..(i + 1) * len / parts
}
