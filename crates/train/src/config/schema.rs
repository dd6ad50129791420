//! The JSON schema of a configuration, for editors.

use serde_json::{Map, Value, json};
use tenterhook_hooks::{HookRegistry, KindInfo, OptionInfo, Selector};

use super::hooks_config::HooksConfig;
use super::ranks::RanksSection;
use super::run::RunSection;
use super::section::schema_of;
use super::train::TrainSection;

/// The schemas of the sections that others own, as [`schema_of`] makes them.
pub struct SubSchemas {
    /// `[model]`.
    pub model: Value,
    /// One of `[[data.train]]` and `[[data.val]]`.
    pub data: Value,
    /// One of `[[optimizer]]`.
    pub optimizer: Value,
    /// `[schedule]`.
    pub schedule: Value,
}

/// The JSON schema (draft 2020-12) of a whole configuration with these hooks.
pub fn schema(parts: SubSchemas, registry: &HookRegistry) -> Value {
    let kinds: Vec<Value> = registry.kinds().map(hook).collect();
    let mut whole = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tenterhook run",
        "type": "object",
        "properties": {
            "run": schema_of::<RunSection>(),
            "model": parts.model,
            "data": {
                "description": "The data sets.",
                "type": "object",
                "properties": {"train": one_or_many("data", 1), "val": one_or_many("data", 0)},
                "required": ["train"],
                "additionalProperties": false,
            },
            "train": schema_of::<TrainSection>(),
            "optimizer": one_or_many("optimizer", 1),
            "schedule": parts.schedule,
            "ranks": schema_of::<RanksSection>(),
            "hooks": one_or_many("hook", 0),
            "hooks_config": schema_of::<HooksConfig>(),
        },
        "required": ["model", "data", "train", "optimizer"],
        "additionalProperties": false,
        "$defs": {"data": parts.data, "optimizer": parts.optimizer, "hook": {"oneOf": kinds}},
    });
    // Types that contain themselves cannot be written out; selectors are the one that hooks have.
    let mut shared = Map::new();
    lift(&mut schema_of::<Vec<Selector>>(), &mut shared);
    lift(&mut whole["properties"], &mut shared);
    lift(&mut whole["$defs"], &mut shared);
    if let Some(own) = whole["$defs"].as_object_mut() {
        own.extend(shared);
    }
    let names: Vec<String> =
        whole["$defs"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    open_unknown(&mut whole, &names);
    whole
}

const DEFINITIONS: &str = "#/$defs/";

/// Takes the definitions out of schemas that stand inside the whole one: references are from its root.
fn lift(value: &mut Value, shared: &mut Map<String, Value>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::Object(definitions)) = map.remove("$defs") {
                shared.extend(definitions);
            }
            map.values_mut().for_each(|inner| lift(inner, shared));
        }
        Value::Array(list) => list.iter_mut().for_each(|inner| lift(inner, shared)),
        _ => {}
    }
}

/// A reference to what nobody handed in allows everything, so that the schema never refuses what a run accepts.
fn open_unknown(value: &mut Value, names: &[String]) {
    match value {
        Value::Object(map) => {
            let is_known =
                |to: &str| to.strip_prefix(DEFINITIONS).is_some_and(|to| names.iter().any(|name| name == to));
            if map.get("$ref").and_then(Value::as_str).is_some_and(|to| !is_known(to)) {
                map.remove("$ref");
            }
            map.values_mut().for_each(|inner| open_unknown(inner, names));
        }
        Value::Array(list) => list.iter_mut().for_each(|inner| open_unknown(inner, names)),
        _ => {}
    }
}

/// `[x]` or `[[x]]`.
fn one_or_many(name: &str, at_least: usize) -> Value {
    let one = json!({"$ref": format!("#/$defs/{name}")});
    json!({"anyOf": [one, {"type": "array", "items": one, "minItems": at_least}]})
}

fn hook(kind: &KindInfo) -> Value {
    let common = HookRegistry::common_options();
    let mut properties = Map::from_iter([("kind".to_string(), json!({"const": kind.name}))]);
    for option in kind.options.iter().chain(&common) {
        for name in std::iter::once(&option.name).chain(&option.aliases) {
            properties.insert(name.clone(), option.schema.clone());
        }
    }
    // A required option with other spellings is not `required` by any of them.
    let must = |option: &&OptionInfo| option.required && option.aliases.is_empty();
    let required = kind.options.iter().filter(must).map(|option| option.name.as_str());
    let required: Vec<&str> = std::iter::once("kind").chain(required).collect();
    json!({
        "title": kind.name,
        "description": kind.doc,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_every_section_key_and_hook() {
        let any = || json!({"type": "object"});
        let recursive = json!({"properties": {"inner": {"$ref": "#"}, "other": {"$ref": "#/$defs/Other"}}, "$defs": {"Other": {}}});
        let parts = SubSchemas { model: recursive, data: any(), optimizer: any(), schedule: any() };
        let schema = schema(parts, &HookRegistry::standard());
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        for section in ["run", "train", "ranks", "hooks_config"] {
            let properties = schema["properties"][section]["properties"].as_object().unwrap();
            assert!(properties.len() >= 3);
            for (key, property) in properties {
                assert!(property["description"].is_string(), "{section}.{key} has no description");
            }
            assert_eq!(schema["properties"][section]["additionalProperties"], false);
        }
        assert_eq!(schema["properties"]["train"]["properties"]["keep_checkpoints"]["default"], 2);
        let hooks = schema["$defs"]["hook"]["oneOf"].as_array().unwrap();
        let names: Vec<&str> = hooks.iter().map(|hook| hook["title"].as_str().unwrap()).collect();
        assert_eq!(names, ["capture", "debug", "gradient_flow", "monitor"]);
        let monitor = &hooks[3];
        assert_eq!(monitor["properties"]["kind"]["const"], "monitor");
        assert_eq!(monitor["required"], json!(["kind", "points"]));
        for key in ["points", "metrics", "id", "every", "frequency", "on_error"] {
            assert!(monitor["properties"][key].is_object(), "{key}");
        }
        let lists = &schema["$defs"]["Selector"]["anyOf"][2];
        assert_eq!(lists["items"]["$ref"], "#/$defs/Selector", "{}", schema["$defs"]["Selector"]);
        let text = schema.to_string();
        assert!(!text.contains("\"#\""));
        for name in text.split("#/$defs/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!(schema["$defs"][name].is_object(), "{name}");
        }
    }
}
