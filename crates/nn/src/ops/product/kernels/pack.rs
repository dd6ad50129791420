//! Copies of parts of the operands, in the order in which the kernel reads them.

use super::Operand;
use super::tile::{A_STRIDE, a_block};
use super::vector::Vector;

/// Packs blocks of rows of `a`, one behind the other, over `depth`. `blocks` are the numbers of rows of the blocks.
///
/// # Safety
/// The CPU has the vectors; the rows must lie inside `a`, and `to` have room for the blocks.
pub(super) unsafe fn pack_a<V: Vector>(
    to: *mut f32,
    a: Operand,
    blocks: impl Iterator<Item = usize>,
    depth: usize,
) {
    let mut row = 0;
    for (block, rows) in blocks.enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let (to, a) = (to.add(block * a_block::<V>()), a.at(row, 0));
            match a {
                Operand { col_stride: 1, .. } => V::run(
                    #[inline(always)]
                    || copy_rows::<V>((to, A_STRIDE), (a.data, a.row_stride), rows, depth),
                ),
                Operand { row_stride: 1, .. } => V::run(
                    #[inline(always)]
                    || copy_transposed::<V>((to, A_STRIDE), (a.data, a.col_stride), depth, rows),
                ),
                _ => copy_elements((to, A_STRIDE), a, rows, depth),
            }
        }
        row += rows;
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
