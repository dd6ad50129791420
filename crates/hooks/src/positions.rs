//! Positions of a text.

use std::borrow::Cow;
use std::fmt;

use candle_core::Tensor;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::clock::Mode;
use crate::cx::Cx;
use crate::error::HookResult;
use crate::hook::At;
use crate::rows::Places;

/// Positions of a text, padding not counted; negative ones count from its end. The same number is the same token in a forward over the
/// whole text and in a generation that keeps earlier tokens in a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Positions(pub Vec<i64>);

impl Positions {
    /// These positions of `x`, in memory of their own. `None` where a generation has none of them in this pass.
    pub fn pick(&self, at: &At, x: &Tensor, cx: &Cx) -> HookResult<Option<Tensor>> {
        let places = Places::of(at, x, cx)?;
        let columns = |row: usize| -> Vec<u32> {
            self.0.iter().filter_map(|position| places.column(row, *position)).map(|c| c as u32).collect()
        };
        let picked: Vec<Vec<u32>> = (0..places.rows.len()).map(columns).collect();
        let is_part_of_a_text = matches!(cx.mode(), Mode::Prefill | Mode::Decode);
        if is_part_of_a_text && picked.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        if let Some(row) = picked.iter().position(|columns| columns.len() != self.0.len())
            && !(is_part_of_a_text && picked.iter().all(|columns| columns.len() == picked[0].len()))
        {
            let absent = self.0.iter().find(|position| places.column(row, **position).is_none());
            let (absent, length) = (absent.copied().unwrap_or(0), places.rows[row].len());
            return Err(match is_part_of_a_text {
                false => format!(
                    "position {absent} does not exist: there are {length} here, in sequence {row}"
                ),
                true => format!(
                    "the sequences reach position {absent} in different passes of this generation, which does not make one tensor: \
                     generate with one prompt, or with prompts of equal length"
                ),
            }
            .into());
        }
        let x = x.contiguous()?;
        let select =
            |x: &Tensor, columns: &[u32]| x.index_select(&Tensor::new(columns, x.device())?, places.axis);
        if picked.windows(2).all(|two| two[0] == two[1]) {
            return Ok(picked.first().map(|columns| select(&x, columns)).transpose()?);
        }
        let row = |(row, columns): (usize, &Vec<u32>)| select(&x.narrow(0, row, 1)?, columns);
        let rows = picked.iter().enumerate().map(row).collect::<candle_core::Result<Vec<_>>>()?;
        Ok(Some(Tensor::cat(&rows, 0)?))
    }
}

impl<const N: usize> From<[i64; N]> for Positions {
    fn from(positions: [i64; N]) -> Self {
        Self(positions.to_vec())
    }
}

impl From<Vec<i64>> for Positions {
    fn from(positions: Vec<i64>) -> Self {
        Self(positions)
    }
}

impl<'de> Deserialize<'de> for Positions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = Positions;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a position or a list of positions")
            }
            fn visit_i64<E: de::Error>(self, position: i64) -> Result<Positions, E> {
                Ok(Positions(vec![position]))
            }
            fn visit_u64<E: de::Error>(self, position: u64) -> Result<Positions, E> {
                i64::try_from(position).map(|position| Positions(vec![position])).map_err(E::custom)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Positions, A::Error> {
                let mut list = Vec::new();
                while let Some(position) = seq.next_element()? {
                    list.push(position);
                }
                Ok(Positions(list))
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

impl JsonSchema for Positions {
    fn schema_name() -> Cow<'static, str> {
        "Positions".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}] })
    }
}
