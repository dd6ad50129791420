//! The texts that a model is run on.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tenterhook_lens::LanguageModel;
use tenterhook_sae::source::{TextOptions, sequences};

use super::super::error::CliError;
use super::super::prompt::BosArgs;

/// Held in memory, with its tokens.
const LARGEST: u64 = 1 << 30;

/// How texts go through the model.
#[derive(Args)]
pub(super) struct TextArgs {
    /// The most tokens of a sequence: a longer text becomes several.
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub(super) context: usize,
    /// Sequences that go through the model together.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(super) model_batch: usize,
    /// Leave out the activations at the first N positions of every sequence.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(super) skip_first: usize,
    #[command(flatten)]
    pub(super) bos: BosArgs,
}

impl TextArgs {
    /// The sequences of a file: a text per line.
    pub(super) fn sequences(&self, lm: &LanguageModel, path: &Path) -> Result<Vec<Vec<u32>>, CliError> {
        let options = TextOptions { context: self.context, prepend_bos: self.bos.choice() };
        let text = read(path)?;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        sequences(lm, lines, &options)
            .map_err(|error| CliError::bad_input(format!("{}: {error}", path.display())))
    }
}

fn read(path: &Path) -> Result<String, CliError> {
    let bad = |problem: String| CliError::bad_input(format!("{}: {problem}", path.display()));
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| bad(error.to_string()))?;
    file.take(LARGEST + 1).read_to_end(&mut text).map_err(|error| bad(error.to_string()))?;
    if text.len() as u64 > LARGEST {
        return Err(bad(format!(
            "more than {} MiB are too much to hold; capture into a store first",
            LARGEST >> 20
        )));
    }
    String::from_utf8(text).map_err(|error| bad(format!("is not UTF-8: {error}")))
}

/// A bar on a terminal, nothing elsewhere.
pub(super) fn progress(total: usize, what: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} {eta}");
    ProgressBar::new(total as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(what)
}

/// A path as it is given to the library.
pub(super) fn full(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}
