//! A configuration as it is recorded: defaults filled in, secrets left out.

use serde::Serialize;
use serde_json::{Map, Value};
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table};

use super::ranks::RanksSection;
use super::run::{RunConfig, Section};

/// Options of hooks that are never written, because who reads them can use them.
const SECRETS: [&str; 6] = ["url", "token", "secret", "password", "api_key", "authorization"];

/// What is written instead.
pub(super) const REDACTED: &str = "<redacted>";

/// Whether something secret was left out of this value when it was recorded.
pub(super) fn is_redacted(value: &Value) -> bool {
    match value {
        Value::String(text) => text == REDACTED,
        Value::Array(list) => list.iter().any(is_redacted),
        Value::Object(map) => map.values().any(is_redacted),
        _ => false,
    }
}

impl RunConfig {
    /// The configuration with defaults filled in: what is recorded and hashed. The order of the keys is fixed, data sets, optimizers
    /// and hooks are lists, nulls are left out, and secrets of hooks (a webhook's `url`) are `<redacted>`.
    pub fn to_value(&self) -> Value {
        let list =
            |sections: &[Section]| sections.iter().map(|section| section.value.clone()).collect::<Value>();
        let data = [("train", list(&self.data.train)), ("val", list(&self.data.val))];
        let hooks = self.hooks.iter().map(|hook| redacted(hook.value.clone()));
        let sections = [
            ("run", json(&self.run)),
            ("model", self.model.value.clone()),
            ("data", data.into_iter().map(|(key, value)| (key.to_string(), value)).collect()),
            ("train", json(&self.train)),
            ("optimizer", list(&self.optimizer)),
            ("schedule", self.schedule.as_ref().map_or(Value::Null, |schedule| schedule.value.clone())),
            // Left out where nothing is said: a run is the same with any number of ranks.
            ("ranks", unusual(json(&self.ranks), &json(&RanksSection::default()))),
            ("hooks", hooks.collect()),
        ];
        let sections = sections.into_iter().filter(|(_, value)| !value.is_null());
        sections.map(|(key, value)| (key.to_string(), sorted(without_nulls(value)))).collect()
    }

    /// The same as TOML; reading it gives the same value.
    pub fn to_toml(&self) -> String {
        let mut document = DocumentMut::new();
        for (key, value) in self.to_value().as_object().into_iter().flatten() {
            document.insert(key, item(value));
        }
        document.to_string()
    }
}

/// What differs from the usual; null when nothing does.
fn unusual(section: Value, usual: &Value) -> Value {
    let keys =
        section.as_object().into_iter().flatten().filter(|(key, value)| usual[key.as_str()] != **value);
    let keys: Map<String, Value> = keys.map(|(key, value)| (key.clone(), value.clone())).collect();
    if keys.is_empty() { Value::Null } else { Value::Object(keys) }
}

/// Sections of ours have text keys and finite numbers, which always are JSON.
fn json(section: &impl Serialize) -> Value {
    serde_json::to_value(section).unwrap_or_default()
}

/// Leaves out keys without a value.
pub(super) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let given = map.into_iter().filter(|(_, value)| !value.is_null());
            given.map(|(key, value)| (key, without_nulls(value))).collect()
        }
        Value::Array(list) => list.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

fn sorted(mut value: Value) -> Value {
    value.sort_all_objects();
    value
}

/// The value without what is secret in it.
pub(crate) fn redacted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let hide = |(key, value): (String, Value)| match SECRETS.contains(&key.to_lowercase().as_str()) {
                true => (key, REDACTED.into()),
                false => (key, redacted(value)),
            };
            map.into_iter().map(hide).collect()
        }
        Value::Array(list) => list.into_iter().map(redacted).collect(),
        other => other,
    }
}

/// Tables get headers; what is inside of lists of other things stays in its line.
fn item(value: &Value) -> Item {
    match value {
        Value::Object(map) => Item::Table(table(map)),
        Value::Array(list) if !list.is_empty() && list.iter().all(Value::is_object) => {
            let tables = list.iter().filter_map(Value::as_object).map(table);
            Item::ArrayOfTables(tables.collect::<ArrayOfTables>())
        }
        other => Item::Value(inline(other)),
    }
}

fn table(map: &Map<String, Value>) -> Table {
    map.iter().map(|(key, value)| (key.as_str(), item(value))).collect()
}

/// A value as it stands behind `=` in a TOML file.
pub fn toml_value(value: &Value) -> String {
    inline(value).to_string()
}

fn inline(value: &Value) -> toml_edit::Value {
    match value {
        Value::Null => "".into(),
        Value::Bool(flag) => (*flag).into(),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => whole.into(),
            None => number.as_f64().unwrap_or_default().into(),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(list) => list.iter().map(inline).collect::<Array>().into(),
        Value::Object(map) => {
            map.iter().map(|(key, value)| (key.as_str(), inline(value))).collect::<InlineTable>().into()
        }
    }
}
