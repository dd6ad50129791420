//! Single tensors of a safetensors file, or rows of them, with nothing else in memory.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use candle_core::Tensor;
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;

use super::convert::decode;
use super::header::{Header, header_at_start, header_end};
use super::read::open_regular;
use crate::error::{ModelError, shown};

/// An open safetensors file. Its header is checked when it is opened; tensors are read when they are asked for.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// use tenterhook_models::files::{TensorReader, save_tensors};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("rows.safetensors");
/// save_tensors(&path, &[("x".into(), Tensor::arange(0f32, 12., &Device::Cpu)?.reshape((6, 2))?)])?;
///
/// let file = TensorReader::open(&path)?;
/// assert_eq!(file.read_rows("x", 4..6)?.to_vec2::<f32>()?, [[8., 9.], [10., 11.]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TensorReader {
    path: PathBuf,
    file: Mutex<File>,
    header: Header,
}

impl TensorReader {
    /// Opens a file and checks its header: every tensor lies inside the file.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let (file, length) = open_regular(path)?;
        let io = || ModelError::io("read", path);
        let mut start = Vec::new();
        (&file).take(8).read_to_end(&mut start).map_err(io())?;
        if let Ok(first) = start.as_slice().try_into() {
            // Never more than the file has, whatever its header claims.
            (&file).take(header_end(first) - 8).read_to_end(&mut start).map_err(io())?;
        }
        let bytes = usize::try_from(length).map_err(|_| ModelError::damaged(path, "is too large"))?;
        let header = header_at_start(&start, bytes).map_err(|problem| ModelError::damaged(path, problem))?;
        Ok(Self { path: path.to_path_buf(), file: Mutex::new(file), header })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header.tensors.keys().map(String::as_str)
    }

    /// Type and shape of a tensor.
    pub fn info(&self, name: &str) -> Option<(Dtype, &[usize])> {
        self.header.tensors.get(name).map(|info| (info.dtype, info.shape.as_slice()))
    }

    /// A whole tensor; half types become f32.
    pub fn read(&self, name: &str) -> Result<Tensor, ModelError> {
        let info = self.tensor(name)?;
        let (start, end) = info.data_offsets;
        Ok(decode(info.dtype, &info.shape, &self.bytes_at(start, end - start)?)?)
    }

    /// Some rows of a tensor: a range of its first axis; half types become f32.
    pub fn read_rows(&self, name: &str, rows: Range<usize>) -> Result<Tensor, ModelError> {
        let mut shape = self.tensor(name)?.shape.clone();
        let (dtype, bytes) = self.row_bytes(name, rows.clone())?;
        shape[0] = rows.len();
        Ok(decode(dtype, &shape, &bytes)?)
    }

    /// The bytes of some rows, as they are in the file.
    pub fn row_bytes(&self, name: &str, rows: Range<usize>) -> Result<(Dtype, Vec<u8>), ModelError> {
        let info = self.tensor(name)?;
        let count = info.shape.first().copied().unwrap_or(0);
        if rows.start > rows.end || rows.end > count {
            return Err(ModelError::damaged(
                &self.path,
                format!("tensor {} has {count} rows, rows {rows:?} were asked for", shown(name)),
            ));
        }
        let (start, end) = info.data_offsets;
        let row = (end - start).checked_div(count).unwrap_or(0);
        Ok((info.dtype, self.bytes_at(start + rows.start * row, rows.len() * row)?))
    }

    fn tensor(&self, name: &str) -> Result<&TensorInfo, ModelError> {
        let found = self.header.tensors.get(name);
        found.ok_or_else(|| ModelError::damaged(&self.path, format!("has no tensor {}", shown(name))))
    }

    /// Bytes whose place the header's check has found inside the file.
    fn bytes_at(&self, start: usize, count: usize) -> Result<Vec<u8>, ModelError> {
        let mut bytes = vec![0; count];
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let place = SeekFrom::Start((self.header.data_start + start) as u64);
        let read = file.seek(place).and_then(|_| file.read_exact(&mut bytes));
        read.map_err(ModelError::io("read", &self.path))?;
        Ok(bytes)
    }
}
