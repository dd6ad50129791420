//! From a description to a model.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use serde_json::Value;
use tenterhook_nn::ops::Activation;

use super::{ActivationName, ModelDescription, ModelKind, Precision};
use crate::config::{Dropout, MLP_MODEL_TYPE, MlpConfig, Positions, TransformerConfig};
use crate::error::{ConfigError, ModelError, Problems};
use crate::files::{ModelFiles, StoredModel, read_config};
use crate::model::Model;
use crate::tokenizer::Tokenizer;
use crate::{Mlp, Transformer};

impl ModelDescription {
    /// The model. Paths are relative to `base_dir`; `seed` is for a new model whose description has none.
    ///
    /// A description with [`problems`](Self::problems) is an error that lists them.
    pub fn build(&self, base_dir: &Path, seed: u64, device: &Device) -> Result<Model, ModelError> {
        let mut problems = Problems::default();
        for (key, message) in self.problems() {
            problems.add(|| format!("`{key}`: {message}"));
        }
        if !problems.is_empty() {
            return Err(ConfigError { problems }.into());
        }
        let dtype = match self.dtype {
            Precision::F32 => DType::F32,
            Precision::F64 => DType::F64,
        };
        let tokenizer = self.tokenizer.as_ref().map(|path| base_dir.join(path));
        let ids =
            tokenizer.as_deref().map(Tokenizer::load).transpose()?.map(|tokenizer| tokenizer.id_bound());
        let mut model = match &self.from {
            Some(from) => self.load(&base_dir.join(from), dtype, device)?,
            // One of the two is there, or there would have been problems.
            None => self.init(self.vocab.or(ids).unwrap_or(0), self.seed.unwrap_or(seed), dtype, device)?,
        };
        if let (Some(path), Some(ids)) = (tokenizer, ids) {
            check_fits(&path, ids, model.vocab())?;
            model.set_tokenizer(path);
        }
        Ok(model)
    }

    /// The `config.json` of the model that [`build`](Self::build) would make, without making it. A description with
    /// [`problems`](Self::problems) has none that makes sense.
    pub fn config_json(&self, base_dir: &Path) -> Result<Value, ModelError> {
        if let Some(from) = &self.from {
            return Ok(read_config(&base_dir.join(from))?.1);
        }
        let tokenizer = self.tokenizer.as_ref().map(|path| Tokenizer::load(&base_dir.join(path)));
        let ids = tokenizer.transpose()?.map(|tokenizer| tokenizer.id_bound());
        let vocab = self.vocab.or(ids).unwrap_or(0);
        Ok(match self.kind {
            Some(ModelKind::Mlp) => self.mlp_config(vocab).to_json(),
            kind => self.transformer_config(kind.unwrap_or(ModelKind::Gpt), vocab).to_hf(),
        })
    }

    fn init(&self, vocab: usize, seed: u64, dtype: DType, device: &Device) -> Result<Model, ModelError> {
        Ok(match self.kind {
            Some(ModelKind::Mlp) => Model::Mlp(Mlp::init(self.mlp_config(vocab), seed, dtype, device)?),
            kind => {
                let config = self.transformer_config(kind.unwrap_or(ModelKind::Gpt), vocab);
                Model::Transformer(Transformer::init(config, seed, dtype, device)?)
            }
        })
    }

    fn load(&self, dir: &Path, dtype: DType, device: &Device) -> Result<Model, ModelError> {
        let (path, json) = read_config(dir)?;
        if json.get("model_type").and_then(|name| name.as_str()) == Some(MLP_MODEL_TYPE) {
            let mut config =
                MlpConfig::from_json(&json).map_err(|source| ModelError::Config { path, source })?;
            config.dropout = self.dropout.unwrap_or(config.dropout);
            return Ok(Model::Mlp(Mlp::from_stored(config, &StoredModel::open(dir)?, dtype, device)?));
        }
        let mut files = ModelFiles::open(dir)?;
        if let Some(rate) = self.dropout {
            files.set_dropout(everywhere(rate));
        }
        Ok(Model::Transformer(Transformer::from_files(&files, dtype, device)?))
    }

    pub(super) fn transformer_config(&self, kind: ModelKind, vocab: usize) -> TransformerConfig {
        let make = match kind {
            ModelKind::Llama => TransformerConfig::llama,
            ModelKind::Neox => TransformerConfig::neox,
            ModelKind::Gpt | ModelKind::Mlp => TransformerConfig::gpt2,
        };
        // What is missing has been reported; 0 is refused.
        let size = |size: Option<usize>| size.unwrap_or(0);
        let mut config =
            make(vocab, size(self.context), size(self.d_model), size(self.n_layers), size(self.n_heads));
        config.kv_heads = self.n_kv_heads.unwrap_or(config.kv_heads);
        config.mlp_width = self.d_mlp.unwrap_or(config.mlp_width);
        config.dropout = everywhere(self.dropout.unwrap_or(0.0));
        config.activation = self.activation.map_or(config.activation, Into::into);
        config.tied_embeddings = self.tied.unwrap_or(config.tied_embeddings);
        config.init_std = self.init_std.unwrap_or(config.init_std);
        config.norm_eps = self.norm_eps.unwrap_or(config.norm_eps);
        if let (Positions::Rotary(rope), Some(theta)) = (&mut config.positions, self.rope_theta) {
            rope.theta = theta;
        }
        config
    }

    pub(super) fn mlp_config(&self, vocab: usize) -> MlpConfig {
        let d_model = self.d_model.unwrap_or(0);
        MlpConfig {
            vocab,
            context: self.context.unwrap_or(0),
            d_model,
            d_mlp: self.d_mlp.unwrap_or(d_model.saturating_mul(4)),
            n_layers: self.n_layers.unwrap_or(0),
            activation: self.activation.map_or(Activation::Relu, Into::into),
            dropout: self.dropout.unwrap_or(0.0),
        }
    }
}

impl From<ActivationName> for Activation {
    fn from(name: ActivationName) -> Self {
        match name {
            ActivationName::Gelu => Self::Gelu,
            ActivationName::GeluTanh => Self::GeluTanh,
            ActivationName::Silu => Self::Silu,
            ActivationName::Relu => Self::Relu,
            ActivationName::QuickGelu => Self::QuickGelu,
        }
    }
}

fn everywhere(rate: f64) -> Dropout {
    Dropout { embedding: rate, attention: rate, residual: rate }
}

/// An id without a row would be an error in the middle of the training.
fn check_fits(tokenizer: &Path, ids: usize, vocab: usize) -> Result<(), ModelError> {
    if ids <= vocab {
        return Ok(());
    }
    let problem = format!(
        "its ids need a vocabulary of {ids}, and the model has {vocab}: leave `vocab` out to take what the tokenizer needs, or \
         give the tokenizer of the model"
    );
    Err(ModelError::Tokenizer { path: PathBuf::from(tokenizer), problem })
}
