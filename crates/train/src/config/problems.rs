//! What is wrong with a configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::path;

/// How many problems are shown; who has more made one mistake many times.
const SHOWN: usize = 50;

/// Characters of a message.
const LONGEST: usize = 500;

/// Where a value was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Line {
    /// In this line of the file, from 1.
    At(usize),
    /// In this line and column of the file, from 1. Columns count characters.
    Exactly(usize, usize),
    /// On the command line.
    Set,
}

/// The lines of all keys, by path.
pub(super) type Lines = BTreeMap<String, Line>;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key, such as `data.train[1].batch`; empty for the whole file.
    pub path: String,
    /// Where it, or the table that lacks it, was written.
    pub line: Option<Line>,
    /// What is wrong.
    pub message: String,
    /// The name that was probably meant.
    pub suggestion: Option<String>,
}

/// Everything that is wrong with a configuration. Shown sorted by line, each problem once.
///
/// ```
/// use tenterhook_train::config::{Document, Format};
/// let document = Document::parse("[train]\nsteps = 5\n", Format::Toml)?;
/// let mut problems = document.problems();
/// problems.add("train.steps", "too few");
/// assert_eq!(problems.to_string(), "line 2: train.steps: too few");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Problems {
    file: Option<String>,
    lines: Arc<Lines>,
    list: Vec<Problem>,
}

impl Problems {
    pub(super) fn of(file: Option<String>, lines: Arc<Lines>) -> Self {
        Self { file, lines, list: Vec::new() }
    }

    /// Notes a problem with what is at `path`.
    pub fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.suggest(path, message, None);
    }

    /// Notes a problem and the name that was probably meant.
    pub fn suggest(
        &mut self,
        path: impl Into<String>,
        message: impl Into<String>,
        suggestion: Option<String>,
    ) {
        let path = path.into();
        let line = self.line_of(&path);
        self.put(Problem { path, line, message: message.into(), suggestion });
    }

    /// Notes problems with keys of the table at `path`.
    pub fn add_keys(&mut self, path: &str, problems: impl IntoIterator<Item = (String, String)>) {
        for (key, message) in problems {
            // Keys may themselves be paths, such as `betas[0]`; an empty one is the table.
            let separator = if path.is_empty() || key.is_empty() || key.starts_with('[') { "" } else { "." };
            self.add(format!("{path}{separator}{key}"), message);
        }
    }

    /// Notes those of another list too.
    pub fn extend(&mut self, others: Self) {
        others.list.into_iter().for_each(|problem| self.put(problem));
    }

    pub(super) fn put(&mut self, mut problem: Problem) {
        // Messages quote values, and a value can be as long as the file.
        if let Some((end, _)) = problem.message.char_indices().nth(LONGEST) {
            problem.message.truncate(end);
            problem.message.push_str("...");
        }
        if !self.list.contains(&problem) {
            let after = |other: &Problem| Self::order(other) <= Self::order(&problem);
            self.list.insert(self.list.partition_point(after), problem);
        }
    }

    /// What is about no line is about the whole file: first. The command line is last.
    fn order(problem: &Problem) -> (usize, usize) {
        match problem.line {
            None => (0, 0),
            Some(Line::At(line)) => (line, 0),
            Some(Line::Exactly(line, column)) => (line, column),
            Some(Line::Set) => (usize::MAX, 0),
        }
    }

    /// The line of a key, or of the nearest table around it that has one.
    fn line_of(&self, path: &str) -> Option<Line> {
        let mut at = Some(path);
        while let Some(path) = at {
            if let Some(line) = self.lines.get(path) {
                return Some(*line);
            }
            at = path::parent(path);
        }
        None
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How many problems there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The problems, sorted by line.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().take(SHOWN).enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            match (&self.file, problem.line) {
                (_, Some(Line::Set)) => write!(f, "--set: ")?,
                (Some(file), Some(Line::At(line))) => write!(f, "{file}:{line}: ")?,
                (Some(file), Some(Line::Exactly(line, column))) => write!(f, "{file}:{line}:{column}: ")?,
                (None, Some(Line::At(line))) => write!(f, "line {line}: ")?,
                (None, Some(Line::Exactly(line, column))) => write!(f, "line {line}, column {column}: ")?,
                (Some(file), None) => write!(f, "{file}: ")?,
                (None, None) => {}
            }
            if !problem.path.is_empty() {
                write!(f, "{}: ", problem.path)?;
            }
            f.write_str(&problem.message)?;
            if let Some(name) = &problem.suggestion {
                write!(f, "; did you mean `{name}`?")?;
            }
        }
        if self.list.len() > SHOWN {
            write!(f, "\n... and {} more", self.list.len() - SHOWN)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems() -> Problems {
        let lines = [("train", Line::At(3)), ("train.steps", Line::At(10)), ("run.seed", Line::Set)];
        let lines = lines.into_iter().map(|(path, line)| (path.to_string(), line)).collect();
        Problems::of(Some("config.toml".to_string()), Arc::new(lines))
    }

    #[test]
    fn each_problem_is_shown_once_sorted_by_line() {
        let mut problems = problems();
        problems.add("run.seed", "negative");
        problems.add("train.steps", "zero");
        problems.suggest("train.stepz", "unknown key", Some("steps".to_string()));
        problems.add("train.steps", "zero");
        problems.add("model", "missing");
        problems.add_keys("train", [("betas[0]".to_string(), "above 1".to_string())]);
        assert_eq!(problems.len(), 5);
        assert_eq!(
            problems.to_string(),
            "config.toml: model: missing\n\
             config.toml:3: train.stepz: unknown key; did you mean `steps`?\n\
             config.toml:3: train.betas[0]: above 1\n\
             config.toml:10: train.steps: zero\n\
             --set: run.seed: negative"
        );
    }

    #[test]
    fn long_messages_are_cut() {
        let mut problems = problems();
        problems.add("train", "ü".repeat(501));
        assert_eq!(problems.to_string(), format!("config.toml:3: train: {}...", "ü".repeat(500)));
    }

    #[test]
    fn no_more_than_fifty_are_shown() {
        let mut problems = problems();
        (0..60).for_each(|index| problems.add(format!("key_{index}"), "unknown key"));
        let text = problems.to_string();
        assert_eq!(text.lines().count(), 51);
        assert!(text.ends_with("\n... and 10 more"), "{text}");
    }
}
