//! Numbers of a tensor as the bytes of a file.

use candle_core::{CpuStorage, DType, Storage, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::error::StoreError;

/// The type a tensor has on the disk when floats are to be of type `floats`.
pub(super) fn type_on_disk(dtype: DType, floats: Option<DType>) -> DType {
    floats.filter(|_| dtype.is_float()).unwrap_or(dtype)
}

/// Writes chosen rows of a contiguous tensor on the CPU, `width` numbers each, into `out`, which they fill, as numbers of type `to`. Returns
/// how many finite numbers were too large for it.
pub(super) fn encode_rows(
    x: &Tensor,
    width: usize,
    rows: &[usize],
    to: DType,
    out: &mut [u8],
) -> Result<u64, StoreError> {
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(StoreError::BadInput("only tensors on the CPU are encoded".to_string()));
    };
    let (start, end) = layout.contiguous_offsets().unwrap_or((0, 0));
    let from = x.dtype();
    let unknown = || StoreError::BadInput(format!("{from:?} cannot be stored as {to:?}"));
    Ok(match storage {
        CpuStorage::F32(all) => match to {
            DType::F32 => plain(&all[start..end], width, rows, f32::to_le_bytes, out),
            DType::F16 => halves::<f16>(&all[start..end], width, rows, out),
            DType::BF16 => halves::<bf16>(&all[start..end], width, rows, out),
            _ => return Err(unknown()),
        },
        CpuStorage::F64(all) if to == from => plain(&all[start..end], width, rows, f64::to_le_bytes, out),
        CpuStorage::F16(all) if to == from => plain(&all[start..end], width, rows, f16::to_le_bytes, out),
        CpuStorage::BF16(all) if to == from => plain(&all[start..end], width, rows, bf16::to_le_bytes, out),
        CpuStorage::U8(all) => plain(&all[start..end], width, rows, u8::to_le_bytes, out),
        CpuStorage::U32(all) => plain(&all[start..end], width, rows, u32::to_le_bytes, out),
        CpuStorage::I64(all) => plain(&all[start..end], width, rows, i64::to_le_bytes, out),
        _ => return Err(unknown()),
    })
}

fn plain<const N: usize, T: Copy>(
    all: &[T],
    width: usize,
    rows: &[usize],
    bytes: impl Fn(T) -> [u8; N],
    out: &mut [u8],
) -> u64 {
    for (row, place) in rows.iter().zip(out.chunks_exact_mut((width * N).max(1))) {
        put(&all[row * width..(row + 1) * width], &bytes, place);
    }
    0
}

/// A loop over equally long pieces, which the compiler turns into a copy.
fn put<const N: usize, T: Copy>(numbers: &[T], bytes: impl Fn(T) -> [u8; N], out: &mut [u8]) {
    for (place, number) in out.as_chunks_mut::<N>().0.iter_mut().zip(numbers) {
        *place = bytes(*number);
    }
}

/// What both half types can do, for which their crate has no trait.
trait Half: Copy + Default {
    fn convert(from: &[f32], to: &mut [Self]);
    fn bytes(self) -> [u8; 2];
    fn is_infinite(self) -> bool;
}

macro_rules! half {
    ($half:ty) => {
        impl Half for $half {
            fn convert(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from);
            }
            fn bytes(self) -> [u8; 2] {
                self.to_le_bytes()
            }
            fn is_infinite(self) -> bool {
                <$half>::is_infinite(self)
            }
        }
    };
}

half!(f16);
half!(bf16);

fn halves<T: Half>(all: &[f32], width: usize, rows: &[usize], out: &mut [u8]) -> u64 {
    let (mut half, mut too_large) = (vec![T::default(); width], 0);
    for (row, place) in rows.iter().zip(out.chunks_exact_mut((2 * width).max(1))) {
        let row = &all[row * width..(row + 1) * width];
        T::convert(row, &mut half);
        put(&half, T::bytes, place);
        let lost = half.iter().zip(row).filter(|(half, number)| half.is_infinite() && number.is_finite());
        too_large += lost.count() as u64;
    }
    too_large
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn encoded(values: &[f32], to: DType) -> (Vec<u8>, u64) {
        let x = Tensor::new(values, &Device::Cpu).unwrap();
        let mut out = vec![0; values.len() * to.size_in_bytes()];
        let too_large = encode_rows(&x, 1, &(0..values.len()).collect::<Vec<_>>(), to, &mut out).unwrap();
        (out, too_large)
    }

    #[test]
    fn numbers_too_large_for_a_half_are_counted() {
        assert_eq!(encoded(&[1.0, 65504.0, -70000.0, f32::INFINITY], DType::F16).1, 1);
        assert_eq!(encoded(&[1.0, 65504.0, -70000.0, f32::NAN], DType::BF16).1, 0);
        assert_eq!(encoded(&[f32::MAX], DType::F32), (f32::MAX.to_le_bytes().to_vec(), 0));
    }

    #[test]
    fn chosen_rows_of_a_view_are_taken_in_order() {
        let x = Tensor::arange(0f32, 12., &Device::Cpu).unwrap().reshape((6, 2)).unwrap();
        let view = x.narrow(0, 2, 4).unwrap();
        let mut out = vec![0; 16];
        encode_rows(&view, 2, &[3, 0], DType::F32, &mut out).unwrap();
        let numbers: Vec<f32> = out.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        assert_eq!(numbers, [10., 11., 4., 5.]);
    }
}
