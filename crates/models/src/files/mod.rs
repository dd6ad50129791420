//! Model directories as Hugging Face writes them: `config.json`, weights in safetensors, `tokenizer.json`.
//!
//! Nothing in a directory is trusted. Sizes are checked before anything is allocated, names in an index cannot
//! lead out of the directory, and pickle files are never opened.

mod atomic;
mod convert;
mod header;
mod read;
mod reader;
mod save;
mod tensors;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod weights;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device};
use serde_json::Value;

pub use atomic::check_writable;
pub use convert::{decode, stored_type};
pub(crate) use read::read_bounded;
pub use read::read_json_file;
pub use reader::TensorReader;
pub(crate) use save::{named_tensors, with_dtype};
pub use save::{save_model, save_tensors, tensors_header};
pub use tensors::read_tensors;
pub(crate) use tensors::shards_of;
pub use weights::FileWeights;

use crate::config::{Dropout, TransformerConfig};
use crate::error::ModelError;
use tensors::TensorFiles;

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const WEIGHTS: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const PICKLES: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

const LARGEST_CONFIG: u64 = 4 << 20;
pub(crate) const LARGEST_TOKENIZER: u64 = 256 << 20;

/// An opened model directory: its configuration is understood and its weight files are mapped and checked.
#[derive(Debug)]
pub struct ModelFiles {
    /// What the model looks like.
    pub config: TransformerConfig,
    /// `config.json` as it stands, for copying what has no place in [`TransformerConfig`].
    pub config_json: Value,
    stored: StoredModel,
}

impl ModelFiles {
    /// Opens a directory.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        let (path, config_json) = read_config(dir)?;
        let config =
            TransformerConfig::from_hf(&config_json).map_err(|source| ModelError::Config { path, source })?;
        Ok(Self { config, config_json, stored: StoredModel::open(dir)? })
    }

    /// The `tokenizer.json`, if the directory has one.
    pub fn tokenizer(&self) -> Option<&Path> {
        self.stored.tokenizer()
    }

    /// Changes how the model will be trained; both the description and `config.json` say so.
    pub(crate) fn set_dropout(&mut self, dropout: Dropout) {
        self.config.dropout = dropout;
        self.config.write_dropout(&mut self.config_json);
    }

    /// The weights as `dtype` (f32, or f64 for gradient checks) on a device, whatever the type they are stored in.
    pub fn weights(&self, dtype: DType, device: &Device) -> FileWeights {
        self.stored.weights(self.config.tied_embeddings, dtype, device)
    }
}

/// What the directories of all kinds of models have beside `config.json`.
#[derive(Debug)]
pub(crate) struct StoredModel {
    dir: PathBuf,
    tensors: Arc<TensorFiles>,
    tokenizer: Option<PathBuf>,
}

impl StoredModel {
    pub(crate) fn open(dir: &Path) -> Result<Self, ModelError> {
        let tensors = Arc::new(open_weights(dir)?);
        let tokenizer = Some(dir.join(TOKENIZER)).filter(|path| path.is_file());
        Ok(Self { dir: dir.to_path_buf(), tensors, tokenizer })
    }

    pub(crate) fn tokenizer(&self) -> Option<&Path> {
        self.tokenizer.as_deref()
    }

    /// `tied` says that a head among the weights may repeat the embedding.
    pub(crate) fn weights(&self, tied: bool, dtype: DType, device: &Device) -> FileWeights {
        FileWeights::new(self.dir.clone(), self.tensors.clone(), tied, dtype, device.clone())
    }
}

/// The `config.json` of a model directory, and where it is.
pub(crate) fn read_config(dir: &Path) -> Result<(PathBuf, Value), ModelError> {
    let path = find_config(dir)?;
    let json = read::read_json(&path, LARGEST_CONFIG)?;
    Ok((path, json))
}

fn not_a_model(dir: &Path, problem: impl Into<String>) -> ModelError {
    ModelError::NotAModel { path: dir.to_path_buf(), problem: problem.into() }
}

fn find_config(dir: &Path) -> Result<PathBuf, ModelError> {
    let config = dir.join(CONFIG);
    if !dir.exists() {
        Err(not_a_model(
            dir,
            format!("does not exist; a model directory with {CONFIG} and {WEIGHTS} is needed"),
        ))
    } else if !dir.is_dir() {
        Err(not_a_model(dir, format!("is a file; give the directory that holds {CONFIG} and {WEIGHTS}")))
    } else if !config.exists() {
        Err(not_a_model(dir, format!("is not a model directory: it has no {CONFIG}")))
    } else {
        Ok(config)
    }
}

fn open_weights(dir: &Path) -> Result<TensorFiles, ModelError> {
    let (single, index) = (dir.join(WEIGHTS), dir.join(INDEX));
    if single.exists() {
        TensorFiles::single(&single)
    } else if index.exists() {
        TensorFiles::sharded(&index)
    } else if let Some(pickle) = PICKLES.iter().find(|name| dir.join(name).exists()) {
        Err(not_a_model(
            dir,
            format!(
                "its weights are in {pickle}, a pickle file, which can run code and is never read; convert it once in \
                 Python, with `AutoModelForCausalLM.from_pretrained(dir).save_pretrained(dir, safe_serialization=True)`"
            ),
        ))
    } else {
        Err(not_a_model(dir, format!("has no weights: neither {WEIGHTS} nor {INDEX}")))
    }
}
