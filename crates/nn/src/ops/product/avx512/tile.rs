//! The inner kernel: a tile of the result, up to 14 rows by 32 columns, kept in registers while one block of the depth goes by.

use std::arch::x86_64::*;

use super::pack::{first, transposed};

/// Rows of a tile. With two vectors in each, 28 of the 32 registers hold sums.
pub(super) const ROWS: usize = 14;

/// Columns of a tile: two vectors.
pub(super) const COLS: usize = 32;

/// How much of the depth is added up in one go. Part of what the bits of a product depend on: see the module's comment.
pub(super) const DEPTH: usize = 384;

/// Floats between the rows of a packed block of `a`; such that the rows do not compete for the same lines of the cache.
pub(super) const A_STRIDE: usize = DEPTH + 16;

/// Floats of a packed block of `a`.
pub(super) const A_BLOCK: usize = ROWS * A_STRIDE;

/// What a call of the kernel works on. All pointers are to memory of the sizes that the fields say.
pub(super) struct Tile<'a> {
    pub(super) depth: usize,
    /// The packed block of `a`: element `(r, p)` at `r * A_STRIDE + p`.
    pub(super) a: *const f32,
    /// The packed panel of `b`: element `(p, c)` at `p * COLS + c`.
    pub(super) b: *const f32,
    pub(super) c: *mut f32,
    pub(super) c_stride: usize,
    /// What the sums are added to, with the floats between its rows; null for nothing.
    pub(super) start: (*const f32, usize),
    pub(super) scale: f32,
    /// Which columns there are, in the left vector and in the right one.
    pub(super) left: __mmask16,
    pub(super) right: __mmask16,
    /// What will be needed soon.
    pub(super) ahead: &'a [*const f32],
    /// Whether the rows of the tile are columns of the result: `c` and `start` then have strides between columns of the tile.
    pub(super) turned: bool,
}

/// Computes a tile of `rows` rows.
///
/// # Safety
/// The CPU has AVX-512, and `tile` says the truth.
pub(super) unsafe fn compute(rows: usize, tile: &Tile) {
    macro_rules! for_rows {
        ($($rows:literal)*) => {
            match rows {
                // SAFETY: the caller's promise.
                $($rows => unsafe { kernel::<$rows>(tile) },)*
                _ => unreachable!("tiles have 1 to {ROWS} rows"),
            }
        };
    }
    for_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14)
}

#[target_feature(enable = "avx512f")]
unsafe fn kernel<const R: usize>(t: &Tile) {
    let mut sums = [[_mm512_setzero_ps(); 2]; R];
    macro_rules! step {
        ($p:expr) => {{
            let p = $p;
            // SAFETY: `p` is below the depth, for which the caller has brought the operands.
            unsafe {
                let b = t.b.add(p * COLS);
                let (left, right) = (_mm512_loadu_ps(b), _mm512_loadu_ps(b.add(16)));
                for r in 0..R {
                    let a = _mm512_set1_ps(*t.a.add(r * A_STRIDE + p));
                    sums[r][0] = _mm512_fmadd_ps(a, left, sums[r][0]);
                    sums[r][1] = _mm512_fmadd_ps(a, right, sums[r][1]);
                }
            }
        }};
    }
    let whole = t.depth / 4 * 4;
    let (mut ahead, mut row) = (t.ahead.iter(), 0);
    let rows_of_c = if t.turned { COLS } else { R };
    for p in (0..whole).step_by(4) {
        // A few requests at a time: more at once would wait for each other.
        if row < rows_of_c {
            let c = t.c.wrapping_add(row * t.c_stride).cast_const();
            _mm_prefetch::<_MM_HINT_T0>(c.cast());
            _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(16).cast());
            row += 1;
        }
        if let Some(line) = ahead.next() {
            _mm_prefetch::<_MM_HINT_T1>(line.cast());
        }
        step!(p);
        step!(p + 1);
        step!(p + 2);
        step!(p + 3);
    }
    for p in whole..t.depth {
        step!(p);
    }
    if t.turned {
        // Through memory, or the loop above would keep its sums there too.
        let mut rows = [[0.0f32; COLS]; ROWS];
        for (row, [left, right]) in rows.iter_mut().zip(sums) {
            // SAFETY: a row is two vectors long.
            unsafe {
                _mm512_storeu_ps(row.as_mut_ptr(), left);
                _mm512_storeu_ps(row.as_mut_ptr().add(16), right);
            }
        }
        // SAFETY: the caller's promise.
        return unsafe { store_turned(t, &rows[..R]) };
    }
    let scale = _mm512_set1_ps(t.scale);
    for (r, [left, right]) in sums.into_iter().enumerate() {
        let (mut left, mut right) = (_mm512_mul_ps(left, scale), _mm512_mul_ps(right, scale));
        // SAFETY: the masks keep the tile inside the result.
        unsafe {
            if !t.start.0.is_null() {
                let start = t.start.0.add(r * t.start.1);
                left = _mm512_add_ps(left, _mm512_maskz_loadu_ps(t.left, start));
                right = _mm512_add_ps(right, _mm512_maskz_loadu_ps(t.right, start.wrapping_add(16)));
            }
            let c = t.c.add(r * t.c_stride);
            _mm512_mask_storeu_ps(c, t.left, left);
            _mm512_mask_storeu_ps(c.wrapping_add(16), t.right, right);
        }
    }
}

/// Turns the rows of sums, 16 columns at a time, and stores them.
#[target_feature(enable = "avx512f")]
#[inline(never)]
unsafe fn store_turned(t: &Tile, rows: &[[f32; COLS]]) {
    let (scale, lanes) = (_mm512_set1_ps(t.scale), first(rows.len()));
    for (half, columns) in [t.left, t.right].into_iter().enumerate() {
        let mut square = [_mm512_setzero_ps(); 16];
        for (square, row) in square.iter_mut().zip(rows) {
            // SAFETY: a row is two vectors long.
            *square = unsafe { _mm512_loadu_ps(row.as_ptr().add(half * 16)) };
        }
        let columns = columns.count_ones() as usize;
        for (c, sums) in transposed(square).into_iter().take(columns).enumerate() {
            let mut sums = _mm512_mul_ps(sums, scale);
            // SAFETY: the mask keeps the column inside the result.
            unsafe {
                let c = half * 16 + c;
                if !t.start.0.is_null() {
                    sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(lanes, t.start.0.add(c * t.start.1)));
                }
                _mm512_mask_storeu_ps(t.c.add(c * t.c_stride), lanes, sums);
            }
        }
    }
}
