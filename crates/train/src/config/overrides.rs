//! Values given on the command line: `train.steps=100`.

use serde_json::{Map, Value};

use super::document::MAX_DEPTH;
use super::write::{REDACTED, redacted};
use super::{path, toml};

/// What is longer belongs into the file.
const MAX_TEXT: usize = 1 << 16;

/// One step of a path.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Key(String),
    /// A number behind a dot: an element of a list, or a key of a table that is there.
    Number(usize, String),
    Index(usize),
}

/// Sets a value; returns its path. An error has the path as far as it is known, and never the value, which may be secret.
pub(super) fn apply(root: &mut Value, assignment: &str) -> Result<String, (String, String)> {
    if assignment.len() > MAX_TEXT {
        return Err((String::new(), format!("an override has at most {MAX_TEXT} bytes")));
    }
    let (steps, text) = split(assignment).map_err(|message| (String::new(), named(assignment, &message)))?;
    // A failure must not leave half-made tables behind.
    let mut changed = root.clone();
    let (mut at, mut path) = (&mut changed, String::new());
    for step in &steps {
        (at, path) = enter(at, &path, step)?;
    }
    *at = read(text.trim()).map_err(|message| (path.clone(), message))?;
    *root = changed;
    Ok(path)
}

/// Arguments of a command as they may be recorded: an override that sets a secret, by itself or inside of a table, without its value.
pub fn redacted_args(args: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut is_override = false;
    let redact = |arg: String| {
        let (flag, assignment) = match arg.strip_prefix("--set=") {
            Some(assignment) => ("--set=", assignment),
            None if is_override => ("", arg.as_str()),
            None => ("", ""),
        };
        is_override = arg == "--set";
        let says_secret = match split(assignment) {
            _ if assignment.is_empty() => false,
            // As in `apply`, but alone: whatever is in the way there is not here.
            Ok((steps, text)) => {
                let keys = steps.into_iter().rev().map(|step| match step {
                    Step::Key(key) | Step::Number(_, key) => key,
                    Step::Index(index) => index.to_string(),
                });
                let tree = keys.fold(read(text.trim()).unwrap_or_default(), |value, key| {
                    Value::Object(Map::from_iter([(key, value)]))
                });
                redacted(tree.clone()) != tree
            }
            Err(_) => true, // nobody knows what it says
        };
        match (says_secret, assignment.split_once('=')) {
            (true, Some((key, _))) => format!("{flag}{key}={REDACTED}"),
            (true, None) => format!("{flag}{REDACTED}"),
            (false, _) => arg,
        }
    };
    args.into_iter().map(redact).collect()
}

/// A message with the key as it was written, so that one of several overrides is found again.
fn named(assignment: &str, message: &str) -> String {
    let key = assignment.split(['=', ' ']).next().unwrap_or_default();
    let key: String = key.chars().take(60).collect();
    if key.is_empty() { message.to_string() } else { format!("`{key}`: {message}") }
}

fn enter<'a>(
    at: &'a mut Value,
    path: &str,
    step: &Step,
) -> Result<(&'a mut Value, String), (String, String)> {
    let index = match step {
        Step::Key(_) => None,
        Step::Number(_, _) if at.is_object() => None,
        Step::Number(index, _) | Step::Index(index) => Some(*index),
    };
    if at.is_null() {
        *at = if index.is_some() { Value::Array(Vec::new()) } else { Value::Object(Map::new()) };
    }
    match (at, index, step) {
        (Value::Array(list), Some(index), _) => {
            let (parent, length, path) = (path, list.len(), path::element(path, index));
            if index > length {
                let next = path::element(parent, length);
                return Err((
                    path,
                    format!("the list has {length} elements, counted from 0; {next} would be the next"),
                ));
            }
            if index == length {
                list.push(Value::Null);
            }
            Ok((&mut list[index], path))
        }
        (Value::Object(map), None, Step::Key(key) | Step::Number(_, key)) => {
            Ok((map.entry(key.clone()).or_insert(Value::Null), path::join(path, key)))
        }
        (Value::Array(_), None, Step::Key(key)) => {
            let example = path::join(&path::element(path, 0), key);
            Err((path.to_string(), format!("is a list: write {example}")))
        }
        (Value::Object(_), ..) => Err((path.to_string(), "is a table, not a list".to_string())),
        _ => Err((path.to_string(), "is a single value, nothing can be set inside".to_string())),
    }
}

