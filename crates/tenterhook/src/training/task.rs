//! Models of this project as the trainer wants them.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use tenterhook_hooks::{Batch, IGNORED, Pass, PointTable};
use tenterhook_models::{Model, next_token_accuracy};
use tenterhook_nn::Params;
use tenterhook_nn::ops::cross_entropy;
use tenterhook_train::{Evaluation, TrainModel};

/// Predicting tokens: a model, and the cross entropy of its logits.
pub struct LanguageTask {
    model: Model,
    /// The tokenizer's file, which goes into every checkpoint.
    tokenizer: Option<Vec<u8>>,
}

impl LanguageTask {
    /// The task of a model; the tokenizer it came with is read now.
    pub fn new(model: Model) -> std::io::Result<Self> {
        let tokenizer = model.tokenizer().map(std::fs::read).transpose()?;
        Ok(Self { model, tokenizer })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }
}

/// A model that answers once per sequence is asked for the last target.
fn targets_of(output: &Tensor, batch: &Batch) -> Result<Tensor> {
    let targets = batch.get("targets")?;
    match (output.rank(), targets.rank()) {
        (2, 2) => last_of(targets),
        _ => Ok(targets.clone()),
    }
}

fn last_of(targets: &Tensor) -> Result<Tensor> {
    targets.narrow(1, targets.dim(1)? - 1, 1)?.squeeze(1)?.contiguous()
}

impl TrainModel for LanguageTask {
    fn points(&self) -> &Arc<PointTable> {
        self.model.points()
    }

    fn params(&self) -> &Params {
        self.model.params()
    }

    fn forward(&self, batch: &Batch, pass: &Pass) -> Result<Tensor> {
        self.model.forward(batch.get("inputs")?, pass)
    }

    fn loss(&self, output: &Tensor, batch: &Batch) -> Result<Tensor> {
        cross_entropy(output, &targets_of(output, batch)?, Some(IGNORED))
    }

    fn train_forward(&self, batch: &Batch, pass: &Pass) -> Result<Tensor> {
        self.model.forward_to_loss(batch.get("inputs")?, pass)
    }

    fn train_loss(&self, output: &Tensor, batch: &Batch, pass: &Pass) -> Result<Tensor> {
        self.model.loss_of(output, &targets_of(output, batch)?, Some(IGNORED), pass)
    }

    fn loss_weight(&self, batch: &Batch) -> Result<f64> {
        let targets = batch.get("targets")?;
        let targets = match (&self.model, targets.rank()) {
            (Model::Mlp(_), 2) => last_of(targets)?,
            _ => targets.clone(),
        };
        let targets = targets.flatten_all()?.to_dtype(candle_core::DType::I64)?.to_vec1::<i64>()?;
        Ok(targets.into_iter().filter(|target| *target != IGNORED).count() as f64)
    }

    fn evaluate(&self, output: &Tensor, batch: &Batch) -> Result<Evaluation> {
        let loss = self.loss(output, batch)?.to_dtype(candle_core::DType::F64)?.to_scalar()?;
        let (right, counted) = next_token_accuracy(output, &targets_of(output, batch)?)?;
        let accuracy = right as f64 / counted as f64;
        Ok(Evaluation {
            weight: counted as f64,
            values: vec![("loss".to_string(), loss), ("accuracy".to_string(), accuracy)],
        })
    }

    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let config = format!("{:#}\n", self.model.config_json()).into_bytes();
        let tokenizer = self.tokenizer.iter().map(|bytes| ("tokenizer.json".to_string(), bytes.clone()));
        std::iter::once(("config.json".to_string(), config)).chain(tokenizer).collect()
    }
}
