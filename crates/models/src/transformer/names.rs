//! What each family calls its modules: the paths of its weights on disk.

use tenterhook_nn::ops::WeightLayout;

use crate::config::{Family, TransformerConfig};

/// How queries, keys and values come out of the projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QkvNames {
    /// One product: all query heads, then all key heads, then all value heads.
    Stacked(&'static str),
    /// One product: query, key and value of the first head, then of the second, ...
    PerHead(&'static str),
    /// Three products.
    Separate([&'static str; 3]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MlpNames {
    Plain { up: &'static str, down: &'static str },
    Gated { gate: &'static str, up: &'static str, down: &'static str },
    GatedFused { gate_up: &'static str, down: &'static str },
}

/// The names of all modules of one family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    pub(super) root: &'static str,
    pub(super) embed: &'static str,
    pub(super) positions: &'static str,
    pub(super) blocks: &'static str,
    pub(super) final_norm: &'static str,
    pub(super) head: &'static str,
    pub(super) ln1: &'static str,
    pub(super) attn: &'static str,
    pub(super) ln1_post: &'static str,
    pub(super) ln2: &'static str,
    pub(super) mlp_path: &'static str,
    pub(super) ln2_post: &'static str,
    pub(super) qkv: QkvNames,
    pub(super) attn_out: &'static str,
    pub(super) mlp: MlpNames,
    pub(super) layout: WeightLayout,
}

const LLAMA: Names = Names {
    root: "model",
    embed: "embed_tokens",
    positions: "",
    blocks: "layers",
    final_norm: "norm",
    head: "lm_head",
    ln1: "input_layernorm",
    attn: "self_attn",
    ln1_post: "",
    ln2: "post_attention_layernorm",
    mlp_path: "mlp",
    ln2_post: "",
    qkv: QkvNames::Separate(["q_proj", "k_proj", "v_proj"]),
    attn_out: "o_proj",
    mlp: MlpNames::Gated { gate: "gate_proj", up: "up_proj", down: "down_proj" },
    layout: WeightLayout::OutIn,
};

const GPT2: Names = Names {
    root: "transformer",
    embed: "wte",
    positions: "wpe",
    blocks: "h",
    final_norm: "ln_f",
    ln1: "ln_1",
    attn: "attn",
    ln2: "ln_2",
    qkv: QkvNames::Stacked("c_attn"),
    attn_out: "c_proj",
    mlp: MlpNames::Plain { up: "c_fc", down: "c_proj" },
    layout: WeightLayout::InOut,
    ..LLAMA
};

const NEOX: Names = Names {
    root: "gpt_neox",
    embed: "embed_in",
    final_norm: "final_layer_norm",
    head: "embed_out",
    attn: "attention",
    qkv: QkvNames::PerHead("query_key_value"),
    attn_out: "dense",
    mlp: MlpNames::Plain { up: "dense_h_to_4h", down: "dense_4h_to_h" },
    ..LLAMA
};

const GEMMA2: Names = Names {
    ln1_post: "post_attention_layernorm",
    ln2: "pre_feedforward_layernorm",
    ln2_post: "post_feedforward_layernorm",
    ..LLAMA
};

const PHI3: Names = Names {
    qkv: QkvNames::Stacked("qkv_proj"),
    mlp: MlpNames::GatedFused { gate_up: "gate_up_proj", down: "down_proj" },
    ..LLAMA
};

impl Names {
    pub(super) fn of(config: &TransformerConfig) -> &'static Names {
        match config.family {
            Family::Gpt2 => &GPT2,
            Family::NeoX => &NEOX,
            Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 => &LLAMA,
            Family::Gemma2 => &GEMMA2,
            Family::Phi3 => &PHI3,
        }
    }
}
