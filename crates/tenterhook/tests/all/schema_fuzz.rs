//! Every field of the schema with values of a wrong type: each is refused, by its path.

use crate::example_files::example_files;
use serde_json::{Map, Value, json};
use tenterhook::hooks::HookRegistry;
use tenterhook::train::config::{Document, Format, Problems};
use tenterhook::training::{Plan, registry, schema};

/// A configuration that is good.
fn good() -> Value {
    json!({
        "run": {},
        "model": {"kind": "gpt", "vocab": 8, "context": 8, "d_model": 8, "n_heads": 2, "n_layers": 1},
        "data": {"train": [{"kind": "induction"}], "val": [{"kind": "induction"}]},
        "train": {"steps": 1},
        "optimizer": [{"kind": "adamw", "lr": 0.1}],
        "schedule": {"kind": "constant"},
        "ranks": {},
        "hooks": [],
        "hooks_config": {},
    })
}

fn problems(config: &Value, registry: &HookRegistry) -> Problems {
    let document = Document::parse(&config.to_string(), Format::Json).unwrap();
    Plan::check(&document, registry).err().unwrap_or_default()
}

/// Values that no schema of this one's types allows.
fn wrong_values(schema: &Value) -> Vec<Value> {
    let candidates =
        [json!(true), json!("no such word"), json!(-7.5), json!([[{"x": 1}]]), json!({"no such key": [1]})];
    candidates.into_iter().filter(|value| !may_be(schema, value)).collect()
}

fn may_be(schema: &Value, value: &Value) -> bool {
    let parts = ["oneOf", "anyOf"].iter().filter_map(|word| schema[word].as_array()).flatten();
    let mut parts = parts.peekable();
    if parts.peek().is_some() {
        return parts.any(|part| may_be(part, value));
    }
    if let Some(words) = schema["enum"].as_array() {
        return words.contains(value);
    }
    if let Some(word) = schema.get("const") {
        return word == value;
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        name => name.as_str().into_iter().collect(),
    };
    let name = match value {
        Value::Bool(_) => "boolean",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Array(_) => "array",
        _ => "object",
    };
    // A list may still have wrong elements.
    let fits = types.is_empty() || types.contains(&name);
    fits && value.as_array().is_none_or(|list| list.iter().all(|item| may_be(&schema["items"], item)))
}

/// Puts every wrong value at every key of the table at `pointer`, and expects a problem that names its path. Returns how many were tried.
fn check(
    base: &Value,
    pointer: &str,
    path: &str,
    keys: &Map<String, Value>,
    registry: &HookRegistry,
) -> usize {
    assert!(problems(base, registry).is_empty(), "{path}: {}", problems(base, registry));
    let mut tried = 0;
    for (key, schema) in keys {
        let wrong = wrong_values(schema);
        assert!(!wrong.is_empty(), "{path}.{key}: everything is allowed: {schema}");
        for value in wrong {
            let mut config = base.clone();
            config.pointer_mut(pointer).unwrap()[key] = value.clone();
            let found = problems(&config, registry);
            let at = format!("{path}.{key}");
            let named = |problem: &str| problem == at || problem.starts_with(&at);
            assert!(
                found.iter().any(|problem| named(&problem.path)),
                "{at} = {value} is not named in: {found}"
            );
            tried += 1;
        }
    }
    tried
}

#[test]
fn p33_every_field_of_the_schema_refuses_wrong_types_by_its_path() {
    let registry = registry();
    let schema = schema(&registry);
    let keys = |schema: &Value| schema["properties"].as_object().unwrap().clone();
    let mut tried = 0;
    for (path, pointer, section) in [
        ("run", "/run", &schema["properties"]["run"]),
        ("model", "/model", &schema["properties"]["model"]),
        ("train", "/train", &schema["properties"]["train"]),
        ("schedule", "/schedule", &schema["properties"]["schedule"]),
        ("ranks", "/ranks", &schema["properties"]["ranks"]),
        ("hooks_config", "/hooks_config", &schema["properties"]["hooks_config"]),
        ("data.train[0]", "/data/train/0", &schema["$defs"]["data"]),
        ("data.val[0]", "/data/val/0", &schema["$defs"]["data"]),
        ("optimizer[0]", "/optimizer/0", &schema["$defs"]["optimizer"]),
    ] {
        tried += check(&good(), pointer, path, &keys(section), &registry);
    }
    let common: Vec<String> = HookRegistry::common_options()
        .into_iter()
        .flat_map(|option| std::iter::once(option.name).chain(option.aliases))
        .collect();
    for (index, kind) in registry.kinds().enumerate() {
        let described = schema["$defs"]["hook"]["oneOf"].as_array().unwrap();
        let mut keys =
            keys(described.iter().find(|described| described["title"] == kind.name.as_str()).unwrap());
        // The options that every hook has are the same for every one.
        keys.retain(|key, _| index == 0 || !common.contains(key));
        let mut base = good();
        base["hooks"] = json!([registry.with_full_paths(&usual(kind), example_files())]);
        tried += check(&base, "/hooks/0", "hooks[0]", &keys, &registry);
    }
    assert!(tried > 500, "{tried}");
}

/// A hook of a kind with no more than it needs.
fn usual(kind: &tenterhook::hooks::KindInfo) -> Value {
    if kind.name == "webhook" {
        return json!({"kind": "webhook", "url": "https://a.example/"});
    }
    let needed =
        kind.options.iter().filter_map(|option| Some((option.name.clone(), option.example()?.clone())));
    std::iter::once(("kind".to_string(), json!(kind.name))).chain(needed).collect()
}
