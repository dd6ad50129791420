//! What each family spells its own way, and the defaults of `transformers` for what a file leaves out.

use tenterhook_nn::ops::Activation;

use super::extras::mlp_width;
use super::keys::{Keys, LARGEST_SIZE};
use super::rotary::{self, Head};
use super::{Dropout, Family, NormKind, Positions, TransformerConfig, gpt2, neox, windows};
use crate::error::shown;

/// More blocks than any model has; a vector this long is still nothing.
pub(crate) const MOST_LAYERS: usize = 10_000;

pub(super) fn read(keys: &mut Keys<'_>, family: Family) -> TransformerConfig {
    match family {
        Family::Gpt2 => gpt2::read(keys),
        Family::NeoX => neox::read(keys),
        Family::Llama => llama(keys),
        Family::Mistral => mistral(keys),
        Family::Qwen2 => qwen2(keys),
        Family::Qwen3 => qwen3(keys),
        Family::Gemma2 => gemma2(keys),
        Family::Phi3 => phi3(keys),
    }
}

fn llama(keys: &mut Keys<'_>) -> TransformerConfig {
    let mut config = decoder(keys, Family::Llama, &Defaults::default());
    attention_bias(keys, &mut config);
    config.mlp_bias = keys.flag("mlp_bias", false);
    config
}

fn mistral(keys: &mut Keys<'_>) -> TransformerConfig {
    let defaults = Defaults { mlp_width: 14336, kv_heads: Some(8), context: 4096 * 32, ..Default::default() };
    let mut config = decoder(keys, Family::Mistral, &defaults);
    config.windows = windows::on_every_layer(keys, config.layers, Some(4096));
    config
}

fn qwen2(keys: &mut Keys<'_>) -> TransformerConfig {
    let mut config = decoder(keys, Family::Qwen2, &QWEN);
    config.qkv_bias = true;
    config.windows = windows::on_late_layers(keys, config.layers);
    config
}

fn qwen3(keys: &mut Keys<'_>) -> TransformerConfig {
    let mut config = decoder(keys, Family::Qwen3, &Defaults { head_dim: Some(128), ..QWEN });
    attention_bias(keys, &mut config);
    config.qk_norm = true;
    config.windows = windows::on_late_layers(keys, config.layers);
    config
}

fn gemma2(keys: &mut Keys<'_>) -> TransformerConfig {
    let defaults = Defaults {
        vocab: 256_000,
        width: 2304,
        mlp_width: 9216,
        layers: 26,
        heads: 8,
        kv_heads: Some(4),
        head_dim: Some(256),
        context: 8192,
        activation_keys: &["hidden_activation"],
        activation: "gelu_pytorch_tanh",
        tied: true,
        bos: &[2],
        eos: &[1],
        ..Default::default()
    };
    let mut config = decoder(keys, Family::Gemma2, &defaults);
    attention_bias(keys, &mut config);
    config.norm_weight_offset = 1.0;
    config.post_norms = true;
    config.embed_scale = Some((config.width as f64).sqrt());
    config.attention_scale = keys.positive(&["query_pre_attn_scalar"], 256.0).powf(-0.5);
    config.attention_soft_cap = keys.optional_positive("attn_logit_softcapping", Some(50.0));
    config.logit_soft_cap = keys.optional_positive("final_logit_softcapping", Some(30.0));
    config.windows = windows::on_even_layers(keys, config.layers);
    config
}

fn phi3(keys: &mut Keys<'_>) -> TransformerConfig {
    let defaults = Defaults {
        vocab: 32_064,
        width: 3072,
        mlp_width: 8192,
        context: 4096,
        norm_eps: 1e-5,
        eos: &[32_000],
        ..Default::default()
    };
    let mut config = decoder(keys, Family::Phi3, &defaults);
    // `embd_pdrop` is in every file, but transformers' model never applies it.
    config.dropout.residual = keys.rate(&["resid_pdrop"], 0.0);
    config.windows = windows::on_every_layer(keys, config.layers, None);
    config
}

/// The families that bias attention at all bias all four of its projections.
fn attention_bias(keys: &mut Keys<'_>, config: &mut TransformerConfig) {
    config.qkv_bias = keys.flag("attention_bias", false);
    config.attn_out_bias = config.qkv_bias;
}

/// What `transformers` assumes for keys that a file leaves out. The defaults of the defaults are Llama's.
struct Defaults {
    vocab: usize,
    width: usize,
    mlp_width: usize,
    layers: usize,
    heads: usize,
    /// `None`: as many as there are heads.
    kv_heads: Option<usize>,
    /// `None`: the width over the heads.
    head_dim: Option<usize>,
    context: usize,
    norm_eps: f64,
    activation_keys: &'static [&'static str],
    activation: &'static str,
    tied: bool,
    bos: &'static [u32],
    eos: &'static [u32],
}

