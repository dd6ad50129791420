mod extras;

use proptest::prelude::*;
use serde_json::{Value, json};
use tenterhook_nn::ops::{RopeScaling, RopeSpec};

use super::{Family, Positions, TransformerConfig};

fn read(json: Value) -> Result<TransformerConfig, String> {
    TransformerConfig::from_hf(&json).map_err(|error| error.to_string())
}

#[test]
fn what_a_family_cannot_say_is_refused() {
    let refused = |config: TransformerConfig, field: &str| {
        let problem = config.validate().unwrap_err().to_string();
        assert!(problem.contains(field), "{problem}");
    };
    refused(
        TransformerConfig { attention_scale: 0.5, ..TransformerConfig::gpt2(61, 16, 32, 2, 4) },
        "attention_scale",
    );
    refused(
        TransformerConfig { gated_mlp: false, ..TransformerConfig::llama(61, 16, 32, 2, 4) },
        "gated_mlp",
    );
    refused(
        TransformerConfig { post_norms: true, ..TransformerConfig::neox(61, 16, 32, 2, 4) },
        "post_norms",
    );
}

fn with(mut base: Value, more: Value) -> Value {
    if let (Value::Object(base), Value::Object(more)) = (&mut base, more) {
        base.extend(more);
    }
    base
}

fn refused(json: Value, expected: &[&str]) {
    let problem = read(json.clone()).unwrap_err();
    for expected in expected {
        assert!(problem.contains(expected), "{json}\n{problem}\nshould contain {expected}");
    }
}

fn tiny(model_type: &str) -> Value {
    json!({
        "model_type": model_type, "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40,
        "max_position_embeddings": 64,
    })
}

#[test]
fn absurd_sizes_are_refused_by_name() {
    let keys = [
        ("gpt2", ["n_layer", "n_embd", "vocab_size", "n_head"]),
        ("llama", ["num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads"]),
        ("gpt_neox", ["num_hidden_layers", "hidden_size", "max_position_embeddings", "intermediate_size"]),
        ("gemma2", ["num_hidden_layers", "head_dim", "vocab_size", "num_key_value_heads"]),
    ];
    let absurd = [
        json!(1e12),
        json!(1_000_000_000_000_u64),
        json!(1_u64 << 60),
        json!(1_u64 << 40),
        json!(u64::MAX),
        json!(-1),
        json!(0),
        json!(12.5),
        json!(12.0),
        json!("768"),
        json!([768]),
        json!({}),
        json!(true),
    ];
    for (model_type, keys) in keys {
        for key in keys {
            for value in &absurd {
                let mut json = json!({"model_type": model_type});
                json[key] = value.clone();
                refused(json, &[key, "must be a whole number"]);
            }
        }
    }
}

#[test]
fn sizes_that_are_absurd_together_are_refused() {
    let huge = json!(1_u64 << 31);
    refused(json!({"model_type": "gpt2", "n_embd": huge, "n_head": 1, "vocab_size": huge}), &["parameters"]);
    refused(with(tiny("llama"), json!({"num_attention_heads": huge, "head_dim": 64})), &["heads of size"]);
    refused(json!({"model_type": "llama", "num_hidden_layers": 10_001}), &["from 1 to 10000"]);
}

#[test]
fn sizes_must_divide() {
    refused(json!({"model_type": "gpt2", "n_head": 7}), &["`n_embd` 768", "`n_head` 7"]);
    refused(json!({"model_type": "gpt_neox", "num_attention_heads": 7}), &["`hidden_size` 6144"]);
    refused(with(tiny("llama"), json!({"num_key_value_heads": 3})), &["`num_key_value_heads` 3"]);
    refused(with(tiny("qwen3"), json!({"head_dim": 7})), &["7 of the 7 dimensions", "even"]);
    // A head size that is given need not be the width over the heads.
    assert_eq!(
        read(with(tiny("llama"), json!({"hidden_size": 30, "head_dim": 6}))).unwrap().attention_width(),
        24
    );
}

