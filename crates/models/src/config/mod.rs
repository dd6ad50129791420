//! One description for every supported model, read from and written as a Hugging Face `config.json`.

mod check;
mod extras;
mod families;
mod gpt2;
mod keys;
mod mlp;
mod neox;
mod rotary;
mod scratch;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod windows;
mod write;

use serde_json::Value;
use tenterhook_nn::ops::{Activation, RopeSpec};

use crate::error::{ConfigError, Problems, nearest, shown};
pub(crate) use families::MOST_LAYERS;
use keys::Keys;
pub(crate) use keys::LARGEST_SIZE;
pub(crate) use mlp::MLP_MODEL_TYPE;
pub use mlp::MlpConfig;

/// The model families that are read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// GPT-2: learned positions, `Conv1D` weights.
    Gpt2,
    /// GPT-NeoX and Pythia: partial rotation, parallel residual.
    NeoX,
    /// Llama 1 to 3 and everything that copies them.
    Llama,
    /// Mistral: Llama with a sliding window.
    Mistral,
    /// Qwen 2 and 2.5: Llama with biases on q, k and v.
    Qwen2,
    /// Qwen 3: q and k are normalised per head.
    Qwen3,
    /// Gemma 2: four norms per block, soft caps, alternating windows.
    Gemma2,
    /// Phi-3 and Phi-4-mini: fused projections, long rotary factors.
    Phi3,
}

impl Family {
    /// Every family, in the order they are listed to users.
    pub const ALL: [Family; 8] = [
        Family::Gpt2,
        Family::NeoX,
        Family::Llama,
        Family::Mistral,
        Family::Qwen2,
        Family::Qwen3,
        Family::Gemma2,
        Family::Phi3,
    ];

    /// What `config.json` calls it.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::NeoX => "gpt_neox",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma2 => "gemma2",
            Self::Phi3 => "phi3",
        }
    }

    /// The class of `transformers` that loads it with a language-model head.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Gpt2 => "GPT2LMHeadModel",
            Self::NeoX => "GPTNeoXForCausalLM",
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Gemma2 => "Gemma2ForCausalLM",
            Self::Phi3 => "Phi3ForCausalLM",
        }
    }
}

/// How activations are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Mean removed, divided by the standard deviation, gain and bias.
    LayerNorm,
    /// Divided by the root mean square, gain only.
    RmsNorm,
}

/// How a model knows where a token stands.
#[derive(Clone, Debug, PartialEq)]
pub enum Positions {
    /// A learned vector per position is added to the embedding.
    Learned,
    /// Queries and keys are rotated.
    Rotary(RopeSpec),
}

/// Dropout rates while training.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Dropout {
    /// On the embedding.
    pub embedding: f64,
    /// On the attention pattern.
    pub attention: f64,
    /// On what each branch adds to the residual stream.
    pub residual: f64,
}

