//! Typed sections of a configuration, with everything that is wrong in them.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tenterhook_hooks::nearest;

use super::path;
use super::problems::Problems;
use super::shape::{Shape, elements, words};

/// Reads the section at `path` of a configuration. Notes unknown keys, values of a wrong type and missing keys, nested ones too, and
/// returns `None` when there are any.
///
/// A key with `#[serde(alias = "x")]` says so in its schema too: `#[schemars(extend("aliases" = ["x"]))]`.
///
/// ```
/// # use schemars::JsonSchema;
/// # use serde::Deserialize;
/// use tenterhook_train::config::{Document, Format, read_section};
///
/// #[derive(Deserialize, JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// struct Bakery {
///     loaves: u32,
///     heat: f64,
/// }
///
/// let document = Document::parse("[bakery]\nloafs = 3\nheat = 'high'\n", Format::Toml)?;
/// let mut problems = document.problems();
/// let bakery: Option<Bakery> = read_section(&document.value()["bakery"], "bakery", &mut problems);
/// assert!(bakery.is_none());
/// assert_eq!(
///     problems.to_string(),
///     "line 1: bakery.loaves: missing key\n\
///      line 2: bakery.loafs: unknown key; did you mean `loaves`?\n\
///      line 3: bakery.heat: is the text \"high\", expected a number"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read_section<T: DeserializeOwned + JsonSchema>(
    value: &Value,
    path: &str,
    problems: &mut Problems,
) -> Option<T> {
    let schema = schema_of::<T>();
    let read = |value: Value| T::deserialize(value);
    let whole = read(value.clone());
    // serde stops at the first mistake, so on failure every value is tried by itself.
    let try_alone = |value: Value| read(value).err().map(|error| error.to_string());
    let mut walk =
        Walk { problems, try_alone: whole.is_err().then_some(&try_alone), steps: Vec::new(), found: 0 };
    walk.value(&schema, value, path);
    match whole {
        Ok(section) if walk.found == 0 => Some(section),
        Err(error) if walk.found == 0 => {
            problems.add(path, in_words(&error.to_string()));
            None
        }
        _ => None,
    }
}

/// Reads a section as [`read_section`] does, and notes what is wrong with its values, by key. Where some keys are wrong, the values of the
/// others are looked at all the same, so that all mistakes are known at once.
pub fn check_section<T: DeserializeOwned + JsonSchema>(
    value: &Value,
    path: &str,
    problems: &mut Problems,
    wrong_values: impl Fn(&T) -> Vec<(String, String)>,
) -> Option<T> {
    if let Some(section) = read_section::<T>(value, path, problems) {
        problems.add_keys(path, wrong_values(&section));
        return Some(section);
    }
    let mut rest = value.as_object()?.clone();
    let is_wrong = |key: &str| {
        let at = path::join(path, key);
        problems.iter().any(|problem| path::is_within(&problem.path, &at))
    };
    // What the other keys mean depends on the kind.
    if is_wrong("kind") {
        return None;
    }
    rest.retain(|key, _| !is_wrong(key));
    let section = T::deserialize(Value::Object(rest.clone())).ok()?;
    // What is wrong with a key that is not given may be so only because it was taken out.
    let is_given = |key: &str| rest.contains_key(key.split(['.', '[']).next().unwrap_or_default());
    let found = wrong_values(&section).into_iter().filter(|(key, _)| is_given(key));
    problems.add_keys(path, found);
    None
}

/// The JSON schema of a type, without references.
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.into_generator().into_root_schema_for::<T>().into()
}

/// How a value is wrapped to be tried without its neighbours.
enum Step {
    Element,
    /// A key, and those beside it that choose the shape of the table.
    Key(String, Vec<(String, String)>),
}

struct Walk<'a> {
    problems: &'a mut Problems,
    try_alone: Option<&'a dyn Fn(Value) -> Option<String>>,
    steps: Vec<Step>,
    found: usize,
}

