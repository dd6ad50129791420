//! Data sets as configuration files have them.

mod open;
mod problems;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Predict, TokenType};

/// What a data set is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Training.
    Train,
    /// Validation.
    Val,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
        }
    }
}

/// What the model has to say about its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// The size of its vocabulary.
    pub vocab: Option<u64>,
    /// The longest sequence it takes.
    pub context: Option<usize>,
}

/// Where examples come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataKind {
    /// A headerless file of token ids, as nanoGPT writes them.
    Tokens,
    /// A file of plain text.
    Text,
    /// A file with one JSON object per line, each with a text.
    Jsonl,
    /// Generated: random sequences that repeat.
    Induction,
    /// Generated: `a b =` and the sum modulo a number.
    ModularAddition,
}

/// One data set and how it is cut into batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Where the examples come from.
    pub kind: DataKind,
    /// The name in metrics; it also gives the set an order of its own. By default the name of its table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its share among several sets with the strategy `weighted`, its batches in a row with `alternating`.
    #[serde(default = "one")]
    pub weight: f64,
    /// The file, for `tokens`, `text` and `jsonl`; relative to the configuration file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Tokens per example; by default as many as the model takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<usize>,
    /// Examples per batch.
    #[serde(default = "eight")]
    pub batch: usize,
    /// A new random order every epoch; by default for training only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle: Option<bool>,
    /// Leave out a last batch that is not full.
    #[serde(default)]
    pub drop_last: bool,
    /// How token ids lie in the file, for `tokens`: `uint16` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<TokenType>,
    /// For `text` and `jsonl`: "byte" or the path of a `tokenizer.json`. By default the model's own, and "byte" where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// The key of the text, for `jsonl`: "text" by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// A token id that ends every document, for `jsonl`; by default none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub separator: Option<u32>,
    /// For files, the part to use when one file serves for both: training takes this share from the front, validation the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<f64>,
    /// How many token ids there are, for `tokens` (which are checked) and `induction`; by default the model's vocabulary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab: Option<u64>,
    /// How many examples an epoch has, for `induction`; by default 8192 for training and 512 for validation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub examples: Option<u64>,
    /// Which targets count, for `induction`: the `repeats` by default, or `all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predict: Option<Predict>,
    /// The modulus, for `modular_addition`: 113 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modulus: Option<u64>,
    /// The share of all pairs that training gets, for `modular_addition`: 0.3 by default. Training and validation must agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_share: Option<f64>,
    /// The seed of the order and of generated examples; by default the run's. `modular_addition` shares out its pairs by it:
    /// training and validation must agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

fn one() -> f64 {
    1.0
}

fn eight() -> usize {
    8
}

impl DataConfig {
    /// A configuration of this kind with defaults for the rest.
    pub fn new(kind: DataKind) -> Self {
        Self {
            kind,
            name: None,
            weight: one(),
            path: None,
            block: None,
            batch: eight(),
            shuffle: None,
            drop_last: false,
            dtype: None,
            tokenizer: None,
            field: None,
            separator: None,
            split: None,
            vocab: None,
            examples: None,
            predict: None,
            modulus: None,
            train_share: None,
            seed: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kind_must_be_given() {
        let read: DataConfig = toml::from_str("kind = \"modular_addition\"").unwrap();
        assert_eq!(read, DataConfig::new(DataKind::ModularAddition));
        let written = toml::to_string(&read).unwrap();
        assert_eq!(toml::from_str::<DataConfig>(&written).unwrap(), read);
    }

    #[test]
    fn every_option_survives_being_written_and_read() {
        let text = r#"
            kind = "jsonl"
            name = "web"
            weight = 2.5
            path = "web.jsonl"
            block = 64
            batch = 4
            shuffle = false
            drop_last = true
            dtype = "uint32"
            tokenizer = "byte"
            field = "body"
            separator = 256
            split = 0.9
            vocab = 257
            examples = 10
            predict = "all"
            modulus = 7
            train_share = 0.5
            seed = 3
        "#;
        let read: DataConfig = toml::from_str(text).unwrap();
        assert_eq!((read.dtype, read.predict), (Some(TokenType::Uint32), Some(Predict::All)));
        assert_eq!(toml::from_str::<DataConfig>(&toml::to_string(&read).unwrap()).unwrap(), read);
        assert_eq!(serde_json::to_value(&read).unwrap().as_object().unwrap().len(), 19);
    }

    #[test]
    fn unknown_keys_and_kinds_are_errors() {
        for text in [
            "kind = \"token\"",
            "kind = \"text\"\nblok = 3",
            "batch = 3",
            "kind = \"tokens\"\ndtype = \"u16\"",
        ] {
            assert!(toml::from_str::<DataConfig>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_option_has_its_help() {
        let schema = serde_json::to_value(schemars::schema_for!(DataConfig)).unwrap();
        let properties = schema["properties"].as_object().unwrap();
        assert_eq!(properties.len(), 19);
        for (key, property) in properties {
            assert!(property["description"].is_string(), "`{key}` has no description");
        }
        assert_eq!(schema["required"], serde_json::json!(["kind"]));
        assert_eq!(
            (&properties["batch"]["default"], &properties["weight"]["default"]),
            (&8.into(), &1.0.into())
        );
    }
}
