//! Copies of parts of the operands, in the order in which the kernel reads them.

use super::Operand;
use super::tile::{A_STRIDE, DEPTH};
use super::vector::Vector;

/// How a packed block of rows of `a` lies: as it did before where it can, so that packing is copying. With one step of depth both ways can be the
/// same before, and are not in a block: everybody asks [`packed_from`](Self::packed_from).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lies {
    /// Element `(r, p)` at `r * A_STRIDE + p`.
    ByRows,
    /// Element `(r, p)` at `p * depth_stride + r`.
    ByDepth,
}

/// Floats between the steps of the depth in a block that lies by them.
pub(super) const fn depth_stride<V: Vector>() -> usize {
    V::ROWS.next_multiple_of(V::LANES)
}

/// Floats of a packed block of `a`, however it lies.
pub(super) const fn a_block<V: Vector>() -> usize {
    let (by_rows, by_depth) = (V::ROWS * A_STRIDE, depth_stride::<V>() * DEPTH);
    if by_rows > by_depth { by_rows } else { by_depth }
}

impl Lies {
    pub(super) fn packed_from(a: Operand) -> Self {
        if a.row_stride == 1 && a.col_stride != 1 { Self::ByDepth } else { Self::ByRows }
    }
}

/// Packs `rows` rows of `a` over `depth`.
///
/// # Safety
/// The CPU has the vectors; the rows must lie inside `a`, and `to` have room for a block.
pub(super) unsafe fn pack_a<V: Vector>(to: *mut f32, a: Operand, rows: usize, depth: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match Lies::packed_from(a) {
            Lies::ByDepth => V::run(
                #[inline(always)]
                || copy_rows::<V>((to, depth_stride::<V>()), (a.data, a.col_stride), depth, rows),
            ),
            Lies::ByRows if a.col_stride == 1 => V::run(
                #[inline(always)]
                || copy_rows::<V>((to, A_STRIDE), (a.data, a.row_stride), rows, depth),
            ),
            Lies::ByRows => copy_elements((to, A_STRIDE), a, rows, depth),
        }
    }
}

/// What is still to be copied of a block of `a`, a vector at a time: while the kernel is busy with another block.
#[derive(Clone, Copy)]
pub(super) struct Copies {
    from: *const f32,
    from_stride: usize,
    to: *mut f32,
    to_stride: usize,
    vector: usize,
    vectors_in_row: usize,
    left: usize,
}

impl Copies {
    pub(super) fn none() -> Self {
        let (from, to) = (std::ptr::null(), std::ptr::null_mut());
        Self { from, from_stride: 0, to, to_stride: 0, vector: 0, vectors_in_row: 1, left: 0 }
    }

    /// Those that pack `rows` rows of `a`, behind which there are `below` more, over `depth`. `None` where they are not all of whole vectors.
    pub(super) fn of<V: Vector>(
        to: *mut f32,
        a: Operand,
        rows: usize,
        below: usize,
        depth: usize,
    ) -> Option<Self> {
        match Lies::packed_from(a) {
            Lies::ByRows if a.col_stride == 1 && depth.is_multiple_of(V::LANES) => Some(Self {
                from: a.data,
                from_stride: a.row_stride,
                to,
                to_stride: A_STRIDE,
                vector: 0,
                vectors_in_row: depth / V::LANES,
                left: rows * (depth / V::LANES),
            }),
            // Some of the rows below are copied as well.
            Lies::ByDepth if rows + below >= depth_stride::<V>() => Some(Self {
                from: a.data,
                from_stride: a.col_stride,
                to,
                to_stride: depth_stride::<V>(),
                vector: 0,
                vectors_in_row: depth_stride::<V>() / V::LANES,
                left: depth * (depth_stride::<V>() / V::LANES),
            }),
            _ => None,
        }
    }

