//! The inner kernel: a tile of the result, up to [`Vector::ROWS`] rows by two vectors of columns, kept in registers while one block of the
//! depth goes by.

use std::arch::x86_64::{__m256, __m512, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

use super::ahead::{LINE, Lines};
use super::pack::{Copies, Lies, depth_stride};
use super::vector::Vector;

/// How much of the depth is added up in one go. Part of what the bits of a product depend on: see the module's comment.
pub(super) const DEPTH: usize = 384;

/// Floats between the rows of a packed block of `a`; such that the rows do not compete for the same lines of the cache.
pub(super) const A_STRIDE: usize = DEPTH + 16;

/// Steps of the depth between two requests for what will be needed soon.
const STEPS: usize = 4;

/// How many of these requests one call of the kernel makes.
pub(super) const REQUESTS: usize = DEPTH / STEPS;

/// Rows of `b` that are asked for in advance while a panel is packed.
const ROWS_AHEAD: usize = 16;

/// No kernel has larger tiles.
pub(super) const MOST_ROWS: usize = 14;
pub(super) const MOST_COLS: usize = 32;

/// What a call of the kernel works on. All pointers are to memory of the sizes that the fields say.
pub(super) struct Tile<V: Vector> {
    pub(super) depth: usize,
    /// The packed block of `a`.
    pub(super) a: *const f32,
    pub(super) a_lies: Lies,
    /// The packed panel of `b`: element `(p, c)` at `p * COLS + c`.
    pub(super) b: *mut f32,
    /// Where that is to be packed from on the way, all columns of it, with the floats between the rows; null where it is packed.
    pub(super) from: (*const f32, usize),
    pub(super) c: *mut f32,
    pub(super) c_stride: usize,
    /// What the sums are added to, with the floats between its rows; null for nothing.
    pub(super) start: (*const f32, usize),
    pub(super) scale: f32,
    /// Which columns there are, in the left vector and in the right one.
    pub(super) columns: [V::Lanes; 2],
    pub(super) cols: usize,
    /// What will be needed soon. It is asked for.
    pub(super) ahead: Lines,
    /// What will be needed next. It is packed, as far as the kernel comes.
    pub(super) copies: Copies,
    /// Whether the rows of the tile are columns of the result: `c` and `start` then have strides between columns of the tile.
    pub(super) turned: bool,
}

/// Vectors that there are kernels for.
pub(super) trait Kernels: Vector {
    /// Computes a tile of `rows` rows.
    ///
    /// # Safety
    /// The CPU has the vectors, and `tile` says the truth.
    unsafe fn compute(rows: usize, tile: &mut Tile<Self>);
}

macro_rules! kernels {
    ($vector:ty: $($rows:literal)*) => {
        impl Kernels for $vector {
            unsafe fn compute(rows: usize, tile: &mut Tile<Self>) {
                // SAFETY: the caller's promise.
                unsafe {
                    match (rows, tile.a_lies, tile.from.0.is_null()) {
                        $(
                            ($rows, Lies::ByRows, true) => run::<Self, $rows, false, false>(tile),
                            ($rows, Lies::ByRows, false) => run::<Self, $rows, false, true>(tile),
                            ($rows, Lies::ByDepth, true) => run::<Self, $rows, true, false>(tile),
                            ($rows, Lies::ByDepth, false) => run::<Self, $rows, true, true>(tile),
                        )*
                        _ => unreachable!("tiles have 1 to {} rows", Self::ROWS),
                    }
                }
            }
        }
    };
}

kernels!(__m512: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
kernels!(__m256: 1 2 3 4 5 6);

unsafe fn run<V: Vector, const R: usize, const BY_DEPTH: bool, const PACKS: bool>(tile: &mut Tile<V>) {
    // SAFETY: the caller's promise.
    unsafe {
        V::run(
            #[inline(always)]
            || kernel::<V, R, BY_DEPTH, PACKS>(tile),
        )
    }
}

/// A tile of `R` rows. Whether `a` lies [by its depth](Lies::ByDepth), and whether `b` is packed on the way, is part of the code: there are no registers left.
#[inline(always)]
unsafe fn kernel<V: Vector, const R: usize, const BY_DEPTH: bool, const PACKS: bool>(t: &mut Tile<V>) {
    // SAFETY: `p` is below the depth, for which the caller has brought the operands.
    unsafe {
        let mut sums = [[V::splat(0.0); 2]; R];
        macro_rules! step {
            ($p:expr) => {{
                let p = $p;
                let packed = t.b.add(p * V::COLS);
                let b = if PACKS { t.from.0.add(p * t.from.1) } else { packed.cast_const() };
                let (left, right) = (V::load(b), V::load(b.add(V::LANES)));
                if PACKS {
                    ask_for_row::<V>(b.wrapping_add(ROWS_AHEAD * t.from.1));
                    left.store(packed);
                    right.store(packed.add(V::LANES));
                }
                for r in 0..R {
                    let at = if BY_DEPTH { p * depth_stride::<V>() + r } else { r * A_STRIDE + p };
                    let a = V::splat(*t.a.add(at));
                    sums[r][0] = a.mul_add(left, sums[r][0]);
                    sums[r][1] = a.mul_add(right, sums[r][1]);
                }
            }};
        }
        let whole = t.depth / STEPS * STEPS;
        let (mut ahead, mut copies, mut row) = (t.ahead, t.copies, 0);
        let rows_of_c = if t.turned { V::COLS } else { R };
        for p in (0..whole).step_by(STEPS) {
            // A few requests at a time: more at once would wait for each other.
            if row < rows_of_c {
                ask_for_row::<V>(t.c.wrapping_add(row * t.c_stride));
                row += 1;
            }
            if let Some(line) = ahead.next() {
                _mm_prefetch::<_MM_HINT_T1>(line.cast());
            }
            copies.next::<V>();
            step!(p);
            step!(p + 1);
            step!(p + 2);
            step!(p + 3);
        }
        for p in whole..t.depth {
            step!(p);
        }
        t.copies = copies;
        if t.turned {
            // Through memory, or the loop above would keep its sums there too.
            let mut rows = [[0.0f32; MOST_COLS]; MOST_ROWS];
            for (row, [left, right]) in rows.iter_mut().zip(sums) {
                left.store(row.as_mut_ptr());
                right.store(row.as_mut_ptr().add(V::LANES));
            }
            return store_turned_apart(t, &rows[..R]);
        }
        let scale = V::splat(t.scale);
        for (r, halves) in sums.into_iter().enumerate() {
            for (half, sums) in halves.into_iter().enumerate() {
                let (at, lanes) = (half * V::LANES, t.columns[half]);
                let mut sums = sums.mul(scale);
                if !t.start.0.is_null() {
                    sums = sums.add(V::load_some(lanes, t.start.0.wrapping_add(r * t.start.1 + at)));
                }
                sums.store_some(lanes, t.c.wrapping_add(r * t.c_stride + at));
            }
        }
    }
}

/// Asks for a row of a tile.
#[inline(always)]
fn ask_for_row<V: Vector>(row: *const f32) {
    for at in (0..V::COLS).step_by(LINE) {
        // SAFETY: a request for what is not there does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(at).cast()) };
    }
}

/// Turns the rows of sums, a vector of columns at a time, and stores them.
#[inline(always)]
unsafe fn store_turned<V: Vector>(t: &Tile<V>, rows: &[[f32; MOST_COLS]]) {
    let lanes = V::first(rows.len());
    // SAFETY: a row is two vectors long; the lanes keep the columns inside the result.
    unsafe {
        let scale = V::splat(t.scale);
        for first in (0..t.cols).step_by(V::LANES) {
            let mut square = V::zeros();
            for (square, row) in square.as_mut().iter_mut().zip(rows) {
                *square = V::load(row.as_ptr().add(first));
            }
            for (c, sums) in (first..t.cols).zip(V::transposed(square).as_ref()) {
                let mut sums = sums.mul(scale);
                if !t.start.0.is_null() {
                    sums = sums.add(V::load_some(lanes, t.start.0.add(c * t.start.1)));
                }
                sums.store_some(lanes, t.c.add(c * t.c_stride));
            }
        }
    }
}

/// [`store_turned`] as a function of its own: inlined, its vectors would take the registers of the sums.
#[inline(never)]
unsafe fn store_turned_apart<V: Vector>(t: &Tile<V>, rows: &[[f32; MOST_COLS]]) {
    // SAFETY: the caller's promise.
    unsafe {
        V::run(
            #[inline(always)]
            || store_turned(t, rows),
        )
    }
}
