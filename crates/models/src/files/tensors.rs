//! The tensors of a model directory, wherever among its files they are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use memmap2::Mmap;
use safetensors::Dtype;
use serde::Deserialize;

use super::convert::{is_float, to_tensor};
use super::header::{Header, read_header};
use super::read::{open_regular, read_json};
use crate::error::{ModelError, Problems, shown};

const LARGEST_INDEX: u64 = 32 << 20;
const MOST_SHARDS: usize = 10_000;

/// One tensor as it lies in a file.
#[derive(Debug)]
pub(crate) struct StoredTensor<'f> {
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'f [usize],
    pub(crate) bytes: &'f [u8],
}

/// All weight files of a model, mapped and checked.
#[derive(Debug, Default)]
pub(crate) struct TensorFiles {
    files: Vec<TensorFile>,
    /// Which file holds which tensor.
    holders: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct TensorFile {
    bytes: Mmap,
    header: Header,
}

impl TensorFile {
    fn open(path: &Path) -> Result<Self, ModelError> {
        let (file, length) = open_regular(path)?;
        if length == 0 {
            return Err(ModelError::damaged(path, "is empty"));
        }
        // SAFETY: the mapping is only ever read as plain bytes, for which any content is valid. Like every
        // mapped file it must not be cut short by others meanwhile; saving replaces files, it never shortens them.
        let bytes = unsafe { Mmap::map(&file) }.map_err(ModelError::io("map", path))?;
        let header = read_header(&bytes).map_err(|problem| ModelError::damaged(path, problem))?;
        Ok(Self { bytes, header })
    }

    fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        let info = self.header.tensors.get(name)?;
        let (start, end) = info.data_offsets;
        let data = self.bytes.get(self.header.data_start..)?;
        Some(StoredTensor { dtype: info.dtype, shape: &info.shape, bytes: data.get(start..end)? })
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl TensorFiles {
    /// A model in one file.
    pub(crate) fn single(path: &Path) -> Result<Self, ModelError> {
        let mut all = Self::default();
        let file = TensorFile::open(path)?;
        all.holders.extend(file.header.tensors.keys().map(|name| (name.clone(), 0)));
        all.files.push(file);
        Ok(all)
    }

    /// A model in several files and an index that says which tensor is where.
    pub(crate) fn sharded(index_path: &Path) -> Result<Self, ModelError> {
        let Index { weight_map } = read_json(index_path, LARGEST_INDEX)?;
        if weight_map.is_empty() {
            return Err(ModelError::damaged(index_path, "its `weight_map` is empty"));
        }
        let mut problems = Problems::default();
        let mut all = Self::default();
        let shards: BTreeSet<&str> = weight_map.values().map(String::as_str).collect();
        if shards.len() > MOST_SHARDS {
            return Err(ModelError::damaged(
                index_path,
                format!("names {} shards, more than {MOST_SHARDS}", shards.len()),
            ));
        }
        let mut numbers = BTreeMap::new();
        for shard in shards {
            match open_shard(index_path, shard) {
                Ok(file) => {
                    numbers.insert(shard, all.files.len());
                    all.files.push(file);
                }
                Err(problem) => problems.add(|| problem),
            }
        }
        for (name, shard) in &weight_map {
            // A shard that could not be opened has been reported once, not once per tensor.
            let Some(&number) = numbers.get(shard.as_str()) else { continue };
            if all.files[number].header.tensors.contains_key(name) {
                all.holders.insert(name.clone(), number);
            } else {
                problems
                    .add(|| format!("tensor {} is not in {shard}, where the index places it", shown(name)));
            }
        }
        for (shard, &number) in &numbers {
            for name in all.files[number].header.tensors.keys() {
                if weight_map.get(name).is_none_or(|listed| listed != shard) {
                    problems.add(|| {
                        format!("tensor {} is in {shard}, but the index does not say so", shown(name))
                    });
                }
            }
        }
        if problems.is_empty() {
            Ok(all)
        } else {
            Err(ModelError::damaged(index_path, format!("does not match the files beside it: {problems}")))
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        self.files.get(*self.holders.get(name)?)?.tensor(name)
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.holders.contains_key(name)
    }

    /// The names of all tensors, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.holders.keys().map(String::as_str)
    }

    /// Bytes of all files together: no model in them can be larger than this allows.
    pub(crate) fn total_bytes(&self) -> usize {
        self.files.iter().map(|file| file.bytes.len()).sum()
    }
}

/// The shards that an index names, each of which is a plain name of a file beside it.
pub(crate) fn shards_of(index_path: &Path) -> Result<BTreeSet<String>, ModelError> {
    let Index { weight_map } = read_json(index_path, LARGEST_INDEX)?;
    let shards: BTreeSet<String> = weight_map.into_values().collect();
    match shards.iter().find(|shard| beside(index_path, shard).is_none()) {
        Some(bad) => Err(ModelError::damaged(
            index_path,
            format!("shard {} is not the name of a safetensors file", shown(bad)),
        )),
        None if shards.is_empty() || shards.len() > MOST_SHARDS => {
            Err(ModelError::damaged(index_path, format!("names {} shards", shards.len())))
        }
        None => Ok(shards),
    }
}

/// The tensors of a safetensors file that hold real numbers, by name, as f32.
pub fn read_tensors(path: &Path) -> Result<Vec<(String, Tensor)>, ModelError> {
    let files = TensorFiles::single(path)?;
    let stored = files.names().filter_map(|name| Some((name, files.tensor(name)?)));
    stored
        .filter(|(_, tensor)| is_float(tensor.dtype))
        .map(|(name, tensor)| Ok((name.to_string(), to_tensor(&tensor, DType::F32, &Device::Cpu)?)))
        .collect::<candle_core::Result<_>>()
        .map_err(|error| ModelError::damaged(path, error.to_string()))
}

/// Opens a shard beside its index; the error is one line that names the shard.
fn open_shard(index_path: &Path, shard: &str) -> Result<TensorFile, String> {
    let path = beside(index_path, shard).ok_or_else(|| {
        format!("shard {} is not the name of a safetensors file in this directory", shown(shard))
    })?;
    if !path.exists() {
        return Err(format!("shard {} is missing", shown(shard)));
    }
    TensorFile::open(&path).map_err(|error| error.to_string())
}

/// The path of a file in the same directory, unless the name tries to lead anywhere else.
fn beside(index_path: &Path, name: &str) -> Option<PathBuf> {
    const LONGEST: usize = 255;
    let harmless = name.ends_with(".safetensors")
        && name.len() <= LONGEST
        && !name.contains(['/', '\\', ':', '\0'])
        && Path::new(name).components().eq([Component::Normal(name.as_ref())]);
    harmless.then(|| index_path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_names_stay_in_the_directory() {
        let index = Path::new("/models/m/model.safetensors.index.json");
        let good = beside(index, "model-00001-of-00002.safetensors");
        assert_eq!(good, Some(PathBuf::from("/models/m/model-00001-of-00002.safetensors")));
        let long = format!("{}.safetensors", "x".repeat(4096));
        for bad in [
            "",
            ".",
            "..",
            "../a.safetensors",
            "/etc/a.safetensors",
            "a/b.safetensors",
            "a\\b.safetensors",
            "C:a.safetensors",
            "a\0.safetensors",
            "a.bin",
            "a.safetensors/",
            &long,
        ] {
            assert_eq!(beside(index, bad), None, "{bad:?}");
        }
    }
}
