//! Either kind of model, for whoever trains one and need not know which.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{Result, Tensor};
use serde_json::Value;
use tenterhook_hooks::{Pass, PointTable};
use tenterhook_nn::Params;
use tenterhook_nn::ops::cross_entropy;

use crate::{Mlp, Transformer};

/// A model that a [`ModelDescription`](crate::ModelDescription) describes.
#[allow(clippy::large_enum_variant)] // a run has one of them
pub enum Model {
    /// Reads sequences and predicts the token after every position.
    Transformer(Transformer),
    /// Reads windows of one length and predicts the token after each.
    Mlp(Mlp),
}

impl Model {
    /// The logits: `[batch, pos, vocab]` of a transformer for ids `[batch, pos]`, `[batch, vocab]` of an MLP for windows
    /// `[batch, context]`.
    pub fn forward(&self, ids: &Tensor, pass: &Pass) -> Result<Tensor> {
        match self {
            Self::Transformer(model) => model.forward(ids, pass),
            Self::Mlp(model) => model.forward(ids, pass),
        }
    }

    /// What [`loss_of`](Self::loss_of) makes a loss of: the logits, or what a transformer makes them of.
    pub fn forward_to_loss(&self, ids: &Tensor, pass: &Pass) -> Result<Tensor> {
        match self {
            Self::Transformer(model) => model.forward_to_loss(ids, pass),
            Self::Mlp(model) => model.forward(ids, pass),
        }
    }

    /// The mean cross entropy of the targets, `[batch, pos]` of a transformer and `[batch]` of an MLP; `ignore_index` marks those that do not count.
    pub fn loss_of(
        &self,
        output: &Tensor,
        targets: &Tensor,
        ignore_index: Option<i64>,
        pass: &Pass,
    ) -> Result<Tensor> {
        match self {
            Self::Transformer(model) => model.loss_of(output, targets, ignore_index, pass),
            Self::Mlp(_) => cross_entropy(output, targets, ignore_index),
        }
    }

    /// All parameters, by the names they have in the model file.
    pub fn params(&self) -> &Params {
        match self {
            Self::Transformer(model) => model.params(),
            Self::Mlp(model) => model.params(),
        }
    }

    /// All points and layers.
    pub fn points(&self) -> &Arc<PointTable> {
        match self {
            Self::Transformer(model) => model.points(),
            Self::Mlp(model) => model.points(),
        }
    }

    /// The `config.json` that belongs beside its weights.
    pub fn config_json(&self) -> Value {
        match self {
            Self::Transformer(model) => model.config_json(),
            Self::Mlp(model) => model.config_json(),
        }
    }

    /// The longest sequence a transformer was made for, or the length of an MLP's window.
    pub fn context(&self) -> usize {
        match self {
            Self::Transformer(model) => model.config().context,
            Self::Mlp(model) => model.config().context,
        }
    }

    /// How many token ids it knows.
    pub fn vocab(&self) -> usize {
        match self {
            Self::Transformer(model) => model.config().vocab,
            Self::Mlp(model) => model.config().vocab,
        }
    }

    /// The `tokenizer.json` that was named for it or lies in the directory it came from.
    pub fn tokenizer(&self) -> Option<&Path> {
        match self {
            Self::Transformer(model) => model.tokenizer(),
            Self::Mlp(model) => model.tokenizer(),
        }
    }

    pub(crate) fn set_tokenizer(&mut self, path: PathBuf) {
        match self {
            Self::Transformer(model) => model.set_tokenizer(path),
            Self::Mlp(model) => model.set_tokenizer(path),
        }
    }
}
