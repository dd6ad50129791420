//! A description as the `config.json` of its family.

use serde_json::{Value, json};
use tenterhook_nn::ops::{Activation, RopeScaling};

use super::{Family, Positions, TransformerConfig, extras, rotary};

impl TransformerConfig {
    /// A `config.json` that `transformers` loads and that [`from_hf`](Self::from_hf) reads back to the same description.
    ///
    /// What the family cannot say goes under a key of its own, `tenterhook`. Where that changes the numbers (blocks without an
    /// MLP), the `model_type` is `tenterhook_llama` and the like, which `transformers` refuses instead of loading another model.
    ///
    /// ```
    /// use tenterhook_models::config::TransformerConfig;
    /// let config = TransformerConfig::llama(256, 64, 48, 2, 4);
    /// assert_eq!(TransformerConfig::from_hf(&config.to_hf())?, config);
    /// # Ok::<(), tenterhook_models::error::ConfigError>(())
    /// ```
    pub fn to_hf(&self) -> Value {
        let mut json = match self.family {
            Family::Gpt2 => self.gpt2_keys(),
            Family::NeoX => self.neox_keys(),
            _ => self.decoder_keys(),
        };
        let shared = json!({
            "architectures": [self.family.architecture()],
            "model_type": self.family.model_type(),
            "dtype": "float32",
            "vocab_size": self.vocab,
            "tie_word_embeddings": self.tied_embeddings,
            "initializer_range": self.init_std,
            "bos_token_id": self.bos,
            "eos_token_id": match self.eos.as_slice() {
                [] => Value::Null,
                [only] => json!(only),
                several => json!(several),
            },
            "pad_token_id": null,
            "use_cache": true,
        });
        add(&mut json, shared);
        if let Positions::Rotary(rope) = &self.positions {
            json["rope_parameters"] = rotary::write(rope, self.family, self.head_dim);
        }
        extras::write(self, &mut json);
        json
    }

    fn gpt2_keys(&self) -> Value {
        json!({
            "n_positions": self.context,
            "n_embd": self.width,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_inner": self.mlp_width,
            "activation_function": self.activation_name(),
            "layer_norm_epsilon": self.norm_eps,
            "embd_pdrop": self.dropout.embedding,
            "attn_pdrop": self.dropout.attention,
            "resid_pdrop": self.dropout.residual,
            "scale_attn_weights": self.attention_scale != 1.0,
        })
    }

    fn neox_keys(&self) -> Value {
        json!({
            "hidden_size": self.width,
            "intermediate_size": self.mlp_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "max_position_embeddings": self.context,
            "hidden_act": self.activation_name(),
            "layer_norm_eps": self.norm_eps,
            "attention_bias": self.qkv_bias,
            "attention_dropout": self.dropout.attention,
            "hidden_dropout": self.dropout.residual,
            "use_parallel_residual": self.parallel_residual,
        })
    }

    fn decoder_keys(&self) -> Value {
        let mut json = json!({
            "hidden_size": self.width,
            "intermediate_size": self.mlp_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context,
            "rms_norm_eps": self.norm_eps,
            "attention_dropout": self.dropout.attention,
        });
        let activation_key = if self.family == Family::Gemma2 { "hidden_activation" } else { "hidden_act" };
        json[activation_key] = json!(self.activation_name());
        // `from_hf` gives every layer of a model the same window or none.
        let window = self.windows.iter().flatten().next();
        let layer_types: Vec<&str> = self
            .windows
            .iter()
            .map(|window| if window.is_some() { "sliding_attention" } else { "full_attention" })
            .collect();
        match self.family {
            Family::Llama => {
                add(&mut json, json!({"attention_bias": self.qkv_bias, "mlp_bias": self.mlp_bias}));
            }
            Family::Qwen2 | Family::Qwen3 => {
                let sliding = json!({
                    "use_sliding_window": window.is_some(),
                    "sliding_window": window,
                    "layer_types": layer_types,
                });
                add(&mut json, sliding);
                if self.family == Family::Qwen3 {
                    json["attention_bias"] = json!(self.qkv_bias);
                }
            }
            Family::Gemma2 => {
                let more = json!({
                    "attention_bias": self.qkv_bias,
                    "sliding_window": window,
                    "layer_types": layer_types,
                    "query_pre_attn_scalar": whole(self.attention_scale.powi(-2)),
                    "attn_logit_softcapping": self.attention_soft_cap,
                    "final_logit_softcapping": self.logit_soft_cap,
                });
                add(&mut json, more);
            }
            Family::Phi3 => {
                add(&mut json, json!({"resid_pdrop": self.dropout.residual, "sliding_window": window}));
                if let Positions::Rotary(rope) = &self.positions
                    && let RopeScaling::LongRope { original_context, .. } = &rope.scaling
                {
                    json["original_max_position_embeddings"] = json!(original_context);
                }
            }
            Family::Mistral => json["sliding_window"] = json!(window),
            Family::Gpt2 | Family::NeoX => {}
        }
        json
    }

    /// The family's spelling.
    fn activation_name(&self) -> &'static str {
        match self.activation {
            Activation::GeluTanh if self.family == Family::Gpt2 => "gelu_new",
            other => activation_name(other),
        }
    }
}

/// What `transformers` calls an activation now; [`Activation::parse`] reads it.
pub(super) fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
        Activation::Silu => "silu",
        Activation::Relu => "relu",
        Activation::QuickGelu => "quick_gelu",
    }
}

fn add(json: &mut Value, more: Value) {
    if let (Value::Object(json), Value::Object(more)) = (json, more) {
        json.extend(more);
    }
}

/// A number that was a whole one before it went through a square root.
fn whole(number: f64) -> Value {
    if (number - number.round()).abs() < 1e-6 { json!(number.round() as u64) } else { json!(number) }
}
