//! Models from a flat description, as it stands in a configuration: a new one by its sizes, or one from a directory.

mod build;
mod check;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kinds of models that can be trained from scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// As GPT-2: learned positions, layer norm, biases.
    Gpt,
    /// As Llama: rotary positions, RMS norm, gated MLP, no biases.
    Llama,
    /// As GPT-NeoX and Pythia: rotary positions on a part of each head, attention and MLP side by side.
    Neox,
    /// No attention: the embeddings of a fixed window of tokens, side by side, through hidden layers.
    Mlp,
}

/// The activation functions a new model can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActivationName {
    /// GELU with the error function.
    Gelu,
    /// GELU in its tanh form, which GPT-2 uses.
    GeluTanh,
    /// `x * sigmoid(x)`, which Llama uses.
    Silu,
    /// `max(x, 0)`.
    Relu,
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
}

/// The number type that a model computes with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32-bit floats.
    #[default]
    F32,
    /// 64-bit floats: twice the memory, for checks of gradients.
    F64,
}

/// A model to train: a new one of a `kind`, with its sizes, or an existing one `from` a directory.
///
/// ```
/// use candle_core::Device;
/// use tenterhook_models::{ModelDescription, ModelKind};
///
/// let described: ModelDescription = serde_json::from_value(serde_json::json!({
///     "kind": "llama", "vocab": 256, "context": 64, "d_model": 48, "n_heads": 5, "n_layers": 2, "rope_theta": -1.0,
/// }))?;
/// let problems = described.problems();
/// assert_eq!(problems.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["rope_theta", "n_heads"]);
///
/// let described = ModelDescription { n_heads: Some(4), rope_theta: None, ..described };
/// let model = described.build(".".as_ref(), 42, &Device::Cpu)?;
/// assert_eq!((model.vocab(), model.context()), (256, 64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelDescription {
    /// The kind of a new model. Either this or `from`.
    pub kind: Option<ModelKind>,
    /// The directory of an existing model: a Hugging Face model or a checkpoint. Either this or `kind`.
    pub from: Option<PathBuf>,
    /// How many token ids there are. By default as many as `tokenizer` has.
    pub vocab: Option<usize>,
    /// The longest sequence the model reads; for an MLP the length of its window.
    pub context: Option<usize>,
    /// Size of the residual stream; for an MLP size of a token's embedding.
    pub d_model: Option<usize>,
    /// Attention heads. They divide `d_model` among themselves.
    pub n_heads: Option<usize>,
    /// Heads of keys and values, which groups of `n_heads` share (llama). By default as many as `n_heads`.
    pub n_kv_heads: Option<usize>,
    /// Blocks of a transformer, or hidden layers of an MLP.
    pub n_layers: Option<usize>,
    /// Size of the hidden layer of each MLP. 0 makes a transformer of attention alone. By default 4 times `d_model`, or 8/3 of
    /// it for llama.
    pub d_mlp: Option<usize>,
    /// The share of values set to 0 while training: on the embedding, the attention pattern and what every block adds. By
    /// default 0 for a new model; with `from`, what the model says.
    pub dropout: Option<f64>,
    /// The activation of the MLPs. By default gelu_tanh for gpt, silu for llama, gelu for neox, relu for mlp.
    pub activation: Option<ActivationName>,
    /// Whether the output head is the embedding. By default only for gpt.
    pub tied: Option<bool>,
    /// Standard deviation of the first weights of a transformer, 0.02 by default.
    pub init_std: Option<f64>,
    /// The base of the rotary frequencies (llama, neox), 10000 by default. Larger for long contexts.
    pub rope_theta: Option<f64>,
    /// Added under the root of all norms, 1e-5 by default.
    pub norm_eps: Option<f64>,
    /// The seed of the first weights. By default the run's.
    pub seed: Option<u64>,
    /// The number type that the model computes with.
    pub dtype: Precision,
    /// A `tokenizer.json`. By default the one in the directory of `from`, if there is one.
    pub tokenizer: Option<PathBuf>,
}
