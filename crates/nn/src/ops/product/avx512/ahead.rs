//! What will be read soon, line by line of the cache. Weights come from the memory once per product, and where a batch has few tokens
//! that takes about as long as the arithmetic: so it is asked for while the arithmetic goes on.

/// Floats in a line of the cache.
const LINE: usize = 16;

/// Requests that go with one call of the kernel: one for every four steps.
const ROOM: usize = 256;

/// The lines of a strided part of a matrix.
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
}

/// The requests of one call.
pub(super) struct Ahead {
    lines: [*const f32; ROOM],
    count: usize,
}

impl Ahead {
    pub(super) fn new() -> Self {
        Self { lines: [std::ptr::null(); ROOM], count: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    pub(super) fn lines(&self) -> &[*const f32] {
        &self.lines[..self.count]
    }

    /// Takes up to `count` lines.
    pub(super) fn take(&mut self, from: &mut Lines, count: usize) {
        let count = count.min(from.left).min(ROOM - self.count);
        for slot in &mut self.lines[self.count..][..count] {
            *slot = from.row.wrapping_add(from.line * LINE);
            from.line += 1;
            if from.line == from.lines_in_row {
                from.line = 0;
                from.row = from.row.wrapping_add(from.stride);
            }
        }
        self.count += count;
        from.left -= count;
    }
}
