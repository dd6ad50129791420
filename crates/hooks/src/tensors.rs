//! Reading tensors: what changed, what is not finite, and how to keep one without pinning more memory than it needs.

use candle_core::{CpuStorage, DType, Result, Storage, Tensor, WithDType};
use rayon::prelude::*;

/// Elements looked at by one parallel task.
const CHUNK: usize = 1 << 16;

/// How an edited tensor differs from the original.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Elements that are not bitwise the same.
    pub(crate) changed: u64,
    /// Elements that were finite and are not any more.
    pub(crate) broken: u64,
}

impl Difference {
    fn plus(self, other: Self) -> Self {
        Self { changed: self.changed + other.changed, broken: self.broken + other.broken }
    }
}

/// Compares two tensors of the same shape, dtype and device. Where scores are masked, minus infinity breaks nothing.
pub(crate) fn difference(before: &Tensor, after: &Tensor, masked: bool) -> Result<Difference> {
    if before.id() == after.id() {
        return Ok(Difference::default());
    }
    match before.dtype() {
        DType::F64 => differing(before, after, |a: f64, b: f64| {
            (
                a.to_bits() != b.to_bits(),
                a.is_finite() && !(b.is_finite() || masked && b == f64::NEG_INFINITY),
            )
        }),
        dtype if dtype.is_float() => {
            let (before, after) = (before.to_dtype(DType::F32)?, after.to_dtype(DType::F32)?);
            differing(&before, &after, |a: f32, b: f32| {
                (
                    a.to_bits() != b.to_bits(),
                    a.is_finite() && !(b.is_finite() || masked && b == f32::NEG_INFINITY),
                )
            })
        }
        _ => differing(&before.to_dtype(DType::I64)?, &after.to_dtype(DType::I64)?, |a: i64, b: i64| {
            (a != b, false)
        }),
    }
}

fn differing<T: WithDType>(
    before: &Tensor,
    after: &Tensor,
    differs: impl Fn(T, T) -> (bool, bool) + Sync,
) -> Result<Difference> {
    // One of the two is copied: they may share a storage, whose lock must not be taken twice.
    let after = after.flatten_all()?.to_vec1::<T>()?;
    with_values(before, |before| compare(before, &after, differs))
}

fn compare<T: Copy + Sync>(a: &[T], b: &[T], differs: impl Fn(T, T) -> (bool, bool) + Sync) -> Difference {
    let chunk = |(a, b): (&[T], &[T])| {
        a.iter().zip(b).fold(Difference::default(), |sum, (a, b)| {
            let (changed, broken) = differs(*a, *b);
            sum.plus(Difference { changed: changed.into(), broken: broken.into() })
        })
    };
    if a.len() <= CHUNK {
        return chunk((a, b));
    }
    a.par_chunks(CHUNK).zip(b.par_chunks(CHUNK)).map(chunk).reduce(Difference::default, Difference::plus)
}

/// Calls `f` with the elements in row-major order, without a copy where they lie like that in memory.
pub(crate) fn with_values<T: WithDType, R>(x: &Tensor, f: impl FnOnce(&[T]) -> R) -> Result<R> {
    let x = x.contiguous()?;
    let (storage, layout) = x.storage_and_layout();
    if let (Storage::Cpu(values), Some((start, end))) = (&*storage, layout.contiguous_offsets()) {
        return Ok(f(&values.as_slice::<T>()?[start..end]));
    }
    drop(storage);
    Ok(f(&x.flatten_all()?.to_vec1()?))
}

/// The tensor in a form that can be kept: detached, and in memory of its own size.
///
/// `owned` says that the storage belongs to this activation alone and will not be written to; then a whole tensor is kept without
/// a copy. Views are always copied, because a view pins the storage that it looks into.
pub(crate) fn keepable(x: &Tensor, owned: bool) -> Result<Tensor> {
    let x = x.detach();
    if owned && x.is_contiguous() && storage_len(&x) == Some(x.elem_count()) {
        return Ok(x);
    }
    x.force_contiguous()
}

fn storage_len(x: &Tensor) -> Option<usize> {
    let (storage, _) = x.storage_and_layout();
    match &*storage {
        Storage::Cpu(CpuStorage::F32(values)) => Some(values.len()),
        Storage::Cpu(CpuStorage::F64(values)) => Some(values.len()),
        Storage::Cpu(CpuStorage::F16(values)) => Some(values.len()),
        Storage::Cpu(CpuStorage::BF16(values)) => Some(values.len()),
        _ => None,
    }
}

/// The bytes of a tensor's elements.
pub(crate) fn byte_size(x: &Tensor) -> usize {
    x.elem_count() * x.dtype().size_in_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn a_view_is_kept_in_memory_of_its_own_size() -> Result<()> {
        let x = Tensor::zeros((4, 8, 16), DType::F32, &Device::Cpu)?;
        let one_position = x.narrow(1, 3, 1)?;
        assert_eq!(storage_len(&keepable(&one_position, true)?), Some(4 * 16));
        assert_eq!(storage_len(&keepable(&x.narrow(0, 0, 2)?, true)?), Some(2 * 8 * 16));
        assert_eq!(storage_len(&keepable(&x, true)?), Some(x.elem_count()));
        Ok(())
    }

    #[test]
    fn differences_are_counted() -> Result<()> {
        let x = Tensor::zeros(100_000, DType::F32, &Device::Cpu)?;
        let mut values: Vec<f32> = x.to_vec1()?;
        values[7] = 1.0;
        values[99_999] = f32::NAN;
        let y = Tensor::from_vec(values, 100_000, &Device::Cpu)?;
        assert_eq!(difference(&x, &y, false)?, Difference { changed: 2, broken: 1 });
        assert_eq!(difference(&y, &y.copy()?, false)?, Difference::default());
        Ok(())
    }
}
