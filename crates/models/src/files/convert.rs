//! Bytes of a file to tensors of the engine, and back.

use std::io::{self, Write};

use candle_core::{DType, Device, Result, Tensor};
use half::{bf16, f16};
use safetensors::Dtype;

use super::tensors::StoredTensor;

/// Whether tensors of this type can be weights.
pub(crate) fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64)
}

/// The type under which a tensor is stored.
pub fn stored_type(dtype: DType) -> Option<Dtype> {
    match dtype {
        DType::F16 => Some(Dtype::F16),
        DType::BF16 => Some(Dtype::BF16),
        DType::F32 => Some(Dtype::F32),
        DType::F64 => Some(Dtype::F64),
        DType::U8 => Some(Dtype::U8),
        DType::U32 => Some(Dtype::U32),
        DType::I64 => Some(Dtype::I64),
        _ => None,
    }
}

/// A stored tensor as `dtype` (f32 or f64) on a device.
pub(crate) fn to_tensor(stored: &StoredTensor<'_>, dtype: DType, device: &Device) -> Result<Tensor> {
    match dtype {
        DType::F64 => Tensor::from_vec(doubles(stored)?, stored.shape, device),
        DType::F32 => Tensor::from_vec(floats(stored)?, stored.shape, device),
        other => candle_core::bail!("weights are read as f32 or f64, not {other:?}"),
    }
}

// Files make no promise on alignment, so numbers are assembled from bytes; the compiler turns that into plain loads.
fn numbers<const N: usize, T>(bytes: &[u8], number: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|bytes| number(*bytes)).collect()
}

fn floats(stored: &StoredTensor<'_>) -> Result<Vec<f32>> {
    Ok(match stored.dtype {
        Dtype::F16 => numbers(stored.bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
        Dtype::BF16 => numbers(stored.bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        Dtype::F32 => numbers(stored.bytes, f32::from_le_bytes),
        Dtype::F64 => numbers(stored.bytes, |bytes| f64::from_le_bytes(bytes) as f32),
        other => candle_core::bail!("weights of type {other} are not supported"),
    })
}

fn doubles(stored: &StoredTensor<'_>) -> Result<Vec<f64>> {
    Ok(match stored.dtype {
        Dtype::F64 => numbers(stored.bytes, f64::from_le_bytes),
        _ => floats(stored)?.into_iter().map(f64::from).collect(),
    })
}

/// The tensor that these bytes of a file are. Half types become f32, which loses nothing; the others stay what they are.
pub fn decode(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Result<Tensor> {
    let (cpu, stored) = (&Device::Cpu, StoredTensor { dtype, shape, bytes });
    match dtype {
        Dtype::F16 | Dtype::BF16 | Dtype::F32 => Tensor::from_vec(floats(&stored)?, shape, cpu),
        Dtype::F64 => Tensor::from_vec(doubles(&stored)?, shape, cpu),
        Dtype::U8 => Tensor::from_vec(bytes.to_vec(), shape, cpu),
        Dtype::U32 => Tensor::from_vec(numbers(bytes, u32::from_le_bytes), shape, cpu),
        Dtype::I64 => Tensor::from_vec(numbers(bytes, i64::from_le_bytes), shape, cpu),
        other => candle_core::bail!("tensors of type {other} are not read"),
    }
}

/// Writes the numbers of a tensor in the order and byte order of the format.
pub(crate) fn write_tensor(tensor: &Tensor, writer: &mut dyn Write) -> io::Result<()> {
    let flat = tensor.flatten_all().map_err(io::Error::other)?;
    match flat.dtype() {
        DType::F16 => write_numbers(flat.to_vec1(), f16::to_le_bytes, writer),
        DType::BF16 => write_numbers(flat.to_vec1(), bf16::to_le_bytes, writer),
        DType::F32 => write_numbers(flat.to_vec1(), f32::to_le_bytes, writer),
        DType::F64 => write_numbers(flat.to_vec1(), f64::to_le_bytes, writer),
        DType::U8 => write_numbers(flat.to_vec1(), u8::to_le_bytes, writer),
        DType::U32 => write_numbers(flat.to_vec1(), u32::to_le_bytes, writer),
        DType::I64 => write_numbers(flat.to_vec1(), i64::to_le_bytes, writer),
        other => Err(io::Error::other(format!("tensors of type {other:?} cannot be written"))),
    }
}

fn write_numbers<const N: usize, T: Copy>(
    numbers: Result<Vec<T>>,
    bytes: impl Fn(T) -> [u8; N],
    writer: &mut dyn Write,
) -> io::Result<()> {
    numbers.map_err(io::Error::other)?.into_iter().try_for_each(|number| writer.write_all(&bytes(number)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_float_type_is_read_and_written() {
        let values = [0.0f32, -1.5, 0.25, 1024.0, -0.0078125, 3.0];
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let tensor =
                Tensor::new(&values, &Device::Cpu).unwrap().reshape((2, 3)).unwrap().to_dtype(dtype).unwrap();
            // A transposed view must come out in logical order.
            let mut bytes = vec![0; 1];
            write_tensor(&tensor.t().unwrap(), &mut bytes).unwrap();
            // One byte of offset: the data need not be aligned.
            let stored =
                StoredTensor { dtype: stored_type(dtype).unwrap(), shape: &[3, 2], bytes: &bytes[1..] };
            for wanted in [DType::F32, DType::F64] {
                let read = to_tensor(&stored, wanted, &Device::Cpu).unwrap();
                assert_eq!(read.dtype(), wanted);
                let read: Vec<Vec<f32>> = read.to_dtype(DType::F32).unwrap().t().unwrap().to_vec2().unwrap();
                assert_eq!(read.concat(), values);
            }
        }
    }
}
