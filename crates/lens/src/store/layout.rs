//! The names and the small files of a run.

use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::StoreError;

pub(super) const HEAD: &str = "index.json";
pub(super) const LINES: &str = "shards.jsonl";

pub(super) const TOKENS: &str = "tokens";
pub(super) const POSITIONS: &str = "positions";
pub(super) const SEQUENCES: &str = "sequences";
pub(super) const LENGTHS: &str = "lengths";
pub(super) const BATCHES: &str = "batches";
/// What a shard has beside the layers, in its order.
pub(super) const BESIDE: [&str; 5] = [TOKENS, POSITIONS, SEQUENCES, LENGTHS, BATCHES];

const FORMAT: &str = "tenterhook-store";
const VERSION: u64 = 1;

/// Of what there is one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// A row per token.
    Token,
    /// A tensor per sequence.
    Sequence,
}

/// A layer of a run: a point whose activations it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredLayer {
    /// The name that matched.
    pub name: String,
    /// The axes of what passed at the point, such as `batch pos d_model`.
    pub axes: String,
    /// Whether it is stored by token or by sequence.
    pub per: Per,
    /// The type on the disk, as safetensors spells it: `F32`, `F16`, `BF16`.
    #[serde(with = "type_name")]
    pub dtype: Dtype,
    /// The shape of one row. Empty for a layer that is stored by sequence: there, every one has its own.
    pub shape: Vec<usize>,
}

impl StoredLayer {
    /// The bytes of one row, where there are rows.
    pub fn row_bytes(&self) -> usize {
        let elements = self.shape.iter().fold(1usize, |product, dim| product.saturating_mul(*dim));
        elements.saturating_mul(self.dtype.bitsize() / 8)
    }

    /// The tensor of one sequence.
    pub(super) fn of_sequence(&self, sequence: u64) -> String {
        format!("{}#{sequence}", self.name)
    }
}

/// `index.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    pub(super) format: String,
    pub(super) version: u64,
    pub(super) layers: Vec<StoredLayer>,
    pub(super) about: Map<String, Value>,
    pub(super) finished: bool,
}

impl Head {
    pub(super) fn new(about: Map<String, Value>) -> Self {
        Self { format: FORMAT.to_string(), version: VERSION, layers: Vec::new(), about, finished: false }
    }

    /// Whether this program understands it. The error says what is wrong, not in which file.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("its format is {:?}, not {FORMAT:?}", self.format));
        }
        if self.version != VERSION {
            return Err(format!("its version is {}, this program knows version {VERSION}", self.version));
        }
        for (i, layer) in self.layers.iter().enumerate() {
            check_layer_name(&layer.name).map_err(|error| error.to_string())?;
            if self.layers[..i].iter().any(|other| other.name == layer.name) {
                return Err(format!("layer {:?} is listed twice", layer.name));
            }
        }
        Ok(())
    }
}

/// A line of `shards.jsonl`: what a reader would have to open the shard for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ShardLine {
    pub(super) shard: u64,
    pub(super) bytes: u64,
    pub(super) rows: u64,
    pub(super) sequences: u64,
    pub(super) batches: u64,
}

/// The path of a shard.
pub(super) fn shard_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("shard-{number:08}.safetensors"))
}

/// The number of a shard with this file name.
pub(super) fn shard_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("shard-")?.strip_suffix(".safetensors")?;
    let number = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    (format!("{number:08}") == digits).then_some(number)
}

/// A layer's name becomes a tensor's name, never a path. Some are taken.
pub(super) fn check_layer_name(name: &str) -> Result<(), StoreError> {
    const LONGEST: usize = 500;
    let problem = if name.is_empty() {
        "is empty"
    } else if name.len() > LONGEST {
        "is longer than 500 bytes"
    } else if BESIDE.contains(&name) || name == "__metadata__" {
        "is what every shard calls something else"
    } else if name.contains('#') || name.chars().any(char::is_control) {
        "contains `#` or a control character"
    } else {
        return Ok(());
    };
    let shown: String = name.chars().take(60).collect();
    Err(StoreError::BadInput(format!("{shown:?} cannot be the name of a stored layer: it {problem}")))
}

/// Types as safetensors spells them.
mod type_name {
    use safetensors::Dtype;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(dtype: &Dtype, to: S) -> Result<S::Ok, S::Error> {
        dtype.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Dtype, D::Error> {
        let dtype = Dtype::deserialize(from)?;
        match dtype {
            Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64 | Dtype::U8 | Dtype::U32 | Dtype::I64 => {
                Ok(dtype)
            }
            other => Err(serde::de::Error::custom(format!("type {other} is not read"))),
        }
    }
}
