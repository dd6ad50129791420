//! GPT-NeoX and Pythia.

use super::extras::mlp_width;
use super::families::{MOST_LAYERS, activation, divided, init_std, norm_eps, usual_scale};
use super::keys::Keys;
use super::rotary::{self, Head};
use super::{Dropout, Family, NormKind, Positions, TransformerConfig};

pub(super) fn read(keys: &mut Keys<'_>) -> TransformerConfig {
    let family = Family::NeoX;
    let width = keys.size(&["hidden_size"], 6144);
    let layers = keys.size_up_to(&["num_hidden_layers"], 44, MOST_LAYERS);
    let heads = keys.size(&["num_attention_heads"], 64);
    let head_dim = divided(keys, width, heads, ["hidden_size", "num_attention_heads"]);
    if keys.value(&["head_dim"]).is_some_and(|(_, given)| given.as_u64() != Some(head_dim as u64)) {
        keys.problem(|| {
            "`head_dim` other than the width over the heads is not supported for gpt_neox".to_string()
        });
    }
    let context = keys.size(&["max_position_embeddings"], 2048);
    let positions = Positions::Rotary(rotary::read(keys, &Head { family, head_dim, context }));
    let attention_bias = keys.flag("attention_bias", true);
    let hidden_dropout = keys.rate(&["hidden_dropout"], 0.0);
    TransformerConfig {
        family,
        vocab: keys.size(&["vocab_size"], 50432),
        context,
        width,
        layers,
        heads,
        kv_heads: heads,
        head_dim,
        mlp_width: mlp_width(keys, &["intermediate_size"], 24576),
        norm: NormKind::LayerNorm,
        norm_eps: norm_eps(keys, "layer_norm_eps", 1e-5),
        norm_weight_offset: 0.0,
        positions,
        activation: activation(keys, &["hidden_act"], "gelu"),
        gated_mlp: false,
        qkv_bias: attention_bias,
        attn_out_bias: attention_bias,
        mlp_bias: true,
        qk_norm: false,
        attention_scale: usual_scale(head_dim),
        attention_soft_cap: None,
        logit_soft_cap: None,
        windows: vec![None; layers],
        parallel_residual: keys.flag("use_parallel_residual", true),
        post_norms: false,
        embed_scale: None,
        tied_embeddings: keys.flag("tie_word_embeddings", false),
        dropout: Dropout {
            embedding: hidden_dropout,
            attention: keys.rate(&["attention_dropout"], 0.0),
            residual: hidden_dropout,
        },
        init_std: init_std(keys),
        bos: keys.token_ids("bos_token_id", &[0]).first().copied(),
        eos: keys.token_ids("eos_token_id", &[2]),
    }
}
