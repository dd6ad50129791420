//! The texts or token ids that a capture reads.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value;
use tenterhook_lens::{LanguageModel, LensError};

use super::CaptureArgs;
use crate::cli::error::CliError;
use crate::cli::prompt::text_ids;

/// A million tokens take about 6 MB of JSON.
const LARGEST_TOKENS_FILE: u64 = 64 << 20;
const LONGEST_LINE: u64 = 64 << 20;

/// Token ids, one sequence at a time.
type Sequences<'a> = Box<dyn Iterator<Item = Result<Vec<u32>, LensError>> + 'a>;

/// What was given, each as token ids, and how many there are. A file has been read through once: all its lines are texts.
pub(super) fn sequences<'a>(
    args: &'a CaptureArgs,
    lm: &'a LanguageModel,
) -> Result<(u64, Sequences<'a>), CliError> {
    let bos = args.bos.choice();
    if let Some(path) = &args.tokens_file {
        let tokens = read_tokens(path)?;
        return Ok((tokens.len() as u64, Box::new(tokens.into_iter().map(Ok))));
    }
    if let Some(path) = &args.file {
        lm.tokenizer()?;
        let count = Lines::open(path)?.try_fold(0, |count, line| line.map(|_| count + 1));
        let count = count.map_err(CliError::bad_input)?;
        if count == 0 {
            return Err(CliError::bad_input(format!("{}: there is no text in it", path.display())));
        }
        let texts =
            Lines::open(path)?.map(move |line| lm.to_tokens(&line.map_err(LensError::BadInput)?, bos));
        return Ok((count, Box::new(texts)));
    }
    let encode = |text: &String| {
        let ids = lm.to_tokens(text, bos).and_then(|ids| match ids.is_empty() {
            true => Err(LensError::BadInput("a text needs at least one token".to_string())),
            false => Ok(ids),
        });
        ids.map_err(|error| CliError::bad_input(format!("--text: {error}")))
    };
    let all = args.text.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    Ok((all.len() as u64, Box::new(all.into_iter().map(Ok))))
}

/// What can be known of token ids before a run is begun for them.
pub(super) fn check_ids(args: &CaptureArgs, lm: &LanguageModel) -> Result<(), CliError> {
    let Some(path) = &args.tokens_file else { return Ok(()) };
    let bad = |problem: String| CliError::bad_input(format!("{}: {problem}", path.display()));
    let tokens = read_tokens(path)?;
    if tokens.is_empty() {
        return Err(bad("there are no sequences".to_string()));
    }
    for (number, ids) in tokens.iter().enumerate() {
        if ids.is_empty() {
            return Err(bad(format!("sequence {number} has no tokens")));
        }
        let checked = ids.iter().try_for_each(|id| lm.check_token(*id));
        checked.map_err(|error| bad(format!("sequence {number}: {error}")))?;
    }
    Ok(())
}

/// The same all at once, for a file that is written in one go: they must fit the model and be equally long.
pub(super) fn equally_long(args: &CaptureArgs, lm: &LanguageModel) -> Result<Vec<Vec<u32>>, CliError> {
    let mut all: Vec<Vec<u32>> = match (&args.tokens_file, args.text.as_slice()) {
        (None, [text]) if args.max_tokens.is_none() => vec![text_ids(lm, "--text", text, args.bos.choice())?],
        _ => sequences(args, lm)?.1.collect::<Result<_, _>>()?,
    };
    all.iter_mut().for_each(|ids| ids.truncate(args.max_tokens.unwrap_or(usize::MAX)));
    let source = match (&args.tokens_file, &args.file) {
        (Some(path), _) | (_, Some(path)) => path.display().to_string(),
        _ => "--text".to_string(),
    };
    check(&all, lm, args.gradients, args.tokens_file.is_some())
        .map_err(|problem| CliError::bad_input(format!("{source}: {problem}")))?;
    Ok(all)
}

