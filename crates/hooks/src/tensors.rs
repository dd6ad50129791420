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
    match copied_in_parallel(&x)? {
        Some(copy) => Ok(copy),
        None => x.force_contiguous(),
    }
}

/// A copy made on all threads, where it is worth it: of a large view whose elements lie in stretches, such as the queries among queries,
/// keys and values.
fn copied_in_parallel(x: &Tensor) -> Result<Option<Tensor>> {
    const SHORTEST: usize = 64;
    // Less is done before another thread has been woken up.
    const FEWEST: usize = 1 << 18;
    if x.dtype() != DType::F32 || x.elem_count() < FEWEST {
        return Ok(None);
    }
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cpu(CpuStorage::F32(values)) = &*storage else { return Ok(None) };
    // The last axes that lie in a row.
    let (mut stretch, mut outer) = (1, layout.dims().len());
    while outer > 0 && layout.stride()[outer - 1] == stretch {
        outer -= 1;
        stretch *= layout.dims()[outer];
    }
    if stretch < SHORTEST || outer == 0 {
        return Ok(None); // all in one is as quick as memory is
    }
    let (dims, strides) = (&layout.dims()[..outer], &layout.stride()[..outer]);
    let start_of = |mut number: usize| {
        let mut start = layout.start_offset();
        for (dim, stride) in dims.iter().zip(strides).rev() {
            start += number % dim * stride;
            number /= dim;
        }
        start
    };
    let mut copy: Vec<f32> = Vec::with_capacity(x.elem_count());
    let room = &mut copy.spare_capacity_mut()[..x.elem_count()];
    let at_a_time = (CHUNK / stretch).max(1);
    room.par_chunks_mut(stretch * at_a_time).enumerate().for_each(|(chunk, to)| {
        for (i, to) in to.chunks_mut(stretch).enumerate() {
            to.write_copy_of_slice(&values[start_of(chunk * at_a_time + i)..][..to.len()]);
        }
    });
    // SAFETY: every element was written: the chunks are all of the room, and their stretches all of a chunk.
    unsafe { copy.set_len(x.elem_count()) };
    Ok(Some(Tensor::from_vec(copy, layout.shape(), x.device())?))
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
    fn large_views_are_copied_as_they_are() -> Result<()> {
        let x = Tensor::arange(0f32, 300_000.0, &Device::Cpu)?.reshape((10, 100, 3, 100))?;
        let views = [
            x.clone(),
            x.narrow(2, 1, 1)?.squeeze(2)?, // stretches of 100
            x.narrow(1, 7, 80)?,
            x.transpose(0, 1)?,
            x.transpose(2, 3)?, // no stretches at all
            x.narrow(0, 3, 1)?, // too small to be worth it
        ];
        for view in views {
            let (copy, expected) = (keepable(&view, false)?, view.force_contiguous()?);
            assert_eq!(storage_len(&copy), Some(view.elem_count()));
            assert_eq!(copy.dims(), view.dims());
            assert_eq!(copy.flatten_all()?.to_vec1::<f32>()?, expected.flatten_all()?.to_vec1::<f32>()?);
        }
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
