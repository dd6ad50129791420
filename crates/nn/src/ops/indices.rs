//! Integer inputs: token ids and targets.

use candle_core::{DType, Result, Tensor};

/// The elements of a u32 or i64 tensor in row-major order.
pub(crate) fn read(what: &str, indices: &Tensor) -> Result<Vec<i64>> {
    let flat = indices.flatten_all()?;
    match indices.dtype() {
        DType::U32 => Ok(flat.to_vec1::<u32>()?.into_iter().map(i64::from).collect()),
        DType::I64 => flat.to_vec1::<i64>(),
        other => candle_core::bail!("{what} must be u32 or i64, not {other:?}"),
    }
}

/// The indices as positions in `0..size`; an index outside is an error that names it.
pub(crate) fn checked(what: &str, indices: &[i64], size: usize) -> Result<Vec<usize>> {
    indices.iter().enumerate().map(|(at, &index)| check(what, index, at, size)).collect()
}

/// `index`, found at the flat position `at`, as a position in `0..size`.
pub(crate) fn check(what: &str, index: i64, at: usize, size: usize) -> Result<usize> {
    match usize::try_from(index) {
        Ok(index) if index < size => Ok(index),
        _ => candle_core::bail!("{what} {index} at index {at} is outside the vocabulary of {size}"),
    }
}