fn read(text: &str) -> Result<Value, String> {
    if text.is_empty() {
        return Err("no value after `=`; an empty text is \"\"".to_string());
    }
    match text.parse() {
        Ok(value) => toml::value(&value),
        // What starts like a list, a table or a quoted text was meant as one.
        Err(error) if text.starts_with(['[', '{', '"', '\'']) => {
            Err(toml_edit::TomlError::message(&error).to_string())
        }
        Err(_) => Ok(text.into()),
    }
}

fn split(assignment: &str) -> Result<(Vec<Step>, &str), String> {
    const FORM: &str = "an override is written key.key=value, such as train.steps=100";
    let mut rest = assignment.trim_start();
    let mut steps = Vec::new();
    loop {
        let (step, after) = step(rest, steps.is_empty())?;
        steps.push(step);
        if steps.len() > MAX_DEPTH {
            return Err(format!("keys are nested deeper than {MAX_DEPTH}"));
        }
        rest = after.trim_start();
        match rest.as_bytes().first() {
            Some(b'=') => return Ok((steps, &rest[1..])),
            Some(b'[') => {}
            Some(b'.') => rest = rest[1..].trim_start(),
            _ => return Err(FORM.to_string()),
        }
    }
}

/// The first step of a path, and what comes after it.
fn step(text: &str, is_first: bool) -> Result<(Step, &str), String> {
    if let Some(inner) = text.strip_prefix('[').filter(|_| !is_first) {
        let (number, rest) = inner.split_once(']').ok_or("a `[` without its `]`")?;
        let index = number.trim().parse().map_err(|_| "what is between [ and ] must be a number")?;
        return Ok((Step::Index(index), rest));
    }
    if text.starts_with('"') {
        let mut keys = serde_json::Deserializer::from_str(text).into_iter::<String>();
        let key = keys.next().and_then(Result::ok).ok_or("a quoted key does not end")?;
        return Ok((Step::Key(key), &text[keys.byte_offset()..]));
    }
    let end = text.find(['.', '[', '=', ' ']).unwrap_or(text.len());
    let (key, rest) = text.split_at(end);
    if !path::is_bare(key) {
        return Err("a key is made of letters, digits, _ and -, or stands in double quotes".to_string());
    }
    match key.parse() {
        Ok(index) => Ok((Step::Number(index, key.to_string()), rest)),
        Err(_) => Ok((Step::Key(key.to_string()), rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_overrides_are_not_recorded() {
        let table = [
            (["train", "--set", "train.steps=5"], None),
            (["train", "--set=train.name=url=x", "hooks.0.url=s3cret"], None), // no override, a file of an odd name
            (["train", "--set", "hooks.0.url=https://a.example/s3cret"], Some("hooks.0.url=<redacted>")),
            (["train", "--set", "hooks[0].url = 's3cret'"], Some("hooks[0].url =<redacted>")),
            (["train", "--set", "hooks.0={kind='webhook', url='s3cret'}"], Some("hooks.0=<redacted>")),
            (["train", "--set", "\"s3cret"], Some("<redacted>")),
        ];
        for (args, want) in table {
            let got = redacted_args(args.map(str::to_string));
            let want = want.map_or(args.to_vec(), |want| vec!["train", "--set", want]);
            assert_eq!(got, want);
        }
        let joined = redacted_args(["--set=hooks.0.url=s3cret".to_string()]);
        assert_eq!(joined, ["--set=hooks.0.url=<redacted>"]);
    }
}
