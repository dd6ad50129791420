//! What will be read soon, line by line of the cache. Weights come from the memory once per product, and where a batch has few tokens
//! that takes about as long as the arithmetic: so it is asked for while the arithmetic goes on.

/// Floats in a line of the cache.
pub(super) const LINE: usize = 16;

/// The lines of a strided part of a matrix that are still to be asked for.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    row: *const f32,
    stride: usize,
    line: usize,
    lines_in_row: usize,
    left: usize,
}

impl Lines {
    pub(super) fn none() -> Self {
        Self { row: std::ptr::null(), stride: 0, line: 0, lines_in_row: 1, left: 0 }
    }

    /// The lines of `rows` times `cols` floats that lie side by side. The pointers are never read through here.
    pub(super) fn of(data: *const f32, stride: usize, rows: usize, cols: usize) -> Self {
        let into_line = data.addr() / size_of::<f32>() % LINE;
        let lines_in_row = (into_line + cols).div_ceil(LINE);
        let left = if cols == 0 { 0 } else { rows * lines_in_row };
        Self { row: data.wrapping_sub(into_line), stride, line: 0, lines_in_row, left }
    }

    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// The first `count` of them, which are no longer among these. It goes over them once more, which the kernel does meanwhile.
    pub(super) fn take(&mut self, count: usize) -> Self {
        let count = count.min(self.left);
        let taken = Self { left: count, ..*self };
        let line = self.line + count;
        self.row = self.row.wrapping_add(line / self.lines_in_row * self.stride);
        self.line = line % self.lines_in_row;
        self.left -= count;
        taken
    }

    /// The next one.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<*const f32> {
        self.left = self.left.checked_sub(1)?;
        let line = self.row.wrapping_add(self.line * LINE);
        self.line += 1;
        if self.line == self.lines_in_row {
            self.line = 0;
            self.row = self.row.wrapping_add(self.stride);
        }
        Some(line)
    }
}