const LLAMA: Defaults = Defaults {
    vocab: 32_000,
    width: 4096,
    mlp_width: 11_008,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    context: 2048,
    norm_eps: 1e-6,
    activation_keys: &["hidden_act"],
    activation: "silu",
    tied: false,
    bos: &[1],
    eos: &[2],
};

const QWEN: Defaults = Defaults {
    vocab: 151_936,
    mlp_width: 22_016,
    kv_heads: Some(32),
    context: 32_768,
    bos: &[],
    eos: &[],
    ..LLAMA
};

impl Default for Defaults {
    fn default() -> Self {
        LLAMA
    }
}

/// The spelling shared by Llama and everything after it.
fn decoder(keys: &mut Keys<'_>, family: Family, defaults: &Defaults) -> TransformerConfig {
    let width = keys.size(&["hidden_size"], defaults.width);
    let layers = keys.size_up_to(&["num_hidden_layers"], defaults.layers, MOST_LAYERS);
    let heads = keys.size(&["num_attention_heads"], defaults.heads);
    let kv_default = defaults.kv_heads.filter(|_| !keys.is_null("num_key_value_heads")).unwrap_or(heads);
    let kv_heads = keys.size(&["num_key_value_heads"], kv_default);
    let head_dim = match defaults.head_dim {
        Some(default) => keys.size(&["head_dim"], default),
        None if keys.value(&["head_dim"]).is_some() => keys.size(&["head_dim"], LARGEST_SIZE),
        None => divided(keys, width, heads, ["hidden_size", "num_attention_heads"]),
    };
    let context = keys.size(&["max_position_embeddings"], defaults.context);
    let positions = Positions::Rotary(rotary::read(keys, &Head { family, head_dim, context }));
    TransformerConfig {
        family,
        vocab: keys.size(&["vocab_size"], defaults.vocab),
        context,
        width,
        layers,
        heads,
        kv_heads,
        head_dim,
        mlp_width: mlp_width(keys, &["intermediate_size"], defaults.mlp_width),
        norm: NormKind::RmsNorm,
        norm_eps: norm_eps(keys, "rms_norm_eps", defaults.norm_eps),
        norm_weight_offset: 0.0,
        positions,
        activation: activation(keys, defaults.activation_keys, defaults.activation),
        gated_mlp: true,
        qkv_bias: false,
        attn_out_bias: false,
        mlp_bias: false,
        qk_norm: false,
        attention_scale: usual_scale(head_dim),
        attention_soft_cap: None,
        logit_soft_cap: None,
        windows: vec![None; layers],
        parallel_residual: false,
        post_norms: false,
        embed_scale: None,
        tied_embeddings: keys.flag("tie_word_embeddings", defaults.tied),
        dropout: Dropout { attention: keys.rate(&["attention_dropout"], 0.0), ..Default::default() },
        init_std: init_std(keys),
        bos: keys.token_ids("bos_token_id", defaults.bos).first().copied(),
        eos: keys.token_ids("eos_token_id", defaults.eos),
    }
}

pub(super) fn usual_scale(head_dim: usize) -> f64 {
    (head_dim.max(1) as f64).powf(-0.5)
}

pub(super) fn norm_eps(keys: &mut Keys<'_>, name: &'static str, default: f64) -> f64 {
    keys.number(&[name], default, "a number from 0 to 1", |eps| (0.0..=1.0).contains(&eps))
}

pub(super) fn init_std(keys: &mut Keys<'_>) -> f64 {
    keys.number(&["initializer_range"], 0.02, "a number from 0 to 1", |std| (0.0..=1.0).contains(&std))
}

/// The size of a head that is not given.
pub(super) fn divided(keys: &mut Keys<'_>, width: usize, heads: usize, names: [&str; 2]) -> usize {
    if heads == 0 || width == 0 {
        return 0;
    }
    if !width.is_multiple_of(heads) {
        let [width_name, heads_name] = names;
        keys.problem(|| format!("`{width_name}` {width} is not a multiple of `{heads_name}` {heads}"));
        return 0;
    }
    width / heads
}

pub(super) fn activation(keys: &mut Keys<'_>, names: &[&'static str], default: &'static str) -> Activation {
    let Some(name) = keys.text(names, default) else { return Activation::Gelu };
    Activation::parse(name).unwrap_or_else(|| {
        keys.problem(|| format!("activation {} (`{}`) is not supported", shown(name), names.join("`, `")));
        Activation::Gelu
    })
}
