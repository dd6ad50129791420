//! A row where it stands: nothing is copied that need not be.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

use super::Number;

/// A row of a log as its line has it, for readers of very many rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowView<'a> {
    /// The optimizer step.
    pub step: u64,
    /// The epoch.
    pub epoch: u64,
    /// When it was written, in seconds since 1970.
    pub time: f64,
    /// The metrics by name, in the line's order.
    pub values: Vec<(Cow<'a, str>, f64)>,
}

impl<'de> Deserialize<'de> for RowView<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RowVisitor)
    }
}

impl RowView<'_> {
    /// The metric of this name.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|(found, _)| found == name).map(|(_, value)| *value)
    }
}

/// A key, without a copy where it has no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KeyVisitor)
    }
}

struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = Key<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a metric")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Key<'de>, E> {
        Ok(Key(Cow::Borrowed(text)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Key<'de>, E> {
        Ok(Key(Cow::Owned(text.to_string())))
    }
}

struct RowVisitor;

impl<'de> Visitor<'de> for RowVisitor {
    type Value = RowView<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `step`, `epoch`, `time` and metrics")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RowView<'de>, A::Error> {
        let (mut step, mut epoch, mut time, mut values) = (None, None, None, Vec::new());
        while let Some(Key(name)) = map.next_key()? {
            match name.as_ref() {
                "step" => step = Some(map.next_value()?),
                "epoch" => epoch = Some(map.next_value()?),
                "time" => time = Some(map.next_value::<Number>()?.0),
                _ => values.push((name, map.next_value::<Number>()?.0)),
            }
        }
        let missing = de::Error::missing_field;
        Ok(RowView {
            step: step.ok_or_else(|| missing("step"))?,
            epoch: epoch.ok_or_else(|| missing("epoch"))?,
            time: time.ok_or_else(|| missing("time"))?,
            values,
        })
    }
}