impl Walk<'_> {
    fn value(&mut self, schema: &Value, value: &Value, at: &str) {
        match value {
            Value::Object(given) => match Shape::of(schema, given) {
                Some(shape) => self.table(&shape, given, at),
                None => self.single(schema, value, at),
            },
            Value::Array(list) => match elements(schema) {
                Some(schema) => {
                    self.steps.push(Step::Element);
                    for (index, value) in list.iter().enumerate() {
                        self.value(schema, value, &path::element(at, index));
                    }
                    self.steps.pop();
                }
                // serde would take the elements as the values of the keys, in order.
                None if Shape::of(schema, &Map::new()).is_some() => {
                    self.wrong(at.to_string(), "is a list, expected a table".to_string(), None);
                }
                None => self.single(schema, value, at),
            },
            _ => self.single(schema, value, at),
        }
    }

    fn table(&mut self, shape: &Shape<'_>, given: &Map<String, Value>, at: &str) {
        let before = self.found;
        for unclear in &shape.unclear {
            let inner = path::join(at, unclear.key);
            let list = unclear.choices.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            match given.get(unclear.key) {
                None => self.wrong(inner, format!("missing key; one of {list}"), None),
                Some(Value::String(name)) => {
                    let near = nearest(name, unclear.choices.iter().copied(), 1).pop();
                    self.wrong(inner, format!("`{name}` is none of {list}"), near);
                }
                Some(_) => self.wrong(inner, format!("must be one of {list}"), None),
            }
        }
        for (key, value) in given {
            let inner = path::join(at, key);
            let schema = match (shape.keys.get(key.as_str()).copied(), shape.others) {
                (Some(schema), _) | (None, Some(schema)) => schema,
                (None, None) if shape.is_open() => continue,
                (None, None) => {
                    let (message, near) = unknown_key(key, shape.keys.keys().copied().collect());
                    self.wrong(inner, message, near);
                    continue;
                }
            };
            let tags = shape.tags.iter().filter(|(tag, _)| tag != key);
            let tags = tags.map(|(tag, name)| (tag.to_string(), name.to_string())).collect();
            self.steps.push(Step::Key(key.clone(), tags));
            self.value(schema, value, &inner);
            self.steps.pop();
        }
        for names in &shape.required {
            let is_told = shape.unclear.iter().any(|unclear| names.contains(&unclear.key));
            if !is_told && !names.iter().any(|name| given.contains_key(*name)) {
                self.wrong(path::join(at, names[0]), "missing key".to_string(), None);
            }
        }
        // What is wrong with the table as a whole (two keys that exclude each other) shows only when it is tried as a whole.
        if before == self.found && !self.steps.is_empty() {
            self.try_value(&Value::Object(given.clone()), at, None);
        }
    }

    fn single(&mut self, schema: &Value, value: &Value, at: &str) {
        let near = value.as_str().and_then(|text| nearest(text, words(schema), 1).pop());
        self.try_value(value, at, near);
    }

    fn try_value(&mut self, value: &Value, at: &str, near: Option<String>) {
        let Some(try_alone) = self.try_alone else { return };
        let wrapped = self.steps.iter().rev().fold(value.clone(), |inner, step| match step {
            Step::Element => Value::Array(vec![inner]),
            Step::Key(key, tags) => {
                let tags = tags.iter().map(|(tag, name)| (tag.clone(), Value::from(name.as_str())));
                tags.chain([(key.clone(), inner)]).collect()
            }
        });
        let Some(message) = try_alone(wrapped) else { return };
        // Its neighbours are missing only because it is tried alone.
        if !message.starts_with("missing field") {
            self.wrong(at.to_string(), in_words(&message), near.filter(|_| message.contains("expected")));
        }
    }

    fn wrong(&mut self, at: String, message: String, suggestion: Option<String>) {
        self.found += 1;
        self.problems.suggest(at, message, suggestion);
    }
}

/// What is said about a key that is not among the known ones.
pub(super) fn unknown_key(key: &str, known: Vec<&str>) -> (String, Option<String>) {
    let near = nearest(key, known.iter().copied(), 1).pop();
    let message = match (&near, known.is_empty()) {
        (Some(_), _) | (None, true) => "unknown key".to_string(),
        (None, false) => format!("unknown key; there are `{}`", known.join("`, `")),
    };
    (message, near)
}

/// What serde says, in the words of a configuration file instead of Rust's.
pub(super) fn in_words(message: &str) -> String {
    let (found, expected) = match message.rsplit_once(", expected ") {
        Some((found, expected)) => (found, Some(expected)),
        None => (message, None),
    };
    let found = match found.strip_prefix("invalid type: ").or_else(|| found.strip_prefix("invalid value: ")) {
        Some(found) => format!("is {}", of_type(found)),
        None => match found.strip_prefix("unknown variant ") {
            Some(name) => format!("is {name}"),
            None => found.to_string(),
        },
    };
    match expected {
        Some(expected) => format!("{found}, expected {}", wanted(expected)),
        None => found,
    }
}

fn of_type(found: &str) -> String {
    for (serde, ours) in
        [("string ", "the text "), ("integer ", ""), ("floating point ", ""), ("boolean ", "")]
    {
        if let Some(value) = found.strip_prefix(serde) {
            return format!("{ours}{value}");
        }
    }
    match found {
        "map" => "a table".to_string(),
        "sequence" => "a list".to_string(),
        other => other.to_string(),
    }
}

fn wanted(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, not negative",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "path string" => "a text",
        "a sequence" => "a list",
        "a map" => "a table",
        _ if expected.starts_with("struct ") => "a table",
        _ => expected,
    }
}

#[cfg(test)]
#[path = "section_tests.rs"]
mod tests;