#[test]
fn every_problem_is_reported_at_once() {
    let json = json!({
        "model_type": "llama", "hidden_size": -1, "hidden_act": "mish", "vocab_size": "many",
        "rope_scaling": {"type": "dynamic", "factor": 2.0}, "quantization_config": {"bits": 4},
        "attention_dropout": 1.5, "rms_norm_eps": "tiny", "tie_word_embeddings": "yes", "eos_token_id": [1, -2],
    });
    refused(
        json,
        &[
            "9 problems",
            "hidden_size",
            "mish",
            "vocab_size",
            "`dynamic`",
            "quantization_config",
            "attention_dropout",
            "rms_norm_eps",
            "tie_word_embeddings",
            "eos_token_id",
        ],
    );
}

#[test]
fn what_would_change_the_numbers_is_refused_by_name() {
    refused(
        json!({"model_type": "gpt-neox"}),
        &["`gpt-neox`", "gpt2, gpt_neox, llama", "did you mean `gpt_neox`"],
    );
    refused(json!({"model_type": "t5"}), &["`t5` is not supported"]);
    refused(json!({"model_type": 5}), &["`model_type` must be a text, found 5"]);
    refused(json!({}), &["`model_type` is missing"]);
    refused(json!([1, 2]), &["must be a JSON object, found a list of 2 entries"]);
    refused(json!({"model_type": "gpt2", "add_cross_attention": true}), &["add_cross_attention"]);
    refused(
        json!({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true}),
        &["scale_attn_by_inverse_layer_idx"],
    );
    refused(json!({"model_type": "gpt2", "activation_function": "swiglu"}), &["activation `swiglu`"]);
    refused(
        with(tiny("gemma2"), json!({"use_bidirectional_attention": true})),
        &["use_bidirectional_attention"],
    );
    refused(with(tiny("gemma2"), json!({"attn_logit_softcapping": 0.0})), &["attn_logit_softcapping"]);
    refused(with(tiny("llama"), json!({"partial_rotary_factor": 0.5})), &["partial_rotary_factor"]);
    refused(
        with(tiny("phi3"), json!({"rope_scaling": {"type": "linear", "factor": 2}})),
        &["`linear`", "phi3"],
    );
    refused(
        with(tiny("phi3"), json!({"rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1]}})),
        &["long_factor"],
    );
    let short = json!({"type": "su", "short_factor": [1, 1], "long_factor": [1, 1, 1, 1]});
    refused(with(tiny("phi3"), json!({"rope_scaling": short})), &["`short_factor` has 2 entries", "4 pairs"]);
    refused(with(tiny("llama"), json!({"rope_scaling": {"rope_type": "linear"}})), &["`factor` is missing"]);
    refused(with(tiny("llama"), json!({"rope_scaling": 4})), &["`rope_scaling` must be an object"]);
    refused(with(tiny("llama"), json!({"rope_theta": 0})), &["rope_theta"]);
    refused(
        with(tiny("qwen3"), json!({"layer_types": ["full_attention"]})),
        &["`layer_types` has 1 entries for 4 layers"],
    );
    let sliding =
        json!({"layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention"]});
    refused(with(tiny("qwen2"), sliding), &["no `sliding_window`"]);
    refused(with(tiny("gemma2"), json!({"layer_types": ["chunked_attention"]})), &["layer_types"]);
    refused(with(tiny("mistral"), json!({"sliding_window": 0})), &["sliding_window"]);
}

#[test]
fn what_changes_nothing_is_ignored() {
    let plain = read(json!({"model_type": "gpt2"})).unwrap();
    let more = json!({
        "model_type": "gpt2", "reorder_and_upcast_attn": true, "n_ctx": 7, "torch_dtype": "bfloat16",
        "auto_map": {"AutoModel": "evil.py"}, "task_specific_params": {}, "n_inner": null, "anything": [1],
    });
    assert_eq!(read(more).unwrap(), plain);
}

#[test]
fn old_and_new_spellings_mean_the_same() {
    let llama = |more| read(with(tiny("llama"), more)).unwrap();
    let new = llama(json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}}));
    assert_eq!(llama(json!({"rope_theta": 50, "rope_scaling": {"type": "linear", "factor": 2}})), new);
    assert_eq!(
        llama(json!({"rope_theta": 50.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}})),
        new
    );
    let neox = |more| read(with(json!({"model_type": "gpt_neox"}), more)).unwrap();
    let new = neox(
        json!({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}}),
    );
    assert_eq!(neox(json!({"rotary_emb_base": 500, "rotary_pct": 0.5})), new);
    let gpt2 = |more| read(with(json!({"model_type": "gpt2"}), more)).unwrap();
    let named = json!({"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "max_position_embeddings": 9});
    assert_eq!(gpt2(named), gpt2(json!({"n_embd": 64, "n_layer": 3, "n_head": 2, "n_positions": 9})));
}

#[test]
fn windows_follow_each_family() {
    let windows = |model_type, more| read(with(tiny(model_type), more)).unwrap().windows;
    let (on, off) = (Some(5), None);
    assert_eq!(windows("mistral", json!({"sliding_window": 5})), [on; 4]);
    assert_eq!(windows("mistral", json!({"sliding_window": null})), [off; 4]);
    assert_eq!(windows("mistral", json!({})), [Some(4096); 4]);
    assert_eq!(windows("phi3", json!({})), [off; 4]);
    assert_eq!(windows("phi3", json!({"sliding_window": 5})), [on; 4]);
    assert_eq!(windows("gemma2", json!({"sliding_window": 5})), [on, off, on, off]);
    assert_eq!(windows("qwen2", json!({"sliding_window": 5, "max_window_layers": 0})), [off; 4]);
    let late = json!({"use_sliding_window": true, "sliding_window": 5, "max_window_layers": 3});
    assert_eq!(windows("qwen2", late.clone()), [off, off, off, on]);
    let listed = json!({"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]});
    assert_eq!(windows("qwen3", with(late, listed)), [on, off, on, on]);
    assert_eq!(windows("llama", json!({"sliding_window": 5})), [off; 4]);
}

#[test]
fn the_original_context_is_found_wherever_it_stands() {
    let original = |model_type, more| match read(with(tiny(model_type), more)).unwrap().positions {
        Positions::Rotary(RopeSpec {
            scaling: RopeScaling::LongRope { original_context, max_context, .. },
            ..
        }) => {
            assert_eq!(max_context, 64);
            original_context
        }
        Positions::Rotary(RopeSpec { scaling: RopeScaling::Yarn { original_context, .. }, .. }) => {
            original_context
        }
        other => panic!("{other:?}"),
    };
    let factors = [1.0, 1.5, 2.0, 2.5];
    let long = json!({"type": "su", "short_factor": factors, "long_factor": factors, "original_max_position_embeddings": 8});
    // Phi-3 has it outside, and transformers assumes 4096 where it is not.
    assert_eq!(original("phi3", json!({"rope_scaling": long, "original_max_position_embeddings": 16})), 16);
    assert_eq!(original("phi3", json!({"rope_scaling": long})), 4096);
    let yarn = |more| json!({"rope_scaling": with(json!({"rope_type": "yarn", "factor": 4.0}), more)});
    assert_eq!(original("qwen2", yarn(json!({}))), 64);
    assert_eq!(original("qwen2", yarn(json!({"original_max_position_embeddings": 16}))), 16);
}

/// Every family with the features that only some files use.
fn unusual() -> Vec<Value> {
    let factors = [1.0, 1.5, 2.0];
    vec![
        json!({"model_type": "gpt2", "scale_attn_weights": false, "eos_token_id": [3, 4], "bos_token_id": null}),
        json!({"model_type": "gpt2", "tie_word_embeddings": false, "activation_function": "relu", "n_inner": 100}),
        json!({"model_type": "gpt_neox", "attention_bias": false, "use_parallel_residual": false, "rotary_pct": 1.0}),
        with(
            tiny("llama"),
            json!({"attention_bias": true, "mlp_bias": true, "rope_scaling": {
            "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
            "original_max_position_embeddings": 32}}),
        ),
        with(
            tiny("llama"),
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 16, "truncate": false}}),
        ),
        with(tiny("mistral"), json!({"sliding_window": null, "num_key_value_heads": null})),
        with(tiny("qwen2"), json!({"use_sliding_window": true, "max_window_layers": 1, "sliding_window": 9})),
        with(tiny("qwen3"), json!({"attention_bias": true, "head_dim": 16})),
        with(tiny("gemma2"), json!({"query_pre_attn_scalar": 144, "attn_logit_softcapping": null})),
        with(
            tiny("phi3"),
            json!({"partial_rotary_factor": 0.75, "original_max_position_embeddings": 16, "resid_pdrop": 0.1,
            "rope_scaling": {"type": "longrope", "short_factor": factors, "long_factor": factors}}),
        ),
    ]
}

