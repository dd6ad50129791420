//! What can go wrong, in words that name the thing, the place and the way out.

use std::fmt;
use std::sync::Arc;

/// What a hook may fail with: any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a hook's methods return. `?` works on every error type.
pub type HookResult<T = ()> = Result<T, BoxError>;

/// A hook failed. The run goes on or ends by the hook's policy; either way this is kept and shown.
#[derive(Debug, Clone, thiserror::Error)]
#[error("hook `{hook_id}` ({hook_type}) failed in {event}{}: {original_error}", at_point(.point))]
pub struct HookError {
    /// The hook's id.
    pub hook_id: String,
    /// The hook's kind.
    pub hook_type: String,
    /// What was being done: `observe`, `edit`, ...
    pub event: &'static str,
    /// The point it happened at, under the name that matched.
    pub point: Option<String>,
    /// The hook's own error, or the message of its panic.
    pub original_error: Arc<dyn std::error::Error + Send + Sync>,
    /// The way to it, when the manager was asked for that: [`HookManager::set_debug`](crate::HookManager::set_debug).
    pub backtrace: Option<Arc<String>>,
}

fn at_point(point: &Option<String>) -> String {
    point.as_ref().map(|name| format!(" at `{name}`")).unwrap_or_default()
}

/// A hook could not be registered, found or built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AttachError {
    /// A selector matched no point of the model.
    #[error("no {what} matches `{selector}`{}", or_nearest(.nearest))]
    NoMatch {
        /// "point" or "layer".
        what: &'static str,
        /// The selector as it was written.
        selector: String,
        /// The names nearest to it.
        nearest: Vec<String>,
    },
    /// A block index outside the model.
    #[error("block {index} does not exist: the model has {blocks} blocks, {}", block_range(*.blocks))]
    NoBlock {
        /// The index asked for.
        index: i64,
        /// How many blocks there are.
        blocks: usize,
    },
    /// A controller asked for a point that can only be observed.
    #[error("point `{0}` can be observed but not edited")]
    NotWritable(String),
    /// A gradient was asked for where there is none.
    #[error("there is no gradient at `{0}`")]
    NoGradient(String),
    /// A hook cannot work at a point that it asked for.
    #[error("hook kind `{kind}`: {problem}")]
    Unfit {
        /// The kind.
        kind: String,
        /// Why not.
        problem: String,
    },
    /// Controllers are refused by the manager's configuration.
    #[error("hook `{0}` edits tensors, and `enable_intervention` is false")]
    InterventionRefused(String),
    /// The id is taken.
    #[error("hook id `{0}` is taken; choose another, or replace the hook explicitly with `replace_hook`")]
    DuplicateId(String),
    /// No hook has this id.
    #[error("no hook has the id `{id}`{}", or_nearest(.nearest))]
    UnknownId {
        /// The id asked for.
        id: String,
        /// The ids nearest to it.
        nearest: Vec<String>,
    },
    /// No kind has this name.
    #[error("no hook kind is called `{kind}`{}", or_nearest(.nearest))]
    UnknownKind {
        /// The kind asked for.
        kind: String,
        /// The kinds nearest to it.
        nearest: Vec<String>,
    },
    /// The options of a hook are wrong; every problem is listed.
    #[error("hook kind `{kind}`: {}", problems.join("; "))]
    BadOptions {
        /// The kind being built.
        kind: String,
        /// One line per problem.
        problems: Vec<String>,
    },
    /// A kind is registered twice.
    #[error("hook kind `{0}` is registered already")]
    DuplicateKind(String),
    /// Two points or layers of one model were given the same name.
    #[error("the name `{0}` is declared twice in one model")]
    DuplicatePoint(String),
    /// A hook was asked for from inside itself.
    #[error("hook `{0}` is running on this thread, so it cannot be reached from here")]
    Busy(String),
    /// A monitoring, debug or capture method was called with the id of a hook of another kind.
    #[error("hook `{id}` is not a `{expected}` hook")]
    WrongKind {
        /// The id asked for.
        id: String,
        /// The kind the method is for.
        expected: &'static str,
    },
}

fn or_nearest(nearest: &[String]) -> String {
    if nearest.is_empty() {
        return String::new();
    }
    let names: Vec<String> = nearest.iter().map(|name| format!("`{name}`")).collect();
    format!("; nearest: {}", names.join(", "))
}

fn block_range(blocks: usize) -> String {
    match blocks {
        0 => "so no block index is valid".to_string(),
        n => format!("0 to {} or -{n} to -1", n - 1),
    }
}

/// Names that are less alike than this are no help.
const ALIKE: f64 = 0.2;

/// The `count` candidates that read most like `wanted`, best first.
pub fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>, count: usize) -> Vec<String> {
    let letters = Letters::of(wanted);
    let mut best: Vec<(f64, &str)> = Vec::new();
    for name in candidates {
        // Comparing costs the product of both lengths, and models have many points: only names that could still get
        // into the list are compared.
        let hope = letters.likeness_at_most(name);
        let full = best.len() >= count;
        if hope <= ALIKE || full && best.last().is_some_and(|(worst, _)| hope < *worst) {
            continue;
        }
        let score = strsim::normalized_damerau_levenshtein(wanted, name);
        if score <= ALIKE || best.iter().any(|(_, other)| *other == name) {
            continue;
        }
        let at = best
            .partition_point(|(other, text)| other.total_cmp(&score).reverse().then(text.cmp(&name)).is_lt());
        best.insert(at, (score, name));
        best.truncate(count);
    }
    best.into_iter().map(|(_, name)| name.to_string()).collect()
}

/// How often each byte stands in a text: enough to bound how alike two texts can be.
struct Letters {
    counts: [u32; 256],
    chars: usize,
}

impl Letters {
    fn of(text: &str) -> Self {
        let mut counts = [0; 256];
        text.bytes().for_each(|byte| counts[usize::from(byte)] += 1);
        Self { counts, chars: text.chars().count() }
    }

    /// Every character that is in one text only costs an edit.
    fn likeness_at_most(&self, other: &str) -> f64 {
        let other = Letters::of(other);
        let longest = self.chars.max(other.chars);
        let shared: u32 = self.counts.iter().zip(&other.counts).map(|(a, b)| a.min(b)).sum();
        let at_most = (shared as usize).min(self.chars).min(other.chars);
        // The same arithmetic as that of the score, so that the bound holds to the last bit.
        if longest == 0 { 1.0 } else { 1.0 - (longest - at_most) as f64 / longest as f64 }
    }
}

/// The message of a panic's payload.
pub(crate) struct PanicMessage(pub(crate) String);

impl PanicMessage {
    pub(crate) fn from_payload(payload: &(dyn std::any::Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_string())
            .or_else(|| payload.downcast_ref::<String>().cloned());
        Self(text.unwrap_or_else(|| "(a payload that is not text)".to_string()))
    }
}

impl fmt::Debug for PanicMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for PanicMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panicked: {}", self.0)
    }
}

impl std::error::Error for PanicMessage {}
