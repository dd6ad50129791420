//! What no family's `config.json` has a word for: blocks without an MLP, and dropout where the family has none.
//!
//! Both stand under one key, `tenterhook`, that is written only when it is needed. Dropout changes nothing but training, so a file
//! that says more about it keeps its `model_type`. A model without MLPs gets a `model_type` of its own: under the family's,
//! `transformers` would load it with freshly initialised MLPs.

use serde_json::{Map, Value, json};

use super::keys::Keys;
use super::{Dropout, Family, TransformerConfig};

const KEY: &str = "tenterhook";
const PREFIX: &str = "tenterhook_";
/// Every spelling of a rate in the files of some family.
const RATES: [&str; 5] = ["embd_pdrop", "attn_pdrop", "resid_pdrop", "attention_dropout", "hidden_dropout"];

/// The family's own `model_type`, whether or not it is written as one that `transformers` does not know.
pub(super) fn family_model_type(model_type: &str) -> &str {
    model_type.strip_prefix(PREFIX).unwrap_or(model_type)
}

/// The width of the MLP, 0 where there is none. A 0 that the file does not explain is an error.
pub(super) fn mlp_width(keys: &mut Keys<'_>, names: &[&'static str], default: usize) -> usize {
    let extra = keys.value(&[KEY]).and_then(|(_, extra)| extra.get("attention_only"));
    match extra == Some(&Value::Bool(true)) {
        true => 0,
        false => keys.size(names, default),
    }
}

/// Adds what stands under the key to what the family's own keys say.
pub(super) fn read(keys: &mut Keys<'_>, config: &mut TransformerConfig) {
    let Some(object) = keys.object(KEY) else { return };
    let mut extra = Keys::new(object, "tenterhook.");
    extra.allow_only(&["attention_only", "dropout"]);
    if extra.flag("attention_only", false) {
        let family = config.family.model_type();
        if keys.text(&["model_type"], "") == Some(family) {
            keys.problem(|| {
                format!(
                    "`tenterhook.attention_only` needs the `model_type` `{PREFIX}{family}`: as `{family}`, \
                     transformers would load the model with MLPs that were never trained"
                )
            });
        }
    }
    if let Some(rates) = extra.object("dropout") {
        let mut rates = Keys::new(rates, "tenterhook.dropout.");
        rates.allow_only(&["embedding", "attention", "residual"]);
        config.dropout = Dropout {
            embedding: rates.rate(&["embedding"], config.dropout.embedding),
            attention: rates.rate(&["attention"], config.dropout.attention),
            residual: rates.rate(&["residual"], config.dropout.residual),
        };
        extra.absorb(rates);
    }
    keys.absorb(extra);
}

/// Adds to a `config.json` what the family's keys have not said.
pub(super) fn write(config: &TransformerConfig, json: &mut Value) {
    let mut extra = Map::new();
    if config.mlp_width == 0 {
        extra.insert("attention_only".to_string(), true.into());
        json["model_type"] = format!("{PREFIX}{}", config.family.model_type()).into();
        // Loaders that go by the class must not recognise it either.
        json["architectures"] = json!([]);
    }
    if config.dropout != said_by_family(config) {
        let Dropout { embedding, attention, residual } = config.dropout;
        let rates = json!({"embedding": embedding, "attention": attention, "residual": residual});
        extra.insert("dropout".to_string(), rates);
    }
    if !extra.is_empty() {
        json[KEY] = extra.into();
    }
}

/// The rates that are read back from the family's own keys.
fn said_by_family(config: &TransformerConfig) -> Dropout {
    let Dropout { attention, residual, .. } = config.dropout;
    match config.family {
        Family::Gpt2 => config.dropout,
        Family::NeoX => Dropout { embedding: residual, attention, residual },
        Family::Phi3 => Dropout { embedding: 0.0, attention, residual },
        Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 | Family::Gemma2 => {
            Dropout { attention, ..Default::default() }
        }
    }
}

impl TransformerConfig {
    /// Puts this description's rates into a `config.json` that was read, and leaves the rest of it alone.
    pub(crate) fn write_dropout(&self, json: &mut Value) {
        let Some(object) = json.as_object_mut() else { return };
        let written = self.to_hf();
        for key in RATES {
            if let Some(rate) = written.get(key) {
                object.insert(key.to_string(), rate.clone());
            }
        }
        match written.get(KEY) {
            Some(extra) => object.insert(KEY.to_string(), extra.clone()),
            None => object.shift_remove(KEY),
        };
    }
}