#[test]
fn what_is_written_is_read_back() {
    let defaults = Family::ALL.map(|family| json!({"model_type": family.model_type()}));
    for json in unusual().into_iter().chain(defaults) {
        let config = read(json).unwrap();
        config.validate().unwrap();
        assert_eq!(read(config.to_hf()).unwrap(), config);
    }
    for make in [TransformerConfig::gpt2, TransformerConfig::neox, TransformerConfig::llama] {
        let config = make(61, 32, 24, 2, 3);
        config.validate().unwrap();
        assert_eq!(read(config.to_hf()).unwrap(), config);
        for odd in
            [make(0, 0, 0, 0, 0), make(usize::MAX, 1, usize::MAX, usize::MAX, 1), make(61, 32, 24, 2, 0)]
        {
            odd.validate().unwrap_err();
        }
    }
}

/// JSON of every shape, including numbers at the edges.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0u64..40).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec![
            "default", "linear", "llama3", "yarn", "longrope", "su", "gelu", "silu", "\u{1b}"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 16, 4, |inner| prop::collection::vec(inner, 0..5).prop_map(Value::from))
}

const KEYS: [&str; 35] = [
    "tenterhook",
    "vocab_size",
    "hidden_size",
    "n_embd",
    "n_layer",
    "n_head",
    "n_inner",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
    "n_positions",
    "rms_norm_eps",
    "rope_theta",
    "rotary_pct",
    "rotary_emb_base",
    "partial_rotary_factor",
    "hidden_act",
    "sliding_window",
    "layer_types",
    "use_sliding_window",
    "max_window_layers",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "rope_scaling",
    "rope_parameters",
    "original_max_position_embeddings",
    "eos_token_id",
    "bos_token_id",
    "attention_dropout",
    "attention_bias",
    "tie_word_embeddings",
    "initializer_range",
];
const ROPE_KEYS: [&str; 12] = [
    "type",
    "rope_type",
    "factor",
    "rope_theta",
    "partial_rotary_factor",
    "low_freq_factor",
    "high_freq_factor",
    "short_factor",
    "long_factor",
    "original_max_position_embeddings",
    "attention_factor",
    "mscale",
];

fn object(keys: &'static [&'static str]) -> impl Strategy<Value = Value> {
    prop::collection::hash_map(prop::sample::select(keys), any_json(), 0..6)
        .prop_map(|map| map.into_iter().map(|(key, value)| (key.to_string(), value)).collect::<Value>())
}

proptest! {
    #[test]
    fn no_json_makes_the_reader_panic(family in 0..8usize, more in object(&KEYS), rope in object(&ROPE_KEYS), tiny_sizes: bool) {
        let model_type = Family::ALL[family].model_type();
        let base = if tiny_sizes { tiny(model_type) } else { json!({"model_type": model_type}) };
        let json = with(with(base, json!({"rope_parameters": rope})), more);
        if let Ok(config) = TransformerConfig::from_hf(&json) {
            prop_assert!(config.validate().is_ok());
            prop_assert!(TransformerConfig::from_hf(&config.to_hf()).is_ok());
        }
    }
}
