//! The matrix products of a model, and the FLOPs it needs.

use serde_json::Value;
use tenterhook_models::config::{Family, MlpConfig, TransformerConfig};

use crate::cli::error::CliError;

/// The sizes of a model.
pub(super) enum Sizes {
    Transformer(Box<TransformerConfig>),
    Mlp(MlpConfig),
}

/// A matrix product that a model computes: `[m, k]` by `[k, n]`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LayerProduct {
    /// Which layers compute it, such as `mlp_in`.
    pub(super) name: String,
    /// `[m, k, n]`.
    pub(super) shape: [usize; 3],
    /// Whether the first operand lies in memory column by column.
    pub(super) a_transposed: bool,
    /// The same of the second.
    pub(super) b_transposed: bool,
    /// How often, in one pass.
    pub(super) times: usize,
}

impl LayerProduct {
    /// Of one such product.
    pub(super) fn flops(&self) -> f64 {
        self.shape.iter().map(|size| *size as f64).product::<f64>() * 2.0
    }

    /// The gradients of both operands. The weight lies as `[k, n]`, or as `[n, k]` where it is the transposed one.
    fn backward(&self) -> [Self; 2] {
        let [m, k, n] = self.shape;
        let of_input = Self {
            name: format!("{} backward, input", self.name),
            shape: [m, n, k],
            b_transposed: !self.b_transposed,
            ..self.clone()
        };
        let of_weight = Self {
            name: format!("{} backward, weight", self.name),
            shape: if self.b_transposed { [n, m, k] } else { [k, m, n] },
            a_transposed: true,
            b_transposed: false,
            ..self.clone()
        };
        [of_input, of_weight]
    }
}

impl Sizes {
    /// Of the model with this `config.json`.
    pub(super) fn of(config_json: &Value) -> Result<Self, CliError> {
        let bad = |error: tenterhook_models::error::ConfigError| CliError::bad_input(error.to_string());
        match config_json["model_type"].as_str() {
            Some("tenterhook_mlp") => Ok(Self::Mlp(MlpConfig::from_json(config_json).map_err(bad)?)),
            _ => Ok(Self::Transformer(Box::new(TransformerConfig::from_hf(config_json).map_err(bad)?))),
        }
    }

    /// Tokens that a sequence has by itself.
    pub(super) fn context(&self) -> usize {
        match self {
            Self::Transformer(config) => config.context,
            Self::Mlp(config) => config.context,
        }
    }

    /// The products of a forward of so many sequences of so many tokens; those inside attention are not among them.
    pub(super) fn forward(&self, batch: usize, seq: usize) -> Vec<LayerProduct> {
        match self {
            Self::Transformer(config) => transformer(config, batch.saturating_mul(seq)),
            Self::Mlp(config) => mlp(config, batch),
        }
    }

    /// Those of a training step: the forward's, and two more for each.
    pub(super) fn training(&self, batch: usize, seq: usize) -> Vec<LayerProduct> {
        let forward = self.forward(batch, seq);
        let backward: Vec<_> = forward.iter().flat_map(LayerProduct::backward).collect();
        forward.into_iter().chain(backward).collect()
    }

    /// What a forward of so many sequences of so many tokens needs.
    pub(super) fn forward_flops(&self, batch: usize, seq: usize) -> f64 {
        let products = self.forward(batch, seq);
        let products: f64 = products.iter().map(|product| product.flops() * product.times as f64).sum();
        products + self.attention_flops(batch, seq)
    }

    /// Scores and the weighted sum of values, for the keys that each query may see.
    fn attention_flops(&self, batch: usize, seq: usize) -> f64 {
        let Self::Transformer(config) = self else { return 0.0 };
        let pairs = config.windows.iter().map(|window| {
            let seen = window.unwrap_or(seq).min(seq) as f64;
            // The first queries see fewer than a window.
            seen * (seen + 1.0) / 2.0 + (seq as f64 - seen) * seen
        });
        pairs.sum::<f64>() * batch as f64 * 4.0 * config.attention_width() as f64
    }

    /// What a generation of `new` tokens behind `prompt` tokens needs with a cache. Logits count only where a token is chosen.
    pub(super) fn generate_flops(&self, prompt: usize, new: usize) -> f64 {
        let seq = (prompt + new).saturating_sub(1);
        let head = |tokens: usize| {
            let products = self.forward(1, tokens);
            products.last().map_or(0.0, LayerProduct::flops)
        };
        self.forward_flops(1, seq) - head(seq) + head(new)
    }
}