/// Everything that determines the numbers a model computes, apart from its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct TransformerConfig {
    /// Decides the names and layout of the weights.
    pub family: Family,
    /// Rows of the embedding. May exceed the ids of the tokenizer.
    pub vocab: usize,
    /// The largest number of positions.
    pub context: usize,
    /// Size of the residual stream.
    pub width: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Size of one head; not always `width / heads`.
    pub head_dim: usize,
    /// Size of the hidden layer of the MLP; 0 for blocks of attention alone.
    pub mlp_width: usize,
    /// Kind of all norms.
    pub norm: NormKind,
    /// Added under the root of all norms.
    pub norm_eps: f64,
    /// Added to the gain of RMS norms: 1 for Gemma 2, which stores the gain minus one.
    pub norm_weight_offset: f64,
    /// Learned or rotary positions.
    pub positions: Positions,
    /// Activation of the MLP.
    pub activation: Activation,
    /// Whether the MLP multiplies an activated gate with a second projection.
    pub gated_mlp: bool,
    /// Biases on the projections to queries, keys and values.
    pub qkv_bias: bool,
    /// Bias on the projection out of attention.
    pub attn_out_bias: bool,
    /// Biases in the MLP.
    pub mlp_bias: bool,
    /// RMS norm of each query and key head before rotation.
    pub qk_norm: bool,
    /// Factor on the scores before the soft cap and the mask.
    pub attention_scale: f64,
    /// Scores become `cap * tanh(score / cap)`.
    pub attention_soft_cap: Option<f64>,
    /// The same for the logits.
    pub logit_soft_cap: Option<f64>,
    /// Per layer, how many keys a query sees, itself included; `None` sees all that precede it.
    pub windows: Vec<Option<usize>>,
    /// Attention and MLP both read the block's input.
    pub parallel_residual: bool,
    /// Norms on what attention and MLP add to the stream.
    pub post_norms: bool,
    /// Factor on the embedding.
    pub embed_scale: Option<f64>,
    /// The output head is the embedding.
    pub tied_embeddings: bool,
    /// Dropout rates while training.
    pub dropout: Dropout,
    /// Standard deviation of freshly initialised weights.
    pub init_std: f64,
    /// Id of the token that begins a text.
    pub bos: Option<u32>,
    /// Ids of the tokens that end a text.
    pub eos: Vec<u32>,
}

impl TransformerConfig {
    /// Reads a `config.json`, in the spelling of transformers 5 or any earlier one. Absent keys mean what they mean there.
    ///
    /// Whatever would change the numbers and is not supported is an error, and so are sizes that no model has:
    /// all problems are reported at once, before anything is allocated.
    ///
    /// ```
    /// use tenterhook_models::config::TransformerConfig;
    /// let json = serde_json::json!({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 5, "hidden_act": "mish"});
    /// let error = TransformerConfig::from_hf(&json).unwrap_err().to_string();
    /// assert!(error.contains("num_attention_heads") && error.contains("mish"));
    /// ```
    pub fn from_hf(json: &Value) -> Result<Self, ConfigError> {
        let mut problems = Problems::default();
        let config = read(json, &mut problems);
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(ConfigError { problems }),
        }
    }

    /// The numbers in all matrices; norms and biases are not counted.
    pub(crate) fn parameters(&self) -> u128 {
        check::parameters(self)
    }

    /// Number of values in a row of all heads side by side.
    pub fn attention_width(&self) -> usize {
        self.heads * self.head_dim
    }
}

fn read(json: &Value, problems: &mut Problems) -> Option<TransformerConfig> {
    let Some(object) = json.as_object() else {
        problems.add(|| format!("must be a JSON object, found {}", keys::described(json)));
        return None;
    };
    let mut keys = Keys::new(object, "");
    let family = find_family(&mut keys);
    let config = family.map(|family| {
        let mut config = families::read(&mut keys, family);
        extras::read(&mut keys, &mut config);
        check::unsupported_everywhere(&mut keys);
        config
    });
    problems.append(keys.into_problems());
    if let Some(config) = &config {
        check::sizes(config, problems);
    }
    config
}

fn find_family(keys: &mut Keys<'_>) -> Option<Family> {
    let name = keys.text(&["model_type"], "")?;
    let wanted = extras::family_model_type(name);
    let family = Family::ALL.into_iter().find(|family| family.model_type() == wanted);
    if family.is_none() {
        let known = Family::ALL.map(Family::model_type);
        keys.problem(|| {
            if name.is_empty() {
                return format!("`model_type` is missing; it must be one of {}", known.join(", "));
            }
            if name == MLP_MODEL_TYPE {
                return format!("`model_type` `{name}` is no transformer; `Mlp::load` reads it");
            }
            let near = nearest(name, known.into_iter()).map(|near| format!("; did you mean `{near}`?"));
            let known = known.join(", ");
            format!(
                "`model_type` {} is not supported (supported: {known}){}",
                shown(name),
                near.unwrap_or_default()
            )
        });
    }
    family
}
