//! Typed access to the keys of a JSON object that notes what is wrong and goes on.

use serde_json::{Map, Value};

use crate::error::{Problems, shown};

/// No dimension of a real model comes near this, and no product of two overflows.
pub(crate) const LARGEST_SIZE: usize = 1 << 31;

/// The keys of an object. A key may have several spellings; the first one present counts, and null is absent.
pub(super) struct Keys<'a> {
    object: &'a Map<String, Value>,
    /// Written in front of key names in messages.
    path: &'static str,
    problems: Problems,
}

impl<'a> Keys<'a> {
    pub(super) fn new(object: &'a Map<String, Value>, path: &'static str) -> Self {
        Self { object, path, problems: Problems::default() }
    }

    pub(super) fn problem(&mut self, describe: impl FnOnce() -> String) {
        self.problems.add(describe);
    }

    pub(super) fn into_problems(self) -> Problems {
        self.problems
    }

    /// Reports every key that is not one of these. For objects of our own, where an unknown key asks for something newer.
    pub(super) fn allow_only(&mut self, names: &[&str]) {
        for name in self.object.keys().filter(|name| !names.contains(&name.as_str())) {
            let path = self.path;
            self.problems.add(|| {
                format!("{} is not known (known: {})", shown(&format!("{path}{name}")), names.join(", "))
            });
        }
    }

    /// Takes over the problems of a nested object.
    pub(super) fn absorb(&mut self, nested: Keys<'_>) {
        self.problems.append(nested.problems);
    }

    pub(super) fn value(&self, names: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        names.iter().find_map(|name| {
            self.object.get(*name).filter(|value| !value.is_null()).map(|value| (*name, value))
        })
    }

    /// Whether a key is there and says null, which for some keys is not the same as its absence.
    pub(super) fn is_null(&self, name: &str) -> bool {
        self.object.get(name).is_some_and(Value::is_null)
    }

    /// A value turned into what it should be, or `None` and a problem.
    fn typed<T>(
        &mut self,
        names: &[&'static str],
        default: T,
        expected: impl FnOnce() -> String,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let Some((name, value)) = self.value(names) else { return Some(default) };
        let found = read(value);
        if found.is_none() {
            let path = self.path;
            self.problems
                .add(|| format!("`{path}{name}` must be {}, found {}", expected(), described(value)));
        }
        found
    }

    /// A whole number from 1 to `largest`; 0 stands for one that was wrong and has been reported.
    pub(super) fn size_up_to(&mut self, names: &[&'static str], default: usize, largest: usize) -> usize {
        let in_range = |value: &Value| {
            value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=largest).contains(n))
        };
        self.typed(names, default, || format!("a whole number from 1 to {largest}"), in_range).unwrap_or(0)
    }

    pub(super) fn size(&mut self, names: &[&'static str], default: usize) -> usize {
        self.size_up_to(names, default, LARGEST_SIZE)
    }

    /// A finite number that satisfies a condition; when it is wrong, the default.
    pub(super) fn number(
        &mut self,
        names: &[&'static str],
        default: f64,
        expected: &'static str,
        valid: impl Fn(f64) -> bool,
    ) -> f64 {
        let read = |value: &Value| value.as_f64().filter(|n| n.is_finite() && valid(*n));
        self.typed(names, default, || expected.to_string(), read).unwrap_or(default)
    }

    pub(super) fn positive(&mut self, names: &[&'static str], default: f64) -> f64 {
        self.number(names, default, "a positive number", |n| n > 0.0)
    }

    /// A positive number that is off when the key says null.
    pub(super) fn optional_positive(&mut self, name: &'static str, default: Option<f64>) -> Option<f64> {
        if self.is_null(name) || self.value(&[name]).is_none() && default.is_none() {
            return None;
        }
        Some(self.positive(&[name], default.unwrap_or(1.0)))
    }

    pub(super) fn rate(&mut self, names: &[&'static str], default: f64) -> f64 {
        self.number(names, default, "a rate of at least 0 and below 1", |n| (0.0..1.0).contains(&n))
    }

    pub(super) fn flag(&mut self, name: &'static str, default: bool) -> bool {
        self.typed(&[name], default, || "true or false".to_string(), Value::as_bool).unwrap_or(default)
    }

    /// A text, or `None` when there is something else.
    pub(super) fn text(&mut self, names: &[&'static str], default: &'a str) -> Option<&'a str> {
        self.typed(names, default, || "a text".to_string(), Value::as_str)
    }

    pub(super) fn object(&mut self, name: &'static str) -> Option<&'a Map<String, Value>> {
        self.typed(&[name], None, || "an object".to_string(), |value| value.as_object().map(Some)).flatten()
    }

    /// A list whose entries all pass; `None` when the key is absent or wrong.
    pub(super) fn list<T>(
        &mut self,
        name: &'static str,
        expected: &'static str,
        entry: impl Fn(&'a Value) -> Option<T>,
    ) -> Option<Vec<T>> {
        let read =
            |value: &'a Value| value.as_array()?.iter().map(entry).collect::<Option<Vec<T>>>().map(Some);
        self.typed(&[name], None, || format!("a list of {expected}"), read).flatten()
    }

    /// One token id, a list of them or null.
    pub(super) fn token_ids(&mut self, name: &'static str, default: &[u32]) -> Vec<u32> {
        if self.is_null(name) {
            return Vec::new();
        }
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let read = |value: &Value| match value {
            Value::Array(ids) => ids.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        };
        self.typed(&[name], default.to_vec(), || "a token id or a list of them".to_string(), read)
            .unwrap_or_default()
    }
}

/// A value in a message: short and without line breaks.
pub(super) fn described(value: &Value) -> String {
    match value {
        Value::Null => "null".to_string(),
        Value::Array(entries) => format!("a list of {} entries", entries.len()),
        Value::Object(_) => "an object".to_string(),
        Value::String(text) => format!("the text {}", shown(text)),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}