    /// Makes the next one, if there is one.
    ///
    /// # Safety
    /// The CPU has the vectors; the rows are inside `a`, and there is room for a block.
    #[inline(always)]
    pub(super) unsafe fn next<V: Vector>(&mut self) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        // SAFETY: the caller's promise.
        unsafe { V::load(self.from.add(self.vector * V::LANES)).store(self.to.add(self.vector * V::LANES)) };
        self.vector += 1;
        if self.vector == self.vectors_in_row {
            self.vector = 0;
            self.from = self.from.wrapping_add(self.from_stride);
            self.to = self.to.wrapping_add(self.to_stride);
        }
    }

    /// Makes all that are left.
    ///
    /// # Safety
    /// As for [`next`](Self::next).
    pub(super) unsafe fn rest<V: Vector>(&mut self) {
        // SAFETY: the caller's promise.
        unsafe {
            V::run(
                #[inline(always)]
                || {
                    while self.left > 0 {
                        self.next::<V>();
                    }
                },
            );
        }
    }
}

/// Packs `cols` columns of `b` over `depth`.
///
/// # Safety
/// The CPU has the vectors; the part must lie inside `b`, and `to` have room for it.
pub(super) unsafe fn pack_b<V: Vector>(to: *mut f32, b: Operand, depth: usize, cols: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match b {
            Operand { col_stride: 1, .. } => V::run(
                #[inline(always)]
                || copy_rows::<V>((to, V::COLS), (b.data, b.row_stride), depth, cols),
            ),
            Operand { row_stride: 1, .. } => V::run(
                #[inline(always)]
                || copy_transposed::<V>((to, V::COLS), (b.data, b.col_stride), cols, depth),
            ),
            _ => copy_elements((to, V::COLS), b, depth, cols),
        }
    }
}

/// Copies rows, from a pointer and a stride to another.
#[inline(always)]
unsafe fn copy_rows<V: Vector>(to: (*mut f32, usize), from: (*const f32, usize), rows: usize, cols: usize) {
    let whole = cols / V::LANES * V::LANES;
    let rest = V::first(cols - whole);
    for r in 0..rows {
        // SAFETY: the caller's promise; the last vector of a row ends with it.
        unsafe {
            let (to, from) = (to.0.add(r * to.1), from.0.add(r * from.1));
            for c in (0..whole).step_by(V::LANES) {
                V::load(from.add(c)).store(to.add(c));
            }
            if whole < cols {
                V::load_some(rest, from.add(whole)).store_some(rest, to.add(whole));
            }
        }
    }
}

/// Copies `rows` rows of `cols` elements to columns.
#[inline(always)]
unsafe fn copy_transposed<V: Vector>(
    to: (*mut f32, usize),
    from: (*const f32, usize),
    rows: usize,
    cols: usize,
) {
    for r in (0..rows).step_by(V::LANES) {
        for c in (0..cols).step_by(V::LANES) {
            let (height, width) = ((rows - r).min(V::LANES), (cols - c).min(V::LANES));
            // SAFETY: the caller's promise; the square ends where the rows and columns do.
            unsafe {
                let to_here = to.0.add(c * to.1 + r);
                let from_here = from.0.add(r * from.1 + c);
                let mut square = V::zeros();
                if height == V::LANES && width == V::LANES {
                    for (i, row) in square.as_mut().iter_mut().enumerate() {
                        *row = V::load(from_here.add(i * from.1));
                    }
                    for (i, row) in V::transposed(square).as_ref().iter().enumerate() {
                        row.store(to_here.add(i * to.1));
                    }
                } else {
                    for (i, row) in square.as_mut()[..height].iter_mut().enumerate() {
                        *row = V::load_some(V::first(width), from_here.add(i * from.1));
                    }
                    for (i, row) in V::transposed(square).as_ref()[..width].iter().enumerate() {
                        row.store_some(V::first(height), to_here.add(i * to.1));
                    }
                }
            }
        }
    }
}

/// Copies element by element: for matrices in which nothing lies side by side.
unsafe fn copy_elements(to: (*mut f32, usize), from: Operand, rows: usize, cols: usize) {
    for r in 0..rows {
        for c in 0..cols {
            // SAFETY: the caller's promise.
            unsafe { *to.0.add(r * to.1 + c) = *from.at(r, c).data };
        }
    }
}
