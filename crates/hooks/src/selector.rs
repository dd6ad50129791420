//! Which points a hook is for.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{AttachError, nearest};
use crate::hook::Site;
use crate::point::{PointId, PointTable};

/// A choice of points: an exact name, a layer's path, a glob, a block index, or a list of these.
///
/// ```
/// use tenterhook_hooks::Selector;
/// let exact: Selector = "blocks.0.attn.hook_z".into();
/// let layer: Selector = "transformer.h.0.attn.c_attn".into(); // its output
/// let glob: Selector = "blocks.*.hook_resid_post".into(); // `*` spans dots, as in fnmatch
/// let last_block: Selector = (-1).into();
/// let both: Selector = vec![exact, last_block].into();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// A name, a layer's path, or a glob (when it has `*`, `?` or `[`).
    Name(String),
    /// A transformer block; negative from the end.
    Block(i64),
    /// Everything any of these chooses.
    Any(Vec<Selector>),
}

/// One point that a selector chose, with the name that matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The point.
    pub point: PointId,
    /// The name under which its values are stored and reported.
    pub name: Arc<str>,
}

impl Selector {
    /// The points of `table` that are chosen, each once, in the order of the table. Choosing nothing is an error.
    pub fn resolve(&self, table: &PointTable, site: Site) -> Result<Vec<Match>, AttachError> {
        let mut matches = Vec::new();
        self.collect(table, site, &mut matches)?;
        matches.sort_by_key(|found| found.point);
        matches.dedup_by_key(|found| found.point);
        Ok(matches)
    }

    fn collect(&self, table: &PointTable, site: Site, into: &mut Vec<Match>) -> Result<(), AttachError> {
        match self {
            // A name may have brackets of its own: what is there literally comes first.
            Selector::Name(name) if is_glob(name) && !table.has_name(name) => {
                into.extend(match_glob(name, table, site)?)
            }
            Selector::Name(name) => into.push(match_name(name, table, site)?),
            Selector::Block(index) => {
                let block = table.block(*index)?;
                into.push(match site.is_input() {
                    true => Match::new(block.input, &format!("{}.hook_in", block.path)),
                    false => Match::new(block.output, &block.path),
                });
            }
            Selector::Any(list) if list.is_empty() => {
                return Err(AttachError::NoMatch { what: "point", selector: "[]".into(), nearest: vec![] });
            }
            Selector::Any(list) => {
                for selector in list {
                    selector.collect(table, site, into)?;
                }
            }
        }
        Ok(())
    }
}

impl Match {
    fn new(point: PointId, name: &str) -> Self {
        Self { point, name: name.into() }
    }
}

fn match_name(name: &str, table: &PointTable, site: Site) -> Result<Match, AttachError> {
    if site.is_input() {
        let layer = table.layer(name).ok_or_else(|| no_layer(name, table))?;
        return Ok(Match::new(layer.input, &format!("{name}.hook_in")));
    }
    table.find(name).map(|point| Match::new(point, name)).ok_or_else(|| no_point(name, table))
}

/// Canonical names first and, where none matches, aliases.
fn match_glob(glob: &str, table: &PointTable, site: Site) -> Result<Vec<Match>, AttachError> {
    let pattern: Vec<char> = glob.chars().collect(); // once, for all names
    let fits = |name: &str| pattern_matches(&pattern, name);
    if site.is_input() {
        let layers = table.layers().iter().filter(|layer| fits(&layer.path));
        let found: Vec<Match> =
            layers.map(|layer| Match::new(layer.input, &format!("{}.hook_in", layer.path))).collect();
        return if found.is_empty() { Err(no_layer(glob, table)) } else { Ok(found) };
    }
    let open = || table.iter().filter(|(_, point)| !point.on_demand);
    let mut found: Vec<Match> = open()
        .filter(|(_, point)| fits(&point.name))
        .map(|(id, point)| Match::new(id, &point.name))
        .collect();
    if found.is_empty() {
        let alias = |point: &crate::point::Point| point.aliases.iter().find(|name| fits(name)).cloned();
        found = open().filter_map(|(id, point)| alias(point).map(|name| Match::new(id, &name))).collect();
    }
    if found.is_empty() {
        // A costly point is reached by a glob over its own name: `blocks.*.attn.hook_result`.
        let own = |name: &str| name.rsplit('.').next().is_some_and(|last| glob.ends_with(last)) && fits(name);
        found = table
            .iter()
            .filter(|(_, point)| point.on_demand && own(&point.name))
            .map(|(id, point)| Match::new(id, &point.name))
            .collect();
    }
    if found.is_empty() { Err(no_point(glob, table)) } else { Ok(found) }
}

