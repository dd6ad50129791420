//! TOML as a tree of values with lines.

use serde_json::{Map, Number, Value};
use toml_edit::{Item, TableLike};

use super::document::{MAX_DEPTH, Tree};
use super::path;
use super::problems::{Line, Problems};

/// Reads TOML; mistakes go into the tree.
pub(super) fn parse(text: &str, tree: &mut Tree) -> Option<Value> {
    match toml_edit::Document::parse(text) {
        Ok(document) => Some(table(document.as_table(), "", 0, tree)),
        Err(error) => {
            let at = error.span().map_or(text.len(), |span| span.start);
            tree.wrong_at("", text, at, error.message());
            None
        }
    }
}

fn table(table: &dyn TableLike, at: &str, depth: usize, tree: &mut Tree) -> Value {
    if depth > MAX_DEPTH {
        return too_deep(at, tree).unwrap_or_default();
    }
    let mut map = Map::new();
    for (key, item) in table.iter() {
        let at = path::join(at, key);
        let span = table.key(key).and_then(toml_edit::Key::span).or_else(|| item.span());
        if let Some(span) = span {
            tree.lines.insert(at.clone(), Line::At(tree.starts.line(span.start)));
        }
        if let Some(value) = value_of(item, &at, depth + 1, tree) {
            map.insert(key.to_string(), value);
        }
    }
    Value::Object(map)
}

fn value_of(item: &Item, at: &str, depth: usize, tree: &mut Tree) -> Option<Value> {
    match item {
        Item::None => None,
        Item::Value(inner) => single(inner, at, depth, tree),
        Item::Table(inner) => Some(table(inner, at, depth, tree)),
        Item::ArrayOfTables(tables) => {
            let elements = tables.iter().enumerate().map(|(index, inner)| {
                let at = element(at, index, inner.span(), tree);
                table(inner, &at, depth + 1, tree)
            });
            Some(elements.collect())
        }
    }
}

fn single(value: &toml_edit::Value, at: &str, depth: usize, tree: &mut Tree) -> Option<Value> {
    use toml_edit::Value::{Array, Boolean, Datetime, Float, InlineTable, Integer, String};
    match value {
        String(text) => Some(text.value().as_str().into()),
        Integer(number) => Some((*number.value()).into()),
        Boolean(flag) => Some((*flag.value()).into()),
        // A time of day is a handy way to write a duration.
        Datetime(time) => Some(time.value().to_string().into()),
        Float(number) => {
            let finite = Number::from_f64(*number.value());
            if finite.is_none() {
                let line = value.span().map_or(1, |span| tree.starts.line(span.start));
                tree.wrong(at, Line::At(line), format!("{} is no usable number", number.value()));
            }
            finite.map(Value::Number)
        }
        InlineTable(inner) => Some(table(inner, at, depth, tree)),
        Array(_) if depth > MAX_DEPTH => too_deep(at, tree),
        Array(list) => {
            let mut elements = Vec::new();
            for (index, inner) in list.iter().enumerate() {
                let at = element(at, index, inner.span(), tree);
                elements.extend(single(inner, &at, depth + 1, tree));
            }
            Some(Value::Array(elements))
        }
    }
}

fn too_deep(at: &str, tree: &mut Tree) -> Option<Value> {
    let line = tree.lines.get(at).copied().unwrap_or(Line::At(1));
    // The path would be as long as the nesting is deep.
    tree.wrong("", line, format!("values are nested deeper than {MAX_DEPTH}"));
    None
}

fn element(list: &str, index: usize, span: Option<std::ops::Range<usize>>, tree: &mut Tree) -> String {
    let at = path::element(list, index);
    if let Some(span) = span {
        tree.lines.insert(at.clone(), Line::At(tree.starts.line(span.start)));
    }
    at
}

/// A value that stands alone.
pub(super) fn value(value: &toml_edit::Value) -> Result<Value, String> {
    let mut tree = Tree::of("", Problems::default());
    let value = single(value, "", 0, &mut tree);
    match tree.problems.iter().next() {
        Some(problem) => Err(problem.message.clone()),
        None => value.ok_or_else(|| "no value".to_string()),
    }
}
