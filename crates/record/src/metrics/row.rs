//! One line of a metrics log.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use super::{MetricsError, RowView};

/// The fields every row has.
const TAKEN: [&str; 3] = ["step", "epoch", "time"];

/// What was measured at one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The optimizer step.
    pub step: u64,
    /// The epoch.
    pub epoch: u64,
    /// When it was written, in seconds since 1970.
    pub time: f64,
    /// The metrics by name.
    pub values: BTreeMap<String, f64>,
}

impl Row {
    /// A metric that has the name of another field would be lost on reading.
    pub(super) fn check_names(&self) -> Result<(), MetricsError> {
        match TAKEN.iter().find(|name| self.values.contains_key(**name)) {
            Some(name) => Err(MetricsError::TakenName((*name).to_string())),
            None => Ok(()),
        }
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3 + self.values.len()))?;
        map.serialize_entry("step", &self.step)?;
        map.serialize_entry("epoch", &self.epoch)?;
        map.serialize_entry("time", &Number(self.time))?;
        for (name, value) in &self.values {
            map.serialize_entry(name, &Number(*value))?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let RowView { step, epoch, time, values } = RowView::deserialize(deserializer)?;
        let values = values.into_iter().map(|(name, value)| (name.into_owned(), value)).collect();
        Ok(Row { step, epoch, time, values })
    }
}

/// A number as it stands in JSON: NaN and the infinities, for which JSON has none, are written as words.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Number(pub f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            value if value.is_nan() => serializer.serialize_str("NaN"),
            f64::INFINITY => serializer.serialize_str("Infinity"),
            f64::NEG_INFINITY => serializer.serialize_str("-Infinity"),
            value => serializer.serialize_f64(value),
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, \"NaN\", \"Infinity\" or \"-Infinity\"")
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Number, E> {
        Ok(Number(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Number, E> {
        Ok(Number(value as f64))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Number, E> {
        Ok(Number(value as f64))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Number, E> {
        match value {
            "NaN" => Ok(Number(f64::NAN)),
            "Infinity" => Ok(Number(f64::INFINITY)),
            "-Infinity" => Ok(Number(f64::NEG_INFINITY)),
            other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
        }
    }
}