fn no_point(name: &str, table: &PointTable) -> AttachError {
    AttachError::NoMatch {
        what: "point",
        selector: name.to_string(),
        nearest: nearest(name, table.all_names(), 3),
    }
}

fn no_layer(name: &str, table: &PointTable) -> AttachError {
    let paths = table.layers().iter().map(|layer| layer.path.as_str());
    AttachError::NoMatch { what: "layer", selector: name.to_string(), nearest: nearest(name, paths, 3) }
}

fn is_glob(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

/// Whether `text` matches a pattern of `*` (anything, dots too), `?` (one character) and `[abc]`, `[a-z]`, `[!a]`.
/// Linear in memory and at most quadratic in time, whatever the pattern.
pub fn glob_matches(pattern: &str, text: &str) -> bool {
    pattern_matches(&pattern.chars().collect::<Vec<_>>(), text)
}

fn pattern_matches(pattern: &[char], text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None; // after the last `*`: where to go on in pattern and text
    while t < text.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                retry = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => class_matches(&pattern[p..], text[t]),
            Some(c) if *c == text[t] => Some(1),
            _ => None,
        };
        match (step, retry) {
            (Some(length), _) => {
                p += length;
                t += 1;
            }
            (None, Some((after_star, from))) => {
                retry = Some((after_star, from + 1));
                p = after_star;
                t = from + 1;
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// The length of the class at the beginning of `pattern` when `c` is in it. An unclosed `[` stands for itself.
fn class_matches(pattern: &[char], c: char) -> Option<usize> {
    let negated = pattern.get(1) == Some(&'!');
    let first = if negated { 2 } else { 1 };
    let Some(end) = (first + 1..pattern.len()).find(|&i| pattern[i] == ']') else {
        return (c == '[').then_some(1);
    };
    let mut inside = false;
    let mut i = first;
    while i < end {
        if i + 2 < end && pattern[i + 1] == '-' {
            inside |= (pattern[i]..=pattern[i + 2]).contains(&c);
            i += 3;
        } else {
            inside |= pattern[i] == c;
            i += 1;
        }
    }
    (inside != negated).then_some(end + 1)
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Name(name) => f.write_str(name),
            Selector::Block(index) => write!(f, "{index}"),
            Selector::Any(list) => {
                let texts: Vec<String> = list.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", texts.join(", "))
            }
        }
    }
}

impl From<&str> for Selector {
    fn from(text: &str) -> Self {
        match text.parse() {
            Ok(index) => Selector::Block(index),
            Err(_) => Selector::Name(text.to_string()),
        }
    }
}

impl From<String> for Selector {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<i64> for Selector {
    fn from(index: i64) -> Self {
        Selector::Block(index)
    }
}

impl<T: Into<Selector>> From<Vec<T>> for Selector {
    fn from(list: Vec<T>) -> Self {
        Selector::Any(list.into_iter().map(Into::into).collect())
    }
}

impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Selector::Name(name) => serializer.serialize_str(name),
            Selector::Block(index) => serializer.serialize_i64(*index),
            Selector::Any(list) => serializer.collect_seq(list),
        }
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = Selector;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a point's name, a glob, a block index, or a list of these")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Selector, E> {
                Ok(text.into())
            }
            fn visit_i64<E: de::Error>(self, index: i64) -> Result<Selector, E> {
                Ok(Selector::Block(index))
            }
            fn visit_u64<E: de::Error>(self, index: u64) -> Result<Selector, E> {
                i64::try_from(index).map(Selector::Block).map_err(E::custom)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Selector, A::Error> {
                let mut list = Vec::new();
                while let Some(selector) = seq.next_element()? {
                    list.push(selector);
                }
                Ok(Selector::Any(list))
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

impl JsonSchema for Selector {
    fn schema_name() -> Cow<'static, str> {
        "Selector".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let list = generator.subschema_for::<Vec<Selector>>();
        json_schema!({
            "description": "a point's name, a layer's path, a glob, a block index, or a list of these",
            "anyOf": [{"type": "string"}, {"type": "integer"}, list]
        })
    }
}
