//! What a JSON schema says about the keys of a table.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The keys that a table may and must have.
#[derive(Default)]
pub(super) struct Shape<'a> {
    /// The schema of each key, other spellings included.
    pub(super) keys: BTreeMap<&'a str, &'a Value>,
    /// Keys that must be given, each with its other spellings.
    pub(super) required: Vec<Vec<&'a str>>,
    /// The schema of further keys, when there may be any.
    pub(super) others: Option<&'a Value>,
    /// The key that chooses among several shapes, and what was chosen.
    pub(super) tags: Vec<(&'a str, &'a str)>,
    /// Choices that could not be made.
    pub(super) unclear: Vec<Unclear<'a>>,
}

/// A key that chooses among several shapes, and is absent or has no such value.
pub(super) struct Unclear<'a> {
    pub(super) key: &'a str,
    pub(super) choices: Vec<&'a str>,
}

impl<'a> Shape<'a> {
    /// The shape of a table with these values; `None` when the schema is not about tables with known keys.
    pub(super) fn of(schema: &'a Value, given: &Map<String, Value>) -> Option<Self> {
        let mut shape = Self::default();
        shape.gather(schema, given).then_some(shape)
    }

    /// Takes in a schema and the parts it is made of. False when it says nothing about keys.
    fn gather(&mut self, schema: &'a Value, given: &Map<String, Value>) -> bool {
        let mut known = false;
        let properties = schema["properties"].as_object();
        for (name, property) in properties.into_iter().flatten() {
            known = true;
            self.keys.extend(spellings(name, property).into_iter().map(|name| (name, property)));
        }
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            self.required.push(spellings(name, &schema["properties"][name]));
        }
        if let Some(others) =
            schema.get("additionalProperties").filter(|others| **others != Value::Bool(false))
        {
            known |= others.is_object();
            self.others = Some(others);
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            known |= self.gather(part, given);
        }
        for choice in ["oneOf", "anyOf"].iter().filter_map(|word| schema[word].as_array()) {
            known |= self.choose(choice, given);
        }
        known
    }

    fn choose(&mut self, choices: &'a [Value], given: &Map<String, Value>) -> bool {
        let choices: Vec<&'a Value> = choices.iter().filter(|choice| may_be_table(choice)).collect();
        if let [only] = choices[..] {
            return self.gather(only, given); // an optional table, or one instead of a list
        }
        let Some(key) = tag(&choices) else { return false };
        let chosen = given.get(key).and_then(Value::as_str);
        let name = |choice: &'a Value| choice["properties"][key]["const"].as_str();
        match choices.iter().copied().find(|choice| name(choice).is_some() && name(choice) == chosen) {
            Some(choice) => {
                self.tags.extend(name(choice).map(|name| (key, name)));
                self.gather(choice, given)
            }
            None => {
                let choices = choices.into_iter().filter_map(name).collect();
                self.unclear.push(Unclear { key, choices });
                true
            }
        }
    }

    /// Whether nothing can be said about other keys, because it is not known what shape the table has.
    pub(super) fn is_open(&self) -> bool {
        !self.unclear.is_empty()
    }
}

fn may_be_table(schema: &Value) -> bool {
    match &schema["type"] {
        Value::Array(types) => types.iter().any(|name| name == "object"),
        Value::Null => true,
        name => name == "object",
    }
}

/// The key that has another constant in each of the schemas.
fn tag<'a>(choices: &[&'a Value]) -> Option<&'a str> {
    let is_constant = |choice: &Value, key: &str| choice["properties"][key]["const"].is_string();
    let first = choices.first()?["properties"].as_object()?;
    first.keys().map(String::as_str).find(|key| choices.iter().all(|choice| is_constant(choice, key)))
}

fn spellings<'a>(name: &'a str, schema: &'a Value) -> Vec<&'a str> {
    let aliases = schema["aliases"].as_array().into_iter().flatten().filter_map(Value::as_str);
    std::iter::once(name).chain(aliases).collect()
}

/// The words that a schema lists as values.
pub(super) fn words(schema: &Value) -> Vec<&str> {
    let listed = schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let parts = ["oneOf", "anyOf"].iter().filter_map(|word| schema[word].as_array()).flatten();
    listed.chain(schema["const"].as_str()).chain(parts.flat_map(words)).collect()
}

/// The schema of the elements of a list; `None` when it is not about lists of one sort, or about one of a fixed length, of which no
/// element makes sense alone.
pub(super) fn elements(schema: &Value) -> Option<&Value> {
    if schema["minItems"].is_number() && schema["minItems"] == schema["maxItems"] {
        return None;
    }
    let parts = ["oneOf", "anyOf"].iter().filter_map(|word| schema[word].as_array()).flatten();
    schema.get("items").filter(|items| items.is_object()).or_else(|| parts.filter_map(elements).next())
}
