//! What can be wrong with a model directory, said once and completely.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// How many problems a message lists before it only counts them.
const LISTED: usize = 20;

/// A list of problems that stays small however many there are: the first ones in words, the others counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    listed: Vec<String>,
    count: usize,
}

impl Problems {
    /// Adds a problem; the words are only made when they will be shown.
    pub fn add(&mut self, describe: impl FnOnce() -> String) {
        self.count += 1;
        if self.listed.len() < LISTED {
            self.listed.push(describe());
        }
    }

    /// Adds everything another list holds.
    pub fn append(&mut self, other: Problems) {
        let unlisted = other.count - other.listed.len();
        other.listed.into_iter().for_each(|problem| self.add(|| problem));
        self.count += unlisted;
    }

    /// The number of problems, including those that are not listed.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.listed.as_slice()
            && self.count == 1
        {
            return f.write_str(only);
        }
        write!(f, "{} problems", self.count)?;
        for problem in &self.listed {
            write!(f, "\n  - {problem}")?;
        }
        match self.count - self.listed.len() {
            0 => Ok(()),
            more => write!(f, "\n  ... and {more} more"),
        }
    }
}

/// A `config.json` that does not describe a model Tenterhook can run exactly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problems}")]
pub struct ConfigError {
    /// Everything that is wrong with it.
    pub problems: Problems,
}

/// A model directory that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The directory does not hold a model.
    #[error("{}: {problem}", path.display())]
    NotAModel {
        /// The directory that was asked for.
        path: PathBuf,
        /// What was looked for.
        problem: String,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file whose contents are not what its name says.
    #[error("{}: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where it stops making sense.
        problem: String,
    },
    /// A configuration that is wrong or asks for something that is not supported.
    #[error("{}: {source}", path.display())]
    Config {
        /// The `config.json`.
        path: PathBuf,
        /// All that is wrong with it.
        source: ConfigError,
    },
    /// A description made by hand that is not consistent.
    #[error("not a possible model: {0}")]
    Description(#[from] ConfigError),
    /// Weights that do not fit the configuration.
    #[error("the weights in {} do not fit: {problems}", path.display())]
    Weights {
        /// The model directory.
        path: PathBuf,
        /// Every tensor that is missing, left over or of the wrong shape or type.
        problems: Problems,
    },
    /// Something that cannot be written as a model directory.
    #[error("cannot save {}: {problem}", path.display())]
    Unwritable {
        /// The model directory.
        path: PathBuf,
        /// What stands in the way.
        problem: String,
    },
    /// A name that is neither a directory nor a model that could be had from the hub.
    #[error("{name}: {problem}")]
    Hub {
        /// The name.
        name: String,
        /// Why not, and what can be done.
        problem: String,
    },
    /// A tokenizer that could not be loaded or failed on a text.
    #[error("{}: {problem}", path.display())]
    Tokenizer {
        /// The `tokenizer.json`.
        path: PathBuf,
        /// What it said.
        problem: String,
    },
    /// The tensor engine failed.
    #[error(transparent)]
    Engine(#[from] candle_core::Error),
}

impl ModelError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    pub(crate) fn hub(name: &impl fmt::Display, problem: String) -> Self {
        Self::Hub { name: name.to_string(), problem }
    }

    pub(crate) fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_path_buf(), problem: problem.into() }
    }
}

/// A name out of a file, fit for a message: in backticks, no control characters, never a page long.
pub(crate) fn shown(name: &str) -> String {
    const LONGEST: usize = 120;
    let cut: String = name.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    let more = if name.chars().nth(LONGEST).is_some() { "..." } else { "" };
    format!("`{cut}{more}`")
}

/// The candidate that a misspelt name most likely meant.
pub(crate) fn nearest<'a>(wanted: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A hostile file may hold a million names: looking at the plausible ones is enough for a hint.
    const LOOKED_AT: usize = 20_000;
    let furthest = (wanted.chars().count() / 2).clamp(1, 40);
    candidates
        .filter(|name| name.len().abs_diff(wanted.len()) <= furthest)
        .take(LOOKED_AT)
        .map(|name| (strsim::levenshtein(wanted, name), name))
        .filter(|(distance, _)| *distance <= furthest)
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_counted_not_printed() {
        let mut problems = Problems::default();
        (0..500).for_each(|i| problems.add(|| format!("tensor {i}")));
        let message = problems.to_string();
        assert!(message.starts_with("500 problems\n  - tensor 0\n"));
        assert!(message.ends_with("... and 480 more"));
        let mut both = Problems::default();
        both.append(problems);
        assert_eq!(both.len(), 500);
    }

    #[test]
    fn names_from_files_cannot_draw_on_the_terminal() {
        assert_eq!(shown("a\u{1b}[31m"), "`a\\u{1b}[31m`");
        assert!(shown(&"x".repeat(5000)).len() < 130);
    }

    #[test]
    fn nearest_name() {
        let names = ["gpt2", "gpt_neox", "llama"];
        assert_eq!(nearest("gpt-neox", names.into_iter()), Some("gpt_neox"));
        assert_eq!(nearest("bert", names.into_iter()), None);
    }
}
