//! What latents stand for: names from a file.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tenterhook_hooks::nearest;

use crate::error::SaeError;

const LARGEST: u64 = 64 << 20;

/// Names of latents.
///
/// ```
/// use tenterhook_sae::ConceptNames;
/// let names = ConceptNames::from_csv("latent,name\n3,days of the week\n7,\"quotes, \"\"nested\"\"\"\n")?;
/// assert_eq!((names.get(3), names.find("days of the week")?), (Some("days of the week"), 3));
/// assert_eq!(names.get(7), Some("quotes, \"nested\""));
/// # Ok::<(), tenterhook_sae::SaeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConceptNames {
    names: BTreeMap<usize, String>,
}

impl ConceptNames {
    /// Reads a file: `.json` or CSV.
    pub fn load(path: &Path) -> Result<Self, SaeError> {
        let about = std::fs::metadata(path).map_err(|error| SaeError::about(path, error))?;
        if !about.is_file() || about.len() > LARGEST {
            return Err(SaeError::about(
                path,
                format!("must be a regular file of at most {} MiB", LARGEST >> 20),
            ));
        }
        let text = std::fs::read_to_string(path).map_err(|error| SaeError::about(path, error))?;
        let is_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        let read = if is_json { Self::from_json(&text) } else { Self::from_csv(&text) };
        read.map_err(|error| SaeError::about(path, error))
    }

    /// Lines of `latent,name`; a first line of words is a heading.
    pub fn from_csv(text: &str) -> Result<Self, SaeError> {
        let mut names = Self::default();
        for (line, fields) in records(text)? {
            let [latent, name, ..] = fields.as_slice() else {
                return Err(SaeError::bad(format!(
                    "line {line}: expected `latent,name`, such as `12,days of the week`"
                )));
            };
            match latent.trim().parse() {
                Ok(latent) => names.add(latent, name.trim(), &format!("line {line}"))?,
                Err(_) if line == 1 => {}
                Err(_) => {
                    return Err(SaeError::bad(format!(
                        "line {line}: `{}` is not the number of a latent",
                        latent.trim()
                    )));
                }
            }
        }
        Ok(names)
    }

    /// An object of names by latent, or a list of objects with `latent` and `name`.
    pub fn from_json(text: &str) -> Result<Self, SaeError> {
        let json: Value = serde_json::from_str(text)
            .map_err(|error| SaeError::bad(format!("is not valid JSON: {error}")))?;
        let mut names = Self::default();
        let form = || {
            SaeError::bad(
                "expected an object such as {\"12\": \"days\"}, or a list such as [{\"latent\": 12, \"name\": \"days\"}]",
            )
        };
        let pairs: Vec<(Option<usize>, Option<&str>)> = match &json {
            Value::Object(map) => {
                map.iter().map(|(latent, name)| (latent.parse().ok(), name.as_str())).collect()
            }
            Value::Array(list) => list
                .iter()
                .map(|entry| (entry["latent"].as_u64().map(|latent| latent as usize), entry["name"].as_str()))
                .collect(),
            _ => return Err(form()),
        };
        for (i, pair) in pairs.into_iter().enumerate() {
            let (Some(latent), Some(name)) = pair else { return Err(form()) };
            names.add(latent, name, &format!("entry {i}"))?;
        }
        Ok(names)
    }

    fn add(&mut self, latent: usize, name: &str, place: &str) -> Result<(), SaeError> {
        if name.is_empty() {
            return Err(SaeError::bad(format!("{place}: latent {latent} has an empty name")));
        }
        match self.names.insert(latent, name.to_string()) {
            None => Ok(()),
            Some(_) => Err(SaeError::bad(format!("{place}: latent {latent} has two names"))),
        }
    }

    /// The name of a latent.
    pub fn get(&self, latent: usize) -> Option<&str> {
        self.names.get(&latent).map(String::as_str)
    }

    /// The latent of a name. A name that nobody or that several have is an error.
    pub fn find(&self, name: &str) -> Result<usize, SaeError> {
        let found: Vec<usize> =
            self.names.iter().filter(|(_, other)| *other == name).map(|(latent, _)| *latent).collect();
        match found.as_slice() {
            [latent] => Ok(*latent),
            [] => {
                let near = nearest(name, self.names.values().map(String::as_str), 3);
                let hint = if near.is_empty() {
                    "no names are given".to_string()
                } else {
                    format!("nearest: {}", near.join(", "))
                };
                Err(SaeError::bad(format!("no latent is named `{name}`; {hint}")))
            }
            several => Err(SaeError::bad(format!(
                "several latents are named `{name}`: {several:?}; give the number"
            ))),
        }
    }

    /// The latent of a number or of a name, for an autoencoder of so many latents.
    pub fn resolve(&self, text: &str, latents: usize) -> Result<usize, SaeError> {
        let latent = match text.trim().parse() {
            Ok(latent) => latent,
            Err(_) => self.find(text.trim())?,
        };
        match latent < latents {
            true => Ok(latent),
            false => Err(SaeError::bad(format!(
                "there is no latent {latent}: there are {latents}, counted from 0"
            ))),
        }
    }
}

/// The fields of every line that is not empty, with quotes as in RFC 4180.
fn records(text: &str) -> Result<Vec<(usize, Vec<String>)>, SaeError> {
    let mut records = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
        let mut chars = line.trim_start_matches('\u{feff}').chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '"' if quoted && chars.next_if_eq(&'"').is_some() => field.push('"'),
                '"' => quoted = !quoted,
                ',' if !quoted => fields.push(std::mem::take(&mut field)),
                c => field.push(c),
            }
        }
        if quoted {
            return Err(SaeError::bad(format!("line {}: a quote is not closed", number + 1)));
        }
        fields.push(field);
        records.push((number + 1, fields));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_every_form() -> Result<(), SaeError> {
        let csv = ConceptNames::from_csv("latent,name,note\n3,days,x\n\n5, months \n")?;
        assert_eq!((csv.get(3), csv.get(5), csv.get(4)), (Some("days"), Some("months"), None));
        assert_eq!(ConceptNames::from_json(r#"{"3": "days", "5": "months"}"#)?, csv);
        assert_eq!(
            ConceptNames::from_json(r#"[{"latent": 3, "name": "days"}, {"latent": 5, "name": "months"}]"#)?,
            csv
        );
        assert_eq!((csv.resolve("days", 10)?, csv.resolve(" 7 ", 10)?), (3, 7));
        Ok(())
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let check = |error: Result<ConceptNames, SaeError>, expected: &str| {
            let error = error.map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(ConceptNames::from_csv("3\n"), "line 1: expected `latent,name`");
        check(ConceptNames::from_csv("3,a\nb,c\n"), "line 2: `b` is not the number");
        check(ConceptNames::from_csv("3,a\n3,c\n"), "line 2: latent 3 has two names");
        check(ConceptNames::from_csv("3,\"a\n"), "line 1: a quote is not closed");
        check(ConceptNames::from_csv("3,\n"), "empty name");
        check(ConceptNames::from_json("3"), "expected an object");
        check(ConceptNames::from_json("{"), "not valid JSON");
        let names = ConceptNames::from_csv("3,days\n4,twice\n5,twice\n").unwrap();
        for (text, expected) in
            [("day", "nearest: days"), ("twice", "[4, 5]"), ("99", "there is no latent 99")]
        {
            let error = names.resolve(text, 10).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
