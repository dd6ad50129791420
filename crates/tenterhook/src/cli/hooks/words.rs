//! Options of hooks in the words of somebody who writes a configuration.

use serde_json::{Value, json};
use tenterhook_hooks::{KindInfo, OptionInfo};
use tenterhook_train::config::toml_value;

/// What an option is for, in one line, with its other names.
pub(super) fn what_for(option: &OptionInfo) -> String {
    let also = match option.aliases.is_empty() {
        true => String::new(),
        false => format!(" Also called {}.", option.aliases.join(", ")),
    };
    format!("{}{also}", one_line(&option.doc))
}

/// Documentation as one line: where it was broken means nothing.
pub(super) fn one_line(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The value without the option, as it stands in a configuration.
pub(super) fn default_in_words(option: &OptionInfo) -> String {
    match (&option.default, option.required) {
        (_, true) => "required".to_string(),
        (None | Some(Value::Null), false) => "-".to_string(),
        (Some(value), false) => toml_value(value).trim().to_string(),
    }
}

/// The type of an option's values, as somebody who writes TOML would say it.
pub(super) fn type_in_words(schema: &Value) -> String {
    if let Some(word) = schema.get("const") {
        return word.to_string();
    }
    let parts = ["oneOf", "anyOf"].iter().filter_map(|word| schema[word].as_array()).flatten();
    let mut words: Vec<String> = parts.map(type_in_words).collect();
    words.extend(
        schema["enum"].as_array().into_iter().flatten().filter(|word| !word.is_null()).map(Value::to_string),
    );
    if words.is_empty() {
        let types = match &schema["type"] {
            Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
            single => single.as_str().into_iter().collect::<Vec<_>>(),
        };
        words.extend(types.into_iter().filter_map(|name| type_word(name, schema)));
    }
    words.retain(|word| !word.is_empty());
    words.dedup();
    words.join(" or ")
}

fn type_word(name: &str, schema: &Value) -> Option<String> {
    Some(match name {
        "null" => return None,
        "string" => "text".to_string(),
        "integer" => "whole number".to_string(),
        "number" => "number".to_string(),
        "boolean" => "true or false".to_string(),
        "array" => match type_in_words(&schema["items"]) {
            items if items.is_empty() => "list".to_string(),
            items if items.contains(" or ") => format!("list of ({items})"),
            items => format!("list of {items}"),
        },
        "object" => match schema["properties"].as_object().and_then(|keys| keys.keys().next()) {
            Some(key) => format!("{{ {key} = ... }}"),
            None => "table".to_string(),
        },
        other => other.to_string(),
    })
}

/// What the single values of an option mean, where its author has said it, with the keys of tables among them.
pub(super) fn choices(schema: &Value) -> Vec<(String, String)> {
    let parts = ["oneOf", "anyOf"].iter().filter_map(|word| schema[word].as_array()).flatten();
    let parts = parts.chain(schema.get("items"));
    let doc = |part: &Value| part["description"].as_str().map(one_line);
    let told = |part: &Value| match part["properties"].as_object() {
        Some(keys) if keys.len() > 1 => {
            let key = |(key, value): (&String, &Value)| Some((key.clone(), doc(value)?));
            keys.iter().filter_map(key).collect()
        }
        Some(keys) => {
            let keys = keys.iter().map(|(key, value)| format!("{key} = {}", type_in_words(value)));
            let table = format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "));
            doc(part).map(|doc| (table, doc)).into_iter().collect()
        }
        None if part.get("const").is_some() => {
            doc(part).map(|doc| (type_in_words(part), doc)).into_iter().collect()
        }
        None => choices(part),
    };
    parts.flat_map(told).collect()
}

/// A table for a configuration file, ready to be pasted: what must be given is given, what may be given stands behind `#`.
pub(super) fn example(kind: &KindInfo) -> String {
    let mut lines = vec!["[[hooks]]".to_string(), format!("kind = {}", toml_value(&json!(kind.name)).trim())];
    let must = |option: &&OptionInfo| option.required || option.example().is_some();
    for option in kind.options.iter().filter(must) {
        let value = option.example().cloned().unwrap_or_else(|| filler(&option.schema));
        lines.push(format!("{} = {}", option.name, toml_value(&value).trim()));
    }
    for option in kind.options.iter().filter(|option| !must(option)) {
        if let Some(value) = option.default.as_ref().filter(|value| !value.is_null()) {
            lines.push(format!("# {} = {}", option.name, toml_value(value).trim()));
        }
    }
    lines.join("\n")
}

/// Some value of the right type, where the author of a kind gave no example.
fn filler(schema: &Value) -> Value {
    let parts = ["oneOf", "anyOf"].iter().filter_map(|word| schema[word].as_array()).flatten();
    let first = parts.chain(schema["enum"].as_array().into_iter().flatten()).next();
    match (&schema["type"], first) {
        (_, Some(part)) if part.is_object() => filler(part),
        (_, Some(word)) => word.clone(),
        (Value::String(name), None) => match name.as_str() {
            "integer" | "number" => schema.get("minimum").cloned().unwrap_or(json!(1)),
            "boolean" => json!(true),
            "array" => json!([filler(&schema["items"])]),
            _ => schema.get("const").cloned().unwrap_or(json!("...")),
        },
        _ => schema.get("const").cloned().unwrap_or(json!("...")),
    }
}

#[cfg(test)]
mod tests {
    use tenterhook_hooks::HookRegistry;

    use super::*;

    #[test]
    fn types_are_told_in_the_words_of_a_configuration() {
        for (schema, expected) in [
            (json!({"type": "integer"}), "whole number"),
            (json!({"type": ["string", "null"]}), "text"),
            (json!({"type": "array", "items": {"type": "number"}}), "list of number"),
            (json!({"oneOf": [{"const": "min"}, {"const": "max"}]}), "\"min\" or \"max\""),
            (json!({"enum": ["a", "b", null]}), "\"a\" or \"b\""),
            (
                json!({"anyOf": [{"enum": ["all", "last"]}, {"type": "object", "properties": {"ring": {}}}, {"type": "null"}]}),
                "\"all\" or \"last\" or { ring = ... }",
            ),
            (json!({"type": "array", "items": {"enum": ["a", "b"]}}), "list of (\"a\" or \"b\")"),
            (json!(true), ""),
        ] {
            assert_eq!(type_in_words(&schema), expected, "{schema}");
        }
    }

    #[test]
    fn values_are_told_with_what_they_mean() {
        let keep = json!({"oneOf": [
            {"const": "all", "description": "Everything."},
            {"type": "object", "properties": {"ring": {"type": "integer"}}, "description": "The newest\nstates."},
        ]});
        let all = ("\"all\"".to_string(), "Everything.".to_string());
        let ring = ("{ ring = whole number }".to_string(), "The newest states.".to_string());
        assert_eq!(choices(&keep), [all, ring]);
        assert_eq!(choices(&json!({"type": "array", "items": keep})).len(), 2);
        let edit = json!({"type": "array", "items": {"type": "object", "properties": {
            "latent": {"description": "Which."}, "add": {"description": "How much."},
        }}});
        assert_eq!(choices(&edit)[0], ("latent".to_string(), "Which.".to_string()));
        assert!(choices(&json!({"type": "number"})).is_empty());
    }

    #[test]
    fn every_option_has_a_type_in_words() {
        let registry = crate::training::registry();
        let common = HookRegistry::common_options();
        for option in registry.kinds().flat_map(|kind| &kind.options).chain(&common) {
            assert_ne!(type_in_words(&option.schema), "", "{}: {}", option.name, option.schema);
        }
    }
}
