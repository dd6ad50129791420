//! Descriptions of models to train from scratch.

use tenterhook_nn::ops::{Activation, RopeScaling, RopeSpec};

use super::families::{MOST_LAYERS, usual_scale};
use super::{Dropout, Family, NormKind, Positions, TransformerConfig};

impl TransformerConfig {
    /// A GPT-2 of the usual proportions: MLP four times as wide, tied embeddings.
    ///
    /// Dropout is off, as is common now that models see their data once; set [`dropout`](Self::dropout) to change that.
    ///
    /// ```
    /// use tenterhook_models::config::TransformerConfig;
    /// let config = TransformerConfig::gpt2(50257, 1024, 768, 12, 12);
    /// assert_eq!((config.head_dim, config.mlp_width), (64, 3072));
    /// config.validate()?;
    /// # Ok::<(), tenterhook_models::error::ConfigError>(())
    /// ```
    pub fn gpt2(vocab: usize, context: usize, width: usize, layers: usize, heads: usize) -> Self {
        // With no heads at all there is no size; `validate` says so.
        let head_dim = width.checked_div(heads).unwrap_or(0);
        Self {
            family: Family::Gpt2,
            vocab,
            context,
            width,
            layers,
            heads,
            kv_heads: heads,
            head_dim,
            mlp_width: width.saturating_mul(4),
            norm: NormKind::LayerNorm,
            norm_eps: 1e-5,
            norm_weight_offset: 0.0,
            positions: Positions::Learned,
            activation: Activation::GeluTanh,
            gated_mlp: false,
            qkv_bias: true,
            attn_out_bias: true,
            mlp_bias: true,
            qk_norm: false,
            attention_scale: usual_scale(head_dim),
            attention_soft_cap: None,
            logit_soft_cap: None,
            windows: vec![None; layers.min(MOST_LAYERS)],
            parallel_residual: false,
            post_norms: false,
            embed_scale: None,
            tied_embeddings: true,
            dropout: Dropout::default(),
            init_std: 0.02,
            bos: None,
            eos: Vec::new(),
        }
    }

    /// A GPT-NeoX of the usual proportions: a quarter of each head rotated, parallel residual, untied embeddings.
    pub fn neox(vocab: usize, context: usize, width: usize, layers: usize, heads: usize) -> Self {
        let config = Self::gpt2(vocab, context, width, layers, heads);
        let rotated = (config.head_dim / 8 * 2).max(2);
        Self {
            family: Family::NeoX,
            positions: rotary(rotated),
            activation: Activation::Gelu,
            parallel_residual: true,
            tied_embeddings: false,
            ..config
        }
    }

    /// A Llama of the usual proportions: gated MLP 8/3 as wide, one kv head per head, untied embeddings, no biases.
    pub fn llama(vocab: usize, context: usize, width: usize, layers: usize, heads: usize) -> Self {
        let config = Self::gpt2(vocab, context, width, layers, heads);
        Self {
            family: Family::Llama,
            mlp_width: (width.saturating_mul(8) / 3).next_multiple_of(8),
            norm: NormKind::RmsNorm,
            positions: rotary(config.head_dim),
            activation: Activation::Silu,
            gated_mlp: true,
            qkv_bias: false,
            attn_out_bias: false,
            mlp_bias: false,
            tied_embeddings: false,
            ..config
        }
    }
}

fn rotary(dim: usize) -> Positions {
    Positions::Rotary(RopeSpec { dim, theta: 10_000.0, scaling: RopeScaling::None })
}