fn product(name: &str, [m, k, n]: [usize; 3], b_transposed: bool, times: usize) -> LayerProduct {
    LayerProduct { name: name.to_string(), shape: [m, k, n], a_transposed: false, b_transposed, times }
}

/// The vocabulary's comes last.
fn transformer(config: &TransformerConfig, tokens: usize) -> Vec<LayerProduct> {
    let TransformerConfig { width, layers, .. } = *config;
    let (q, kv) = (config.attention_width(), config.kv_heads * config.head_dim);
    // Weights lie as `[inputs, outputs]` in GPT-2 alone.
    let turned = config.family != Family::Gpt2;
    let layer = |name: &str, inputs: usize, outputs: usize, times: usize| {
        product(name, [tokens, inputs, outputs], turned, times * layers)
    };
    let mut all = match config.family {
        Family::Gpt2 | Family::NeoX | Family::Phi3 => vec![layer("attn_qkv", width, q + 2 * kv, 1)],
        _ => vec![layer("attn_q", width, q, 1), layer("attn_kv", width, kv, 2)],
    };
    all.push(layer("attn_out", q, width, 1));
    if config.mlp_width > 0 {
        all.push(match (config.gated_mlp, config.family) {
            (true, Family::Phi3) => layer("mlp_in", width, 2 * config.mlp_width, 1),
            (true, _) => layer("mlp_in", width, config.mlp_width, 2),
            (false, _) => layer("mlp_in", width, config.mlp_width, 1),
        });
        all.push(layer("mlp_out", config.mlp_width, width, 1));
    }
    all.push(product("vocabulary", [tokens, width, config.vocab], true, 1));
    all
}

fn mlp(config: &MlpConfig, rows: usize) -> Vec<LayerProduct> {
    let first = product("first", [rows, config.context * config.d_model, config.d_mlp], true, 1);
    let others =
        product("hidden", [rows, config.d_mlp, config.d_mlp], true, config.n_layers.saturating_sub(1));
    let head = product("vocabulary", [rows, config.d_mlp, config.vocab], true, 1);
    [first, others, head].into_iter().filter(|product| product.times > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpt2_small() -> Sizes {
        Sizes::Transformer(Box::new(TransformerConfig::gpt2(50257, 1024, 768, 12, 12)))
    }

    #[test]
    fn gpt2_small_needs_what_is_written_about_it() {
        // 85 million weights in the blocks and 38.6 million in the head, twice each per token; attention beside them.
        let (tokens, pairs) = (256.0, 256.0 * 257.0 / 2.0);
        let weights = 12.0 * 12.0 * 768.0 * 768.0 + 768.0 * 50257.0;
        let expected = 2.0 * tokens * weights + 12.0 * 4.0 * 768.0 * pairs;
        assert_eq!(gpt2_small().forward_flops(1, 256), expected);
        assert_eq!(gpt2_small().forward_flops(4, 256), 4.0 * expected);
    }

    #[test]
    fn windows_count_what_they_see() {
        let mut config = TransformerConfig::llama(100, 64, 16, 2, 2);
        let full = Sizes::Transformer(Box::new(config.clone())).attention_flops(1, 10);
        config.windows = vec![Some(3), None];
        let cut = Sizes::Transformer(Box::new(config)).attention_flops(1, 10);
        assert_eq!(full, 2.0 * 55.0 * 4.0 * 16.0);
        assert_eq!(cut, (55.0 + (1.0 + 2.0 + 8.0 * 3.0)) * 4.0 * 16.0);
    }

    #[test]
    fn a_step_has_three_products_for_each_of_the_forward() {
        let (forward, training) = (gpt2_small().forward(4, 128), gpt2_small().training(4, 128));
        assert_eq!(training.len(), 3 * forward.len());
        let flops = |all: &[LayerProduct]| all.iter().map(|one| one.flops() * one.times as f64).sum::<f64>();
        assert_eq!(flops(&training), 3.0 * flops(&forward));
        let head: Vec<_> = training.iter().filter(|one| one.name.starts_with("vocabulary")).collect();
        assert_eq!(head[1].shape, [512, 50257, 768]);
        assert_eq!((head[2].shape, head[2].a_transposed), ([50257, 512, 768], true));
    }

    #[test]
    fn a_generation_needs_its_tokens_once() {
        let sizes = gpt2_small();
        // One new token behind a prompt: the prompt's forward, with logits at its end alone.
        let head = 2.0 * 768.0 * 50257.0;
        assert_eq!(sizes.generate_flops(8, 1), sizes.forward_flops(1, 8) - 7.0 * head);
    }
}
