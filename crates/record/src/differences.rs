//! What differs between two configurations, or other trees of values.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use crate::key_path as path;

/// The key of the order in which hooks run.
pub const HOOK_ORDER: &str = "hooks";

/// A key whose value is another, or that only one of two has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The key, such as `data.train[0].batch`. That of a hook has its id: `hooks.early_stopping.patience`.
    pub key: String,
    /// The value in the first.
    pub a: Option<Value>,
    /// The value in the second.
    pub b: Option<Value>,
}

/// What differs between two trees of values, such as two resolved configurations, sorted by key. Hooks are compared by their ids, and
/// the order of those that are in both under the key `hooks`.
///
/// ```
/// use serde_json::json;
/// use tenterhook_record::differences::differences;
///
/// let found = differences(&json!({"train": {"steps": 5, "debug": true}}), &json!({"train": {"steps": 6, "debug": true}}));
/// assert_eq!(found.len(), 1);
/// assert_eq!((found[0].key.as_str(), &found[0].a, &found[0].b), ("train.steps", &Some(json!(5)), &Some(json!(6))));
/// ```
pub fn differences(a: &Value, b: &Value) -> Vec<Difference> {
    differences_with(a, b, |_| true)
}

/// The same for those hooks that count.
pub fn differences_with(a: &Value, b: &Value, counts: impl Fn(&Value) -> bool) -> Vec<Difference> {
    let (a, a_order) = leaves(a, &counts);
    let (b, b_order) = leaves(b, &counts);
    let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
    keys.sort();
    keys.dedup();
    let differ = |key: &&String| match (a.get(*key), b.get(*key)) {
        (Some(a), Some(b)) => !same(a, b),
        _ => true,
    };
    let found = keys.into_iter().filter(differ);
    let mut found: Vec<Difference> = found
        .map(|key| Difference { key: key.clone(), a: a.get(key).cloned(), b: b.get(key).cloned() })
        .collect();
    // What was added or removed is told already.
    let in_both = |order: &[String], others: &[String]| -> Value {
        order.iter().filter(|id| others.contains(id)).map(String::as_str).collect()
    };
    let (before, after) = (in_both(&a_order, &b_order), in_both(&b_order, &a_order));
    if before != after {
        found.push(Difference { key: HOOK_ORDER.to_string(), a: Some(before), b: Some(after) });
    }
    found
}

/// Every value by its path, and the ids of the hooks in order.
fn leaves(config: &Value, counts: impl Fn(&Value) -> bool) -> (BTreeMap<String, Value>, Vec<String>) {
    let mut found = BTreeMap::new();
    let sections = config.as_object().into_iter().flatten();
    for (key, value) in sections.filter(|(key, _)| *key != "hooks") {
        gather(value, path::join("", key), &mut found);
    }
    let hooks = config["hooks"].as_array().into_iter().flatten();
    let hooks: Vec<&Value> = hooks.filter(|hook| counts(hook)).collect();
    let ids = hook_ids(&hooks);
    for (id, hook) in ids.iter().zip(hooks) {
        gather(hook, path::join("hooks", id), &mut found);
    }
    (found, ids)
}

fn gather(value: &Value, at: String, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.iter().for_each(|(key, value)| gather(value, path::join(&at, key), found));
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            let elements = list.iter().enumerate();
            elements.for_each(|(index, value)| gather(value, path::element(&at, index), found));
        }
        // An empty list of data sets is none.
        Value::Array(list) if list.is_empty() => {}
        other => {
            found.insert(at, other.clone());
        }
    }
}

/// The ids that hooks get: their own, or the kind, kind-2, kind-3, as far as these are free.
pub fn hook_ids(hooks: &[&Value]) -> Vec<String> {
    let text = |hook: &Value, key: &str| hook[key].as_str().map(str::to_string);
    let mut taken: BTreeSet<String> = hooks.iter().filter_map(|hook| text(hook, "id")).collect();
    let name = |hook: &&Value| {
        if let Some(id) = text(hook, "id") {
            return id;
        }
        let kind = text(hook, "kind").unwrap_or_default();
        let names = std::iter::once(kind.clone()).chain((2..).map(|number| format!("{kind}-{number}")));
        let free = names.into_iter().find(|name| !taken.contains(name)).unwrap_or(kind);
        taken.insert(free.clone());
        free
    };
    hooks.iter().map(name).collect()
}

/// `1` and `1.0` are the same.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Number(x), Value::Number(y)) => {
            a == b || (x.is_f64() || y.is_f64()) && x.as_f64() == y.as_f64()
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn everything_that_differs_is_found_once() {
        let a = json!({
            "run": {"name": "a"},
            "data": {"train": [{"kind": "text", "batch": 8}], "val": []},
            "optimizer": [{"lr": 1, "betas": [0.9, 0.99]}],
            "hooks": [{"kind": "console_log"}, {"kind": "ema"}, {"kind": "webhook"}],
        });
        let b = json!({
            "run": {"name": "b"},
            "data": {"train": [{"kind": "text", "batch": 8}, {"kind": "jsonl"}]},
            "optimizer": [{"lr": 1.0, "betas": [0.9, 0.95]}],
            "hooks": [{"kind": "ema", "decay": 0.5}, {"kind": "console_log"}],
        });
        let found: Vec<(String, Value)> =
            differences(&a, &b).into_iter().map(|found| (found.key, json!([found.a, found.b]))).collect();
        let expected = [
            ("data.train[1].kind", json!([null, "jsonl"])),
            ("hooks.ema.decay", json!([null, 0.5])),
            ("hooks.webhook.kind", json!(["webhook", null])),
            ("optimizer[0].betas", json!([[0.9, 0.99], [0.9, 0.95]])),
            ("run.name", json!(["a", "b"])),
            ("hooks", json!([["console_log", "ema"], ["ema", "console_log"]])),
        ];
        assert_eq!(found, expected.map(|(key, values)| (key.to_string(), values)));
        assert_eq!(differences(&a, &a), []);
    }
}
