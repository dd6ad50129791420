//! The texts that a model is run on.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use tenterhook_lens::LanguageModel;
use tenterhook_sae::source::{TextOptions, sequences, token_sequences};

use super::super::error::CliError;
use super::super::prompt::{BosArgs, written_ids};

/// Held in memory, with its tokens.
const LARGEST: u64 = 1 << 30;

/// How texts go through the model.
#[derive(Args)]
pub(super) struct TextArgs {
    /// The most tokens of a sequence: a longer text becomes several. By default 128, or as many as the model has positions.
    #[arg(long, value_name = "N")]
    pub(super) context: Option<usize>,
    /// Sequences that go through the model together.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(super) model_batch: usize,
    /// Leave out the activations at the first N positions of every sequence.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(super) skip_first: usize,
    /// The lines of the file are token ids, such as 464,2068,7586.
    #[arg(long)]
    token_lines: bool,
    #[command(flatten)]
    pub(super) bos: BosArgs,
}

impl TextArgs {
    /// The sequences of a file: a text per line.
    pub(super) fn sequences(&self, lm: &LanguageModel, path: &Path) -> Result<Vec<Vec<u32>>, CliError> {
        let context = self.context.unwrap_or_else(|| lm.model().config().context.min(128));
        let options = TextOptions { context, prepend_bos: self.bos.choice() };
        let text = read(path)?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let found = match self.token_lines {
            false => sequences(lm, lines.map(|(_, line)| line), &options),
            true => {
                let ids = lines.map(|(i, line)| written_ids(&format!("{}:{}", path.display(), i + 1), line));
                token_sequences(lm, ids.collect::<Result<Vec<_>, _>>()?, &options)
            }
        };
        found.map_err(|error| CliError::bad_input(format!("{}: {error}", path.display())))
    }

    /// What has no effect on activations that are stored already is refused.
    pub(super) fn refuse_for_store(&self) -> Result<(), CliError> {
        let usual = self.context.is_none() && self.model_batch == 8 && self.skip_first == 0;
        match usual && !self.token_lines && self.bos.choice().is_none() {
            true => Ok(()),
            false => Err(CliError::bad_input(
                "--context, --model-batch, --skip-first, --token-lines and the BOS options are for texts, and --store has activations",
            )),
        }
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

/// A path as it is given to the library.
pub(super) fn full(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}
