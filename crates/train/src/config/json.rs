//! JSON as a tree of values with lines.

use serde_json::{Map, Value};

use super::document::Tree;
use super::path;
use super::problems::Line;

/// Reads JSON; mistakes go into the tree. Two passes: `serde_json` reads (and bounds the depth), the walk finds the lines.
pub(super) fn parse(text: &str, tree: &mut Tree) -> Option<Value> {
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => {
            let (line, column) = (error.line().max(1), error.column().max(1));
            let message = error.to_string();
            // It ends with the position, which is told in front already.
            let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
            tree.wrong("", Line::Exactly(line, column), message);
            return None;
        }
    };
    if !value.is_object() {
        tree.wrong("", Line::At(1), "a configuration is an object: { ... }");
        return None;
    }
    Walk { text, at: 0, tree }.value("");
    without_nulls(value, "", tree)
}

/// A walk through text that is known to be JSON.
struct Walk<'a> {
    text: &'a str,
    at: usize,
    tree: &'a mut Tree,
}

impl Walk<'_> {
    fn peek(&mut self) -> Option<u8> {
        let rest = self.text.as_bytes().get(self.at..)?;
        let blank = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.at += blank;
        rest.get(blank).copied()
    }

    fn value(&mut self, path: &str) {
        match self.peek() {
            Some(b'{') => self.object(path),
            Some(b'[') => self.list(path),
            Some(b'"') => drop(self.string()),
            _ => {
                let rest = &self.text.as_bytes()[self.at..];
                self.at += rest.iter().take_while(|byte| !b",]} \t\r\n".contains(byte)).count();
            }
        }
    }

    fn object(&mut self, path: &str) {
        let mut seen = std::collections::BTreeSet::new();
        self.at += 1;
        while self.peek() == Some(b'"') {
            let start = self.at;
            let key = self.string();
            let inner = path::join(path, &key);
            self.note(&inner, start);
            if !seen.insert(key) {
                self.tree.wrong_at(&inner, self.text, start, "the key is given twice");
            }
            self.peek();
            self.at += 1; // the colon
            self.value(&inner);
            self.comma();
        }
        self.at += 1;
    }

    fn list(&mut self, path: &str) {
        self.at += 1;
        let mut index = 0;
        while self.peek().is_some_and(|byte| byte != b']') {
            let inner = path::element(path, index);
            self.note(&inner, self.at);
            self.value(&inner);
            self.comma();
            index += 1;
        }
        self.at += 1;
    }

    fn comma(&mut self) {
        if self.peek() == Some(b',') {
            self.at += 1;
        }
    }

    fn string(&mut self) -> String {
        let rest = &self.text.as_bytes()[self.at + 1..];
        let mut escaped = false;
        let is_end = |byte: &u8| match byte {
            _ if escaped => {
                escaped = false;
                false
            }
            b'\\' => {
                escaped = true;
                false
            }
            byte => *byte == b'"',
        };
        let length = 2 + rest.iter().position(is_end).unwrap_or(rest.len());
        let end = (self.at + length).min(self.text.len());
        let quoted = &self.text[self.at..end];
        self.at = end;
        serde_json::from_str(quoted).unwrap_or_default()
    }

    fn note(&mut self, path: &str, at: usize) {
        self.tree.lines.insert(path.to_string(), Line::At(self.tree.starts.line(at)));
    }
}

/// TOML has neither nulls nor integers beyond 64 bits with a sign: a null key is not given, the rest is refused.
fn without_nulls(value: Value, at: &str, tree: &mut Tree) -> Option<Value> {
    let mut wrong = |message: &str| {
        let line = tree.lines.get(at).copied().unwrap_or(Line::At(1));
        tree.wrong(at, line, message);
        None
    };
    match value {
        Value::Null => wrong("null in a list"),
        Value::Number(number) if number.as_u64().is_some_and(|number| number > i64::MAX as u64) => {
            wrong("the number is above 9223372036854775807")
        }
        Value::Array(list) => {
            let list = list.into_iter().enumerate();
            Some(
                list.filter_map(|(index, value)| without_nulls(value, &path::element(at, index), tree))
                    .collect(),
            )
        }
        Value::Object(map) => {
            let mut kept = Map::new();
            for (key, value) in map.into_iter().filter(|(_, value)| !value.is_null()) {
                let value = without_nulls(value, &path::join(at, &key), tree)?;
                kept.insert(key, value);
            }
            Some(Value::Object(kept))
        }
        other => Some(other),
    }
}
