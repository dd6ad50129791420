//! `tenterhook hooks`: the kinds of hooks there are, and their options.

use clap::Args;
use serde_json::{Value, json};
use tenterhook_hooks::{HookRegistry, KindInfo, OptionInfo};
use tenterhook_train::config::toml_value;

use super::error::CliError;
use super::{Outcome, output};

/// List the kinds of hooks, or the options of one.
#[derive(Args)]
#[command(after_help = "Example: tenterhook hooks early_stopping")]
pub(super) struct HooksArgs {
    /// A kind, as in `kind = "..."` of [[hooks]].
    kind: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &HooksArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    let kinds: Vec<&KindInfo> =
        match &args.kind {
            Some(kind) => vec![registry.kind(kind).map_err(|error| {
                CliError::bad_input(format!("{error}; `tenterhook hooks` lists all kinds"))
            })?],
            None => registry.kinds().collect(),
        };
    let common = HookRegistry::common_options();
    if args.json {
        match (&args.kind, kinds.first()) {
            (Some(_), Some(kind)) => {
                let mut told = json!(kind);
                told["common_options"] = json!(common);
                told["example"] = json!(example(kind));
                output::json(&told)?;
            }
            _ => output::json(&kinds)?,
        }
        return Ok(Outcome::Done);
    }
    output::text(&match (&args.kind, kinds.first()) {
        (Some(_), Some(kind)) => describe(kind, &common),
        _ => list(&kinds),
    })?;
    Ok(Outcome::Done)
}

fn list(kinds: &[&KindInfo]) -> String {
    let row = |kind: &&KindInfo| {
        let own = if kind.builtin { "" } else { " (not built in)" };
        vec![kind.name.clone(), format!("{}{own}", kind.doc)]
    };
    let table = output::table(&["kind", "what it does"], &kinds.iter().map(row).collect::<Vec<_>>());
    format!("{table}\n\n`tenterhook hooks KIND` shows the options of one.")
}

fn describe(kind: &KindInfo, common: &[OptionInfo]) -> String {
    let options = match kind.options.is_empty() {
        true => "It has no options of its own.".to_string(),
        false => table(&kind.options),
    };
    format!(
        "{}: {}\n\n{options}\n\nOptions of every hook:\n\n{}\n\nExample:\n\n{}",
        kind.name,
        kind.doc,
        table(common),
        example(kind)
    )
}

fn table(options: &[OptionInfo]) -> String {
    let row = |option: &OptionInfo| {
        let also = match option.aliases.is_empty() {
            true => String::new(),
            false => format!(" Also called {}.", option.aliases.join(", ")),
        };
        let doc = option.doc.split_whitespace().collect::<Vec<_>>().join(" ");
        vec![
            option.name.clone(),
            type_in_words(&option.schema),
            default_in_words(option),
            format!("{doc}{also}"),
        ]
    };
    output::table(
        &["option", "type", "default", "what it is for"],
        &options.iter().map(row).collect::<Vec<_>>(),
    )
}

fn default_in_words(option: &OptionInfo) -> String {
    match (&option.default, option.required) {
        (_, true) => "required".to_string(),
        (None | Some(Value::Null), false) => "-".to_string(),
        (Some(value), false) => toml_value(value).trim().to_string(),
    }
}

/// The type of an option's values, as somebody who writes TOML would say it.
fn type_in_words(schema: &Value) -> String {
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

/// A table for a configuration file, ready to be pasted: what must be given is given, what may be given stands behind `#`.
fn example(kind: &KindInfo) -> String {
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
    fn every_option_has_a_type_in_words() {
        let registry = crate::training::registry();
        let common = HookRegistry::common_options();
        for option in registry.kinds().flat_map(|kind| &kind.options).chain(&common) {
            assert_ne!(type_in_words(&option.schema), "", "{}: {}", option.name, option.schema);
        }
    }
}
