//! What a model must offer to be trained.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor};
use tenterhook_hooks::{Batch, Pass, PointTable};
use tenterhook_nn::Params;

/// A model that can be trained: it makes outputs of a batch, and a loss of the outputs.
///
/// The two are apart so that hooks have seen every activation before there is a loss.
pub trait TrainModel: Send + Sync {
    /// The places hooks can be attached to.
    fn points(&self) -> &Arc<PointTable>;

    /// The parameters by name.
    fn params(&self) -> &Params;

    /// The outputs of a batch, such as logits.
    fn forward(&self, batch: &Batch, pass: &Pass) -> Result<Tensor>;

    /// The loss of these outputs: one number, the mean over what counts.
    fn loss(&self, output: &Tensor, batch: &Batch) -> Result<Tensor>;

    /// The outputs of a batch as a training step needs them: what [`train_loss`](Self::train_loss) makes a loss of. A model may leave its last
    /// layer to the loss, where the two are one computation.
    fn train_forward(&self, batch: &Batch, pass: &Pass) -> Result<Tensor> {
        self.forward(batch, pass)
    }

    /// The loss of what [`train_forward`](Self::train_forward) gave, the same as [`loss`](Self::loss) of [`forward`](Self::forward).
    fn train_loss(&self, output: &Tensor, batch: &Batch, _pass: &Pass) -> Result<Tensor> {
        self.loss(output, batch)
    }

    /// How much the loss of a batch counts in a mean over batches: over how many things it is a mean. Where several processes have parts of
    /// one batch, this is what their losses and gradients are weighted with.
    fn loss_weight(&self, batch: &Batch) -> Result<f64> {
        Ok(batch.examples().len() as f64)
    }

    /// How good these outputs are. `loss` is among the values; others, such as `accuracy`, are welcome.
    fn evaluate(&self, output: &Tensor, batch: &Batch) -> Result<Evaluation> {
        let loss = scalar(&self.loss(output, batch)?)?;
        Ok(Evaluation { weight: batch.examples().len() as f64, values: vec![("loss".to_string(), loss)] })
    }

    /// What a checkpoint needs beside the weights, by file name: a `config.json`, a tokenizer.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        Vec::new()
    }
}

/// How good the outputs of a batch are.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// How much the batch counts in a mean over batches, such as its number of targets.
    pub weight: f64,
    /// Means over the batch, by name.
    pub values: Vec<(String, f64)>,
}

/// The value of a tensor with one element.
pub(crate) fn scalar(x: &Tensor) -> Result<f64> {
    x.to_dtype(DType::F64)?.reshape(())?.to_scalar()
}
