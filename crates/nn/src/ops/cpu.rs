//! What every CPU kernel needs: slices of tensors, dispatch on the number type, and the choice between
//! the fused kernel and the composed fallback.

use candle_core::{CpuStorage, DType, Error, Layout, Result, Shape, Storage, Tensor};
use std::cell::Cell;
#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

use super::real::Real;
pub(crate) use crate::parallel::{for_chunks, map_chunks};

/// Elements handled by one parallel task. Fixed, so that results do not depend on the thread count.
pub(crate) const CHUNK: usize = 1 << 14;

thread_local!(static COMPOSED_ONLY: Cell<bool> = const { Cell::new(false) });

/// Runs `f` with the fused CPU kernels switched off on this thread: every op takes the path of composed
/// candle ops that other devices take. For tests that compare the two.
pub fn composed_only<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            COMPOSED_ONLY.with(|flag| flag.set(self.0));
        }
    }
    let _restore = Restore(COMPOSED_ONLY.with(|flag| flag.replace(true)));
    f()
}

/// Whether a fused kernel can take this tensor: on the CPU, f32 or f64.
pub(crate) fn fused(x: &Tensor) -> bool {
    x.device().is_cpu() && matches!(x.dtype(), DType::F32 | DType::F64) && !COMPOSED_ONLY.with(Cell::get)
}

/// The elements of a contiguous storage.
pub(crate) fn slice<'a, T: Real>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let (start, end) =
        layout.contiguous_offsets().ok_or_else(|| Error::msg("a fused op needs a contiguous input"))?;
    Ok(&storage.as_slice::<T>()?[start..end])
}

/// Calls `f` with the elements of a CPU tensor in row-major order (copied first where it is a strided view).
pub(crate) fn with_slice<T: Real, R>(t: &Tensor, f: impl FnOnce(&[T]) -> Result<R>) -> Result<R> {
    let t = t.contiguous()?;
    let (storage, layout) = t.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => f(slice::<T>(storage, layout)?),
        _ => Err(Error::msg("a fused op needs a tensor on the CPU")),
    }
}

/// A CPU tensor that owns `values`.
pub(crate) fn tensor<T: Real>(values: Vec<T>, shape: impl Into<Shape>) -> Result<Tensor> {
    Tensor::from_vec(values, shape.into(), &candle_core::Device::Cpu)
}

/// Runs `$body` with `$T` bound to f32 or f64 by the tensor's dtype.
macro_rules! dispatch {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $T = f32;
                $body
            }
            candle_core::DType::F64 => {
                type $T = f64;
                $body
            }
            other => Err(candle_core::Error::msg(format!("this op runs on f32 and f64, not on {other:?}"))),
        }
    };
}
pub(crate) use dispatch;

/// A vector whose elements will all be written before they are read: skips the zero-fill pass.
///
/// # Safety
/// Every element must be written before it is read. `T` is a plain number, so that no drop runs.
#[allow(clippy::uninit_vec)]
pub(crate) unsafe fn uninit<T: Real>(len: usize) -> Vec<T> {
    let mut values = Vec::with_capacity(len);
    // SAFETY: the capacity is there; the caller writes before reading.
    unsafe { values.set_len(len) };
    values
}

/// How many rows of `cols` elements one parallel task handles.
pub(crate) fn chunk_rows(cols: usize) -> usize {
    (CHUNK / cols.max(1)).max(1)
}

/// The sum of every column, for rows of `cols` elements: fixed chunks of rows in parallel, added up in order.
pub(crate) fn add_column_sums<T: Real>(sums: &mut [T], values: &[T], cols: usize) {
    let partial = |_, rows: &[T]| {
        let mut sums = vec![T::zero(); cols];
        wide(
            #[inline(always)]
            || {
                for row in rows.chunks_exact(cols) {
                    add_to(&mut sums, row);
                }
            },
        );
        sums
    };
    let parts = map_chunks(values, chunk_rows(cols) * cols.max(1), partial);
    parts.iter().for_each(|part| add_to(sums, part));
}

/// `to += from`, element by element.
#[inline(always)]
pub(crate) fn add_to<T: Real>(to: &mut [T], from: &[T]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += *from;
    }
}

/// Runs `f` compiled for the widest vectors of the CPU. No fused multiply-add is allowed, so that the bits are the same
/// everywhere. Pass an `#[inline(always)]` closure: what is not inlined is compiled without.
///
/// ```
/// let values = vec![1.5f32; 1000];
/// let sum = tenterhook_nn::ops::wide(
///     #[inline(always)]
///     || values.iter().fold(0.0, |sum, x| sum + x),
/// );
/// assert_eq!(sum, 1500.0);
/// ```
#[inline(always)]
pub fn wide<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn with_avx512<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        if has_avx512() {
            // SAFETY: the CPU has AVX-512.
            return unsafe { with_avx512(f) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has AVX2.
            return unsafe { with_avx2(f) };
        }
    }
    f()
}

/// Whether `TENTERHOOK_VECTORS` allows vectors of 512 bits: `256` leaves them aside, to measure here what other CPUs do; `512` is as if it were
/// not set, and so is everything else, but for the error here. The bits of results are the same.
pub fn vectors_of_512_allowed() -> std::result::Result<bool, String> {
    match std::env::var_os("TENTERHOOK_VECTORS") {
        None => Ok(true),
        Some(bits) if bits == "512" => Ok(true),
        Some(bits) if bits == "256" => Ok(false),
        Some(other) => Err(format!("TENTERHOOK_VECTORS is {other:?}; it can be 256 or 512 (bits)")),
    }
}

/// Whether to use AVX-512: where the CPU has the parts of it that all servers with it have, and nobody says otherwise.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn has_avx512() -> bool {
    static HAS: LazyLock<bool> = LazyLock::new(|| {
        std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512dq")
            && std::arch::is_x86_feature_detected!("avx512vl")
            && vectors_of_512_allowed().unwrap_or(true)
    });
    *HAS
}
