//! What can be wrong with data: which file, where in it, and the way out.

use std::io;
use std::path::{Path, PathBuf};

use tenterhook_hooks::BoxError;

/// Data could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The system did not let us read a file.
    #[error("cannot read `{}`: {source}; check the data set's `path`", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A directory, a pipe or a device.
    #[error("`{}` is not a regular file; `path` must name one", .0.display())]
    NotAFile(PathBuf),
    /// More than is read into memory.
    #[error(
        "`{}` is larger than {limit} bytes, the most that is read into memory; split it, or tokenize it into a file for `kind = \"tokens\"`, \
         which is mapped",
        .path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// The file does not end where a token ends.
    #[error(
        "`{}` has {bytes} bytes, which is no multiple of the {width} bytes of a token: it was cut short, or `dtype` is wrong",
        .path.display()
    )]
    TornToken {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// Bytes of a token.
        width: u64,
    },
    /// Not a single example fits.
    #[error(
        "{source_name} has {tokens} tokens, and an example of `block = {block}` takes one more than that; use a smaller `block` or more data"
    )]
    TooShort {
        /// The file or files.
        source_name: String,
        /// How many tokens there are.
        tokens: u64,
        /// The length of an example.
        block: usize,
    },
    /// A token id that the model does not have.
    #[error(
        "token {position} of `{}` is {token}, and the vocabulary ends at {}; the file is of another tokenizer, or its `dtype` is wrong",
        .path.display(), .vocab.saturating_sub(1)
    )]
    TokenOutsideVocab {
        /// The file.
        path: PathBuf,
        /// Which token, counted from 0.
        position: u64,
        /// Its id.
        token: u32,
        /// The size of the vocabulary.
        vocab: u64,
    },
    /// A data set has more token ids than the model.
    #[error(
        "data set `{name}` needs a vocabulary of {needed}, and there is one of {vocab}; use a model with a larger one, or another tokenizer"
    )]
    VocabTooSmall {
        /// The data set.
        name: String,
        /// What it needs.
        needed: u64,
        /// What there is.
        vocab: u64,
    },
    /// Examples are longer than the model can take.
    #[error("data set `{name}` has examples of {length} positions, and the model takes {context}; {way_out}")]
    TooLongForModel {
        /// The data set.
        name: String,
        /// The length of its examples.
        length: usize,
        /// The longest the model takes.
        context: usize,
        /// What to do.
        way_out: &'static str,
    },
    /// Text that is no text.
    #[error("byte {offset} of `{}` is not valid UTF-8; convert the file, or use `tokenizer = \"byte\"`, which takes any bytes", .path.display())]
    Utf8 {
        /// The file.
        path: PathBuf,
        /// Where the invalid sequence begins.
        offset: u64,
    },
    /// A line that is not the JSON object it should be.
    #[error("line {line} of `{}`: {problem}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong, and the way out.
        problem: String,
    },
    /// The tokenizer failed.
    #[error("the tokenizer failed on {place}: {source}")]
    Encode {
        /// The file, and the line where there are lines.
        place: String,
        /// What it says.
        source: BoxError,
    },
    /// Text needs a tokenizer, and none was given.
    #[error(
        "data set `{name}` wants tokenizer `{tokenizer}`, which is not loaded; use \"byte\", or hand over an encoder"
    )]
    NoTokenizer {
        /// The data set.
        name: String,
        /// The tokenizer it names.
        tokenizer: String,
    },
    /// An example that the set does not have.
    #[error("there is no example {index}: the data set has {len}")]
    NoExample {
        /// The index.
        index: u64,
        /// How many there are.
        len: u64,
    },
    /// A batch that the epoch does not have.
    #[error("there is no batch {batch} in an epoch of data set `{name}`, which has {len}")]
    NoBatch {
        /// The data set.
        name: String,
        /// The index.
        batch: u64,
        /// How many there are.
        len: u64,
    },
    /// More than anybody means to hold in one tensor.
    #[error(
        "a batch of {examples} examples with {block} tokens each is too large; use a smaller `batch` or `block`"
    )]
    BatchTooLarge {
        /// Examples.
        examples: usize,
        /// Tokens per example.
        block: usize,
    },
    /// Options of a data set that make no sense, all of them.
    #[error("data set `{name}`: {}", .problems.join("; "))]
    Options {
        /// The data set.
        name: String,
        /// What is wrong, and the way out.
        problems: Vec<String>,
    },
    /// Loaders that cannot be mixed.
    #[error("the data sets cannot be mixed: {0}")]
    Mixture(String),
    /// A cursor that was made for other data.
    #[error(
        "the saved place in the data does not fit: {0}; start a new run, or restore the data sets of the old one"
    )]
    Cursor(String),
    /// The tensor library failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

impl DataError {
    /// For `map_err` on reading a file.
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }

    /// One problem with the options of a generated set.
    pub(super) fn options(name: &str, problems: Vec<String>) -> Result<(), Self> {
        match problems.is_empty() {
            true => Ok(()),
            false => Err(Self::Options { name: name.to_string(), problems }),
        }
    }
}
