//! A configuration file as a tree of values that knows its lines.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::problems::{Line, Lines, Problem, Problems};
use super::{json, overrides, toml};

/// A larger file is not a configuration.
const MAX_BYTES: u64 = 4 << 20;

/// Values deeper than this are refused, so that no file can exhaust the stack.
pub(super) const MAX_DEPTH: usize = 128;

/// How a configuration is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// TOML.
    Toml,
    /// JSON.
    Json,
}

/// A configuration: a tree without nulls (they count as not given), and the line of every key.
///
/// ```
/// use tenterhook_train::config::{Document, Format};
/// let mut document = Document::parse("[train]\nsteps = 300\n", Format::Toml)?;
/// document.set("train.steps=400")?;
/// assert_eq!(document.value()["train"]["steps"], 400);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Document {
    file: Option<String>,
    pub(super) value: Value,
    lines: Arc<Lines>,
}

impl Document {
    /// Reads text. Problems with the syntax have line and column.
    pub fn parse(text: &str, format: Format) -> Result<Self, Problems> {
        Self::parse_named(None, text, format)
    }

    /// Reads a file; `.json` is JSON, `.toml` is TOML.
    pub fn read(path: &Path) -> Result<Self, Problems> {
        let file = Some(path.display().to_string());
        let fail = |message: String| {
            let mut problems = Problems::of(file.clone(), Arc::default());
            problems.add("", message);
            problems
        };
        let format = match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => Format::Toml,
            Some("json") => Format::Json,
            _ => return Err(fail("a configuration ends with .toml or .json".to_string())),
        };
        // A pipe could block for ever.
        match std::fs::metadata(path) {
            Ok(about) if !about.is_file() => return Err(fail("is not a regular file".to_string())),
            _ => {}
        }
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
            .map_err(|error| fail(format!("cannot be read: {error}")))?;
        let text = String::from_utf8(bytes).map_err(|error| fail(format!("is no text: {error}")))?;
        Self::parse_named(file, &text, format)
    }

    fn parse_named(file: Option<String>, text: &str, format: Format) -> Result<Self, Problems> {
        let mut problems = Problems::of(file.clone(), Arc::default());
        if text.len() as u64 > MAX_BYTES {
            problems.add("", format!("has {} bytes, more than {MAX_BYTES}", text.len()));
            return Err(problems);
        }
        // Editors put a byte order mark before the text, where no one sees it.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut tree = Tree::of(text, problems);
        let value = match format {
            Format::Toml => toml::parse(text, &mut tree),
            Format::Json => json::parse(text, &mut tree),
        };
        match value {
            Some(value) if tree.problems.is_empty() => Ok(Self { file, value, lines: Arc::new(tree.lines) }),
            _ => Err(tree.problems),
        }
    }

    /// Overrides one value: `train.steps=100`, `optimizer[0].lr=1e-3` or `optimizer.0.lr=1e-3`. The value is TOML, else text.
    /// Missing tables are made.
    pub fn set(&mut self, assignment: &str) -> Result<(), Problems> {
        match overrides::apply(&mut self.value, assignment) {
            Ok(path) => {
                let lines = Arc::make_mut(&mut self.lines);
                lines.retain(|key, _| !super::path::is_within(key, &path));
                lines.insert(path, Line::Set);
                Ok(())
            }
            Err((path, message)) => {
                let mut problems = self.problems();
                problems.put(Problem { path, line: Some(Line::Set), message, suggestion: None });
                Err(problems)
            }
        }
    }

    /// Puts something else at a key of the root; nobody wrote it in any line.
    pub(super) fn replace(&mut self, key: &str, value: Value) {
        self.value[key] = value;
        Arc::make_mut(&mut self.lines).retain(|other, _| !super::path::is_within(other, key));
    }

    /// Adds hooks behind those that are there, as if they stood in this document.
    pub fn add_hooks(&mut self, hooks: Vec<Value>) {
        let own = match self.value.get("hooks") {
            Some(Value::Array(list)) => list.clone(),
            Some(table @ Value::Object(_)) => vec![table.clone()],
            _ => Vec::new(),
        };
        if let Some(root) = self.value.as_object_mut() {
            root.insert("hooks".to_string(), own.into_iter().chain(hooks).collect());
        }
    }

    /// The directory of the file it was read from; of text, the current one.
    pub fn directory(&self) -> PathBuf {
        let parent = self.file.as_deref().and_then(|file| Path::new(file).parent());
        parent.map(Path::to_path_buf).unwrap_or_default()
    }

    /// The tree.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// An empty list of problems that knows the lines of this document.
    pub fn problems(&self) -> Problems {
        Problems::of(self.file.clone(), Arc::clone(&self.lines))
    }
}

/// Values may be secret and are not shown.
impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document")
            .field("file", &self.file)
            .field("keys", &self.lines.len())
            .finish_non_exhaustive()
    }
}

/// What a parser fills in beside the value.
pub(super) struct Tree {
    pub(super) starts: Starts,
    pub(super) lines: Lines,
    pub(super) problems: Problems,
}

impl Tree {
    pub(super) fn of(text: &str, problems: Problems) -> Self {
        Self { starts: Starts::of(text), lines: Lines::new(), problems }
    }

    /// Notes a mistake at a byte of the text.
    pub(super) fn wrong_at(&mut self, path: &str, text: &str, at: usize, message: impl Into<String>) {
        let (line, column) = self.starts.position(text, at);
        self.wrong(path, Line::Exactly(line, column), message);
    }

    /// Notes a mistake in a line.
    pub(super) fn wrong(&mut self, path: &str, line: Line, message: impl Into<String>) {
        let (path, message) = (path.to_string(), message.into());
        self.problems.put(Problem { path, line: Some(line), message, suggestion: None });
    }
}

/// Where the lines of a text start.
pub(super) struct Starts(Vec<usize>);

impl Starts {
    fn of(text: &str) -> Self {
        Self(std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect())
    }

    /// The line of a byte, from 1.
    pub(super) fn line(&self, at: usize) -> usize {
        self.0.partition_point(|start| *start <= at)
    }

    fn position(&self, text: &str, at: usize) -> (usize, usize) {
        let at = at.min(text.len());
        let line = self.line(at);
        let start = self.0[line - 1];
        let before = text[start..].char_indices().take_while(|(index, _)| start + index < at);
        (line, 1 + before.count())
    }
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