/// What keeps these sequences from going through the model together.
pub(in crate::cli) fn check(
    tokens: &[Vec<u32>],
    lm: &LanguageModel,
    gradients: bool,
    are_ids: bool,
) -> Result<(), String> {
    let Some(first) = tokens.first() else { return Err("there are no sequences".into()) };
    let least = if gradients { 2 } else { 1 };
    if first.len() < least {
        let next = if least > 1 { "s, to have a next one" } else { "" };
        return Err(format!("a sequence needs at least {least} token{next}"));
    }
    if let Some(row) = tokens.iter().position(|row| row.len() != first.len()) {
        let way_out = if are_ids {
            ""
        } else {
            " in one file: cut them with --max-tokens, or give a directory as --out"
        };
        return Err(format!(
            "sequence {row} has {} tokens and sequence 0 has {}: all must be equally long{way_out}",
            tokens[row].len(),
            first.len()
        ));
    }
    let config = lm.model().config();
    for (row, ids) in tokens.iter().enumerate() {
        if let Some(column) = ids.iter().position(|id| *id as usize >= config.vocab) {
            return Err(format!(
                "token id {} (sequence {row}, position {column}) is outside the vocabulary of {}",
                ids[column], config.vocab
            ));
        }
    }
    lm.check_tokens(first).map_err(|error| error.to_string())
}

/// A JSON file with a list of lists of token ids.
pub(in crate::cli) fn read_tokens(path: &Path) -> Result<Vec<Vec<u32>>, CliError> {
    let bad = |problem: String| CliError::bad_input(format!("{}: {problem}", path.display()));
    // A device or a pipe has no size: what is read is what counts.
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| bad(error.to_string()))?;
    file.take(LARGEST_TOKENS_FILE + 1).read_to_end(&mut text).map_err(|error| bad(error.to_string()))?;
    if text.len() as u64 > LARGEST_TOKENS_FILE {
        return Err(bad(format!(
            "more than {} MiB are too much for a file of token ids",
            LARGEST_TOKENS_FILE >> 20
        )));
    }
    serde_json::from_slice(&text).map_err(|error| {
        bad(format!("expected a list of lists of token ids, such as [[1, 2], [3, 4]]: {error}"))
    })
}

/// The texts of a file, one line at a time.
struct Lines {
    shown: String,
    lines: BufReader<File>,
    number: u64,
    json: bool,
}

impl Lines {
    fn open(path: &Path) -> Result<Self, CliError> {
        let bad = |problem: String| CliError::bad_input(format!("{}: {problem}", path.display()));
        let file = File::open(path).map_err(|error| bad(error.to_string()))?;
        let about = file.metadata().map_err(|error| bad(error.to_string()))?;
        if !about.is_file() {
            return Err(
                bad("is not a file: it is read twice, a pipe or a directory will not do".to_string()),
            );
        }
        let json = path.extension().is_some_and(|extension| extension == "jsonl");
        Ok(Self { shown: path.display().to_string(), lines: BufReader::new(file), number: 0, json })
    }

    /// The next text; blank lines are none.
    fn read(&mut self) -> Result<Option<String>, String> {
        loop {
            self.number += 1;
            let mut line = Vec::new();
            let read = self.lines.by_ref().take(LONGEST_LINE + 1).read_until(b'\n', &mut line);
            if read.map_err(|error| error.to_string())? == 0 {
                return Ok(None);
            }
            if line.len() as u64 > LONGEST_LINE {
                return Err(format!("is longer than {} MiB", LONGEST_LINE >> 20));
            }
            let line = String::from_utf8(line).map_err(|error| format!("is not UTF-8: {error}"))?;
            let line = line.strip_suffix('\n').unwrap_or(&line);
            let line = line.strip_suffix('\r').unwrap_or(line);
            if line.trim().is_empty() {
                continue;
            }
            if !self.json {
                return Ok(Some(line.to_string()));
            }
            let object: Value =
                serde_json::from_str(line).map_err(|error| format!("is not JSON: {error}"))?;
            match &object["text"] {
                Value::String(text) if text.is_empty() => continue,
                Value::String(text) => return Ok(Some(text.clone())),
                _ => return Err("has no `text` that is a string".to_string()),
            }
        }
    }
}

impl Iterator for Lines {
    type Item = Result<String, String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().map_err(|problem| format!("{}, line {}: {problem}", self.shown, self.number)).transpose()
    }
}
