//! Writing a model directory.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::Value;
use tenterhook_nn::Params;

use super::atomic::{PendingFile, text};
use super::convert::{stored_type, write_tensor};
use super::read::read_bounded;
use super::{CONFIG, LARGEST_TOKENIZER, TOKENIZER, WEIGHTS};
use crate::error::{ModelError, shown};

/// Writes a model as a directory that `transformers` loads: `config.json`, `model.safetensors` and, when there
/// is one, a copy of the tokenizer. All files are complete on the disk before the first one takes its place.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use tenterhook_models::config::TransformerConfig;
/// use tenterhook_models::files::save_model;
///
/// let dir = tempfile::tempdir()?;
/// let config = TransformerConfig::gpt2(61, 16, 32, 2, 4);
/// let weight = Tensor::zeros((61, 32), candle_core::DType::F32, &Device::Cpu)?;
/// save_model(dir.path(), &config.to_hf(), &[("transformer.wte.weight".into(), weight)], None)?;
/// assert!(dir.path().join("model.safetensors").is_file());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save_model(
    dir: &Path,
    config_json: &Value,
    tensors: &[(String, Tensor)],
    tokenizer: Option<&Path>,
) -> Result<(), ModelError> {
    let tokenizer = tokenizer.map(|path| read_bounded(path, LARGEST_TOKENIZER)).transpose()?;
    fs::create_dir_all(dir).map_err(ModelError::io("create", dir))?;
    let mut pending = vec![pending_tensors(dir.join(WEIGHTS), tensors)?];
    if let Some(tokenizer) = tokenizer {
        pending.push(PendingFile::write(dir.join(TOKENIZER), text(&tokenizer))?);
    }
    let config = format!("{config_json:#}\n");
    pending.push(PendingFile::write(dir.join(CONFIG), text(config.as_bytes()))?);
    pending.into_iter().try_for_each(PendingFile::publish)
}

/// The parameters of a model as they are written.
pub(crate) fn named_tensors(params: &Params) -> Vec<(String, Tensor)> {
    params.iter().map(|param| (param.name().to_string(), param.value().clone())).collect()
}

/// A `config.json` that names the type of the weights. They may have been converted since they were read, and `transformers` loads them
/// as what stands here.
pub(crate) fn with_dtype(mut config_json: Value, dtype: DType) -> Value {
    let key = if config_json.get("torch_dtype").is_some() { "torch_dtype" } else { "dtype" };
    config_json[key] = match dtype {
        DType::F64 => "float64".into(),
        _ => "float32".into(),
    };
    config_json
}

/// Writes tensors as one safetensors file, which is the old one or the whole new one at every moment.
pub fn save_tensors(path: &Path, tensors: &[(String, Tensor)]) -> Result<(), ModelError> {
    pending_tensors(path.to_path_buf(), tensors)?.publish()
}

fn pending_tensors(path: PathBuf, tensors: &[(String, Tensor)]) -> Result<PendingFile, ModelError> {
    let mut sorted: Vec<(&str, &Tensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    // Wide types first, so that every tensor is aligned to its own size.
    sorted.sort_by_key(|(name, tensor)| (Reverse(tensor.dtype().size_in_bytes()), *name));
    let unwritable = |problem| ModelError::Unwritable { path: path.clone(), problem };
    let mut entries = Vec::with_capacity(sorted.len());
    for (name, tensor) in &sorted {
        let dtype = stored_type(tensor.dtype())
            .ok_or_else(|| unwritable(format!("tensor {} has type {:?}", shown(name), tensor.dtype())))?;
        entries.push((*name, dtype, tensor.dims().to_vec()));
    }
    let header = tensors_header(entries).map_err(unwritable)?;
    PendingFile::write(path, |writer| {
        writer.write_all(&header)?;
        sorted.iter().try_for_each(|(_, tensor)| write_tensor(tensor, &mut *writer))
    })
}

/// The start of a safetensors file: the length of its header and the header, for tensors that follow one another in this order. Wide types
/// come first, or a tensor is not aligned to its own size.
pub fn tensors_header<'n>(
    tensors: impl IntoIterator<Item = (&'n str, Dtype, Vec<usize>)>,
) -> Result<Vec<u8>, String> {
    let mut entries = Vec::new();
    let mut names = HashSet::from(["__metadata__"]);
    let mut start = 0;
    for (name, dtype, shape) in tensors {
        if !names.insert(name) {
            return Err(format!("two tensors are called {}", shown(name)));
        }
        let end = start + shape.iter().product::<usize>() * dtype.bitsize() / 8;
        entries.push((name.to_string(), TensorInfo { dtype, shape, data_offsets: (start, end) }));
        start = end;
    }
    // `transformers` refuses a file that does not say this of itself.
    let about = HashMap::from([("format".to_string(), "pt".to_string())]);
    let metadata = Metadata::new(Some(about), entries).map_err(|error| error.to_string())?;
    let mut json = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}
