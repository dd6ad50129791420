//! Vectors of the CPU's registers. The kernels are written once, for any of them.
//!
//! Everything here is inlined into functions that [`Vector::run`] compiles for the CPU that has the registers: called from anywhere else it
//! would be slow, and on another CPU wrong, which is why all of it is unsafe.

use std::arch::x86_64::*;

/// A vector of f32.
pub(super) trait Vector: Copy {
    /// How many there are in it.
    const LANES: usize;

    /// Rows of a tile. With two vectors in each they fill the registers, but for a few that hold operands.
    const ROWS: usize;

    /// Columns of a tile: two vectors.
    const COLS: usize = 2 * Self::LANES;

    /// As many vectors as one has lanes.
    type Square: AsRef<[Self]> + AsMut<[Self]>;

    /// Some of the first lanes.
    type Lanes: Copy;

    /// Whether this CPU has such vectors.
    fn available() -> bool;

    /// Compiles `f` for CPUs with such vectors. Pass an `#[inline(always)]` closure: what is not inlined is compiled without.
    ///
    /// # Safety
    /// The CPU has such vectors; so for everything below.
    unsafe fn run<R>(f: impl FnOnce() -> R) -> R;

    unsafe fn splat(value: f32) -> Self;

    unsafe fn load(from: *const f32) -> Self;

    unsafe fn store(self, to: *mut f32);

    /// The first `count` lanes, or all where there are fewer.
    fn first(count: usize) -> Self::Lanes;

    /// Zero in the other lanes, behind which nothing is read.
    unsafe fn load_some(lanes: Self::Lanes, from: *const f32) -> Self;

    unsafe fn store_some(self, lanes: Self::Lanes, to: *mut f32);

    unsafe fn mul(self, other: Self) -> Self;

    unsafe fn add(self, other: Self) -> Self;

    /// `self * other + sum`, rounded once.
    unsafe fn mul_add(self, other: Self, sum: Self) -> Self;

    unsafe fn zeros() -> Self::Square;

    /// Rows as columns.
    unsafe fn transposed(rows: Self::Square) -> Self::Square;
}

impl Vector for __m512 {
    const LANES: usize = 16;
    const ROWS: usize = 14;
    type Square = [Self; 16];
    type Lanes = __mmask16;

    fn available() -> bool {
        crate::ops::cpu::has_avx512()
    }

    #[inline(always)]
    unsafe fn run<R>(f: impl FnOnce() -> R) -> R {
        #[target_feature(enable = "avx512f")]
        fn compiled<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        // SAFETY: the caller's promise.
        unsafe { compiled(f) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller's promise; so for everything below.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self) }
    }

    #[inline(always)]
    fn first(count: usize) -> __mmask16 {
        if count >= 16 { !0 } else { (1 << count) - 1 }
    }

    #[inline(always)]
    unsafe fn load_some(lanes: __mmask16, from: *const f32) -> Self {
        unsafe { _mm512_maskz_loadu_ps(lanes, from) }
    }

    #[inline(always)]
    unsafe fn store_some(self, lanes: __mmask16, to: *mut f32) {
        unsafe { _mm512_mask_storeu_ps(to, lanes, self) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { _mm512_mul_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm512_add_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, other: Self, sum: Self) -> Self {
        unsafe { _mm512_fmadd_ps(self, other, sum) }
    }

    #[inline(always)]
    unsafe fn zeros() -> Self::Square {
        unsafe { [_mm512_setzero_ps(); 16] }
    }

    #[inline(always)]
    unsafe fn transposed(rows: Self::Square) -> Self::Square {
        // Neighbours are woven together: single elements, then pairs, then groups of 4, then of 8.
        let mut a = rows;
        unsafe {
            let mut b = [_mm512_setzero_ps(); 16];
            for i in (0..16).step_by(2) {
                b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
                b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
            }
            for i in (0..16).step_by(4) {
                let [p, q, r, s] = [b[i], b[i + 1], b[i + 2], b[i + 3]].map(|v| _mm512_castps_pd(v));
                a[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(p, r));
                a[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(p, r));
                a[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(q, s));
                a[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(q, s));
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
        }
        a
    }
}

impl Vector for __m256 {
    const LANES: usize = 8;
    const ROWS: usize = 6;
    type Square = [Self; 8];
    /// How many. These vectors have no masks that are fast everywhere.
    type Lanes = usize;

    fn available() -> bool {
        std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
    }

    #[inline(always)]
    unsafe fn run<R>(f: impl FnOnce() -> R) -> R {
        #[target_feature(enable = "avx2,fma")]
        fn compiled<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        // SAFETY: the caller's promise.
        unsafe { compiled(f) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller's promise; so for everything below.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm256_storeu_ps(to, self) }
    }

    #[inline(always)]
    fn first(count: usize) -> usize {
        count.min(8)
    }

    #[inline(always)]
    unsafe fn load_some(lanes: usize, from: *const f32) -> Self {
        unsafe {
            if lanes == 8 {
                return Self::load(from);
            }
            let mut all = [0.0f32; 8];
            from.copy_to_nonoverlapping(all.as_mut_ptr(), lanes);
            Self::load(all.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store_some(self, lanes: usize, to: *mut f32) {
        unsafe {
            if lanes == 8 {
                return self.store(to);
            }
            let mut all = [0.0f32; 8];
            self.store(all.as_mut_ptr());
            to.copy_from_nonoverlapping(all.as_ptr(), lanes);
        }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { _mm256_mul_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm256_add_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, other: Self, sum: Self) -> Self {
        unsafe { _mm256_fmadd_ps(self, other, sum) }
    }

    #[inline(always)]
    unsafe fn zeros() -> Self::Square {
        unsafe { [_mm256_setzero_ps(); 8] }
    }

    #[inline(always)]
    unsafe fn transposed(rows: Self::Square) -> Self::Square {
        // Neighbours are woven together: single elements, then pairs, then groups of 4.
        let mut a = rows;
        unsafe {
            let mut b = [_mm256_setzero_ps(); 8];
            for i in (0..8).step_by(2) {
                b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
                b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
            }
            for i in (0..8).step_by(4) {
                a[i] = _mm256_shuffle_ps::<0x44>(b[i], b[i + 2]);
                a[i + 1] = _mm256_shuffle_ps::<0xee>(b[i], b[i + 2]);
                a[i + 2] = _mm256_shuffle_ps::<0x44>(b[i + 1], b[i + 3]);
                a[i + 3] = _mm256_shuffle_ps::<0xee>(b[i + 1], b[i + 3]);
            }
            for i in 0..4 {
                b[i] = _mm256_permute2f128_ps::<0x20>(a[i], a[i + 4]);
                b[i + 4] = _mm256_permute2f128_ps::<0x31>(a[i], a[i + 4]);
            }
            b
        }
    }
}
