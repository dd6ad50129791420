//! Copies of parts of the operands, in the order in which the kernel reads them.

use std::arch::x86_64::*;

use super::Operand;
use super::tile::{A_BLOCK, A_STRIDE, COLS};

/// The mask of the first `count` of 16 lanes.
pub(super) fn first(count: usize) -> __mmask16 {
    if count >= 16 { !0 } else { (1 << count) - 1 }
}

/// Packs blocks of rows of `a`, one behind the other, over `depth`. `blocks` are the numbers of rows of the blocks.
///
/// # Safety
/// The rows must lie inside `a`, and `to` have room for the blocks.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn pack_a(to: *mut f32, a: Operand, blocks: impl Iterator<Item = usize>, depth: usize) {
    let mut row = 0;
    for (block, rows) in blocks.enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let (to, a) = (to.add(block * A_BLOCK), a.at(row, 0));
            match a {
                Operand { col_stride: 1, .. } => {
                    copy_rows((to, A_STRIDE), (a.data, a.row_stride), rows, depth)
                }
                Operand { row_stride: 1, .. } => {
                    copy_transposed((to, A_STRIDE), (a.data, a.col_stride), depth, rows)
                }
                _ => copy_elements((to, A_STRIDE), a, rows, depth),
            }
        }
        row += rows;
    }
}

/// Packs `cols` columns of `b` over `depth`.
///
/// # Safety
/// The part must lie inside `b`, and `to` have room for it.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn pack_b(to: *mut f32, b: Operand, depth: usize, cols: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match b {
            Operand { col_stride: 1, .. } => copy_rows((to, COLS), (b.data, b.row_stride), depth, cols),
            Operand { row_stride: 1, .. } => copy_transposed((to, COLS), (b.data, b.col_stride), cols, depth),
            _ => copy_elements((to, COLS), b, depth, cols),
        }
    }
}

/// Copies rows, from a pointer and a stride to another.
#[target_feature(enable = "avx512f")]
unsafe fn copy_rows(to: (*mut f32, usize), from: (*const f32, usize), rows: usize, cols: usize) {
    let whole = cols / 16 * 16;
    let rest = first(cols - whole);
    for r in 0..rows {
        // SAFETY: the caller's promise; the mask keeps the last vector inside the row.
        unsafe {
            let (to, from) = (to.0.add(r * to.1), from.0.add(r * from.1));
            for c in (0..whole).step_by(16) {
                _mm512_storeu_ps(to.add(c), _mm512_loadu_ps(from.add(c)));
            }
            if rest != 0 {
                _mm512_mask_storeu_ps(to.add(whole), rest, _mm512_maskz_loadu_ps(rest, from.add(whole)));
            }
        }
    }
}

/// Copies `rows` rows of `cols` elements to columns.
#[target_feature(enable = "avx512f")]
unsafe fn copy_transposed(to: (*mut f32, usize), from: (*const f32, usize), rows: usize, cols: usize) {
    for r in (0..rows).step_by(16) {
        for c in (0..cols).step_by(16) {
            // SAFETY: the caller's promise; the masks keep the square inside the rows and columns.
            unsafe {
                let to_here = to.0.add(c * to.1 + r);
                let from_here = from.0.add(r * from.1 + c);
                let (height, width) = ((rows - r).min(16), (cols - c).min(16));
                let mut square = [_mm512_setzero_ps(); 16];
                if height == 16 && width == 16 {
                    for (i, row) in square.iter_mut().enumerate() {
                        *row = _mm512_loadu_ps(from_here.add(i * from.1));
                    }
                } else {
                    for (i, row) in square[..height].iter_mut().enumerate() {
                        *row = _mm512_maskz_loadu_ps(first(width), from_here.add(i * from.1));
                    }
                }
                let square = transposed(square);
                if height == 16 && width == 16 {
                    for (i, row) in square.into_iter().enumerate() {
                        _mm512_storeu_ps(to_here.add(i * to.1), row);
                    }
                } else {
                    for (i, row) in square[..width].iter().enumerate() {
                        _mm512_mask_storeu_ps(to_here.add(i * to.1), first(height), *row);
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

/// The transposed square of 16 rows.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn transposed(rows: [__m512; 16]) -> [__m512; 16] {
    // Neighbours are woven together: single elements, then pairs, then groups of 4, then of 8.
    let mut a = rows;
    let mut b = [_mm512_setzero_ps(); 16];
    for i in (0..16).step_by(2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for i in (0..16).step_by(4) {
        let pair = |i: usize| _mm512_castps_pd(b[i]);
        a[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pair(i), pair(i + 2)));
        a[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pair(i), pair(i + 2)));
        a[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pair(i + 1), pair(i + 3)));
        a[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pair(i + 1), pair(i + 3)));
    }
    for i in 0..4 {
        b[i] = _mm512_shuffle_f32x4::<0x88>(a[i], a[i + 4]);
        b[i + 4] = _mm512_shuffle_f32x4::<0xdd>(a[i], a[i + 4]);
        b[i + 8] = _mm512_shuffle_f32x4::<0x88>(a[i + 8], a[i + 12]);
        b[i + 12] = _mm512_shuffle_f32x4::<0xdd>(a[i + 8], a[i + 12]);
    }
    for i in 0..8 {
        a[i] = _mm512_shuffle_f32x4::<0x88>(b[i], b[i + 8]);
        a[i + 8] = _mm512_shuffle_f32x4::<0xdd>(b[i], b[i + 8]);
    }
    a
}
