//! A picture's worth of a tensor: two axes, at most so many values.

use half::{bf16, f16};
use safetensors::Dtype;
use serde_json::{Value, json};

use super::CaptureFile;
use crate::error::Refusal;

/// The most values of a picture along an axis.
const MOST: usize = 512;
/// The largest part of a tensor that is read for one picture.
const LARGEST: usize = 128 << 20;

/// Two axes of a tensor, the others fixed by `index`; missing ones are 0. Where there are too many values, means over blocks.
pub(crate) fn picture(file: &mut CaptureFile, name: &str, index: &[usize]) -> Result<Value, Refusal> {
    let info = file.info(name).ok_or_else(|| Refusal::not_found("there is no such tensor in this file"))?;
    let (shape, dtype, begin) = (info.shape.clone(), info.dtype, info.data_offsets.0);
    let size = bytes_of(dtype)?;
    let (leading, rows, cols) = match shape.as_slice() {
        [] => (&[][..], 1, 1),
        [cols] => (&[][..], 1, *cols),
        [leading @ .., rows, cols] => (leading, *rows, *cols),
    };
    if index.len() > leading.len() {
        return Err(Refusal::bad_request(format!(
            "`index` fixes {} axes, and {} can be",
            index.len(),
            leading.len()
        )));
    }
    let mut fixed = index.to_vec();
    fixed.resize(leading.len(), 0);
    if let Some((axis, _)) = fixed.iter().zip(leading).enumerate().find(|(_, (at, size))| at >= size) {
        return Err(Refusal::bad_request(format!(
            "`index` is beyond axis {axis}, which has {}",
            leading[axis]
        )));
    }
    // The header was checked, so the sizes multiply to what is in the file.
    let at = fixed.iter().zip(leading).fold(0, |at, (i, size)| at * size + i);
    let count = rows.saturating_mul(cols);
    if count.saturating_mul(size) > LARGEST {
        return Err(Refusal::unreadable(format!("{rows} x {cols} values are too many to show")));
    }
    let bytes = file.read((begin + at * count * size) as u64, count * size);
    let bytes = bytes.map_err(|error| Refusal::unreadable(format!("the file cannot be read: {error}")))?;
    let value = |i: usize| number(dtype, &bytes[i * size..(i + 1) * size]);
    let (tall, wide) = (rows.div_ceil(MOST).max(1), cols.div_ceil(MOST).max(1));
    let (shown_rows, shown_cols) = (rows.div_ceil(tall), cols.div_ceil(wide));
    let mut z = vec![vec![Mean::default(); shown_cols]; shown_rows];
    let (mut all, mut min, mut max) = (Mean::default(), f64::INFINITY, f64::NEG_INFINITY);
    // One loop: a tensor of nothing may have very many empty rows.
    for (i, value) in (0..count).map(value).enumerate() {
        z[i / cols / tall][i % cols / wide].add(value);
        all.add(value);
        if value.is_finite() {
            (min, max) = (min.min(value), max.max(value));
        }
    }
    let z: Vec<Vec<f64>> = z.into_iter().map(|row| row.into_iter().map(Mean::get).collect()).collect();
    Ok(json!({
        "name": name,
        "shape": shape,
        "index": fixed,
        "rows": rows,
        "cols": cols,
        "z": z,
        "shown_rows": shown_rows,
        "shown_cols": shown_cols,
        "min": min,
        "max": max,
        "mean": all.get(),
    }))
}

/// Of finite values.
#[derive(Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.sum += value;
            self.count += 1;
        }
    }

    /// NaN where there were none.
    fn get(self) -> f64 {
        self.sum / self.count as f64
    }
}

fn bytes_of(dtype: Dtype) -> Result<usize, Refusal> {
    use Dtype::{BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    match dtype {
        BOOL | U8 | I8 => Ok(1),
        U16 | I16 | F16 | BF16 => Ok(2),
        U32 | I32 | F32 => Ok(4),
        U64 | I64 | F64 => Ok(8),
        other => Err(Refusal::unreadable(format!("tensors of type {other:?} cannot be shown"))),
    }
}

/// One value, whose bytes are as many as its type has.
fn number(dtype: Dtype, bytes: &[u8]) -> f64 {
    fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
        std::array::from_fn(|i| bytes[i])
    }
    match dtype {
        Dtype::F32 => f64::from(f32::from_le_bytes(array(bytes))),
        Dtype::F64 => f64::from_le_bytes(array(bytes)),
        Dtype::F16 => f64::from(f16::from_le_bytes(array(bytes))),
        Dtype::BF16 => f64::from(bf16::from_le_bytes(array(bytes))),
        Dtype::I8 => f64::from(i8::from_le_bytes(array(bytes))),
        Dtype::I16 => f64::from(i16::from_le_bytes(array(bytes))),
        Dtype::I32 => f64::from(i32::from_le_bytes(array(bytes))),
        Dtype::I64 => i64::from_le_bytes(array(bytes)) as f64,
        Dtype::U16 => f64::from(u16::from_le_bytes(array(bytes))),
        Dtype::U32 => f64::from(u32::from_le_bytes(array(bytes))),
        Dtype::U64 => u64::from_le_bytes(array(bytes)) as f64,
        _ => f64::from(bytes[0]),
    }
}
