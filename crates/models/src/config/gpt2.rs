//! GPT-2.

use super::extras::mlp_width;
use super::families::{MOST_LAYERS, activation, divided, init_std, norm_eps, usual_scale};
use super::keys::Keys;
use super::{Dropout, Family, NormKind, Positions, TransformerConfig};

pub(super) fn read(keys: &mut Keys<'_>) -> TransformerConfig {
    let width = keys.size(&["n_embd", "hidden_size"], 768);
    let layers = keys.size_up_to(&["n_layer", "num_hidden_layers"], 12, MOST_LAYERS);
    let heads = keys.size(&["n_head", "num_attention_heads"], 12);
    let head_dim = divided(keys, width, heads, ["n_embd", "n_head"]);
    if keys.flag("scale_attn_by_inverse_layer_idx", false) {
        keys.problem(|| "`scale_attn_by_inverse_layer_idx` is not supported".to_string());
    }
    TransformerConfig {
        family: Family::Gpt2,
        vocab: keys.size(&["vocab_size"], 50257),
        context: keys.size(&["n_positions", "max_position_embeddings"], 1024),
        width,
        layers,
        heads,
        kv_heads: heads,
        head_dim,
        mlp_width: mlp_width(keys, &["n_inner"], width.saturating_mul(4)),
        norm: NormKind::LayerNorm,
        norm_eps: norm_eps(keys, "layer_norm_epsilon", 1e-5),
        norm_weight_offset: 0.0,
        positions: Positions::Learned,
        activation: activation(keys, &["activation_function"], "gelu_new"),
        gated_mlp: false,
        qkv_bias: true,
        attn_out_bias: true,
        mlp_bias: true,
        qk_norm: false,
        attention_scale: if keys.flag("scale_attn_weights", true) { usual_scale(head_dim) } else { 1.0 },
        attention_soft_cap: None,
        logit_soft_cap: None,
        windows: vec![None; layers],
        parallel_residual: false,
        post_norms: false,
        embed_scale: None,
        tied_embeddings: keys.flag("tie_word_embeddings", true),
        dropout: Dropout {
            embedding: keys.rate(&["embd_pdrop"], 0.1),
            attention: keys.rate(&["attn_pdrop"], 0.1),
            residual: keys.rate(&["resid_pdrop"], 0.1),
        },
        init_std: init_std(keys),
        bos: keys.token_ids("bos_token_id", &[50256]).first().copied(),
        eos: keys.token_ids("eos_token_id", &[50256]),
    }
}
