//! The tokens that a model is measured with.

use std::path::PathBuf;

use candle_core::Tensor;
use clap::Args;
use tenterhook_lens::LanguageModel;

use crate::cli::capture::input::{check, read_tokens};
use crate::cli::capture::positive;
use crate::cli::error::CliError;
use crate::cli::memory::check_fits;

/// So many sequences of so many tokens.
#[derive(Args)]
pub(super) struct TokensArgs {
    /// Sequences that go through the model together.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = positive)]
    batch: usize,
    /// Tokens of each. Token i of all, counted through, is (7919 i + 17) mod the size of the vocabulary.
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = positive)]
    seq: usize,
    /// A JSON file with the token ids, equally long lists: [[1, 2, 3], [4, 5, 6]].
    #[arg(long, value_name = "FILE", conflicts_with_all = ["batch", "seq"])]
    tokens_file: Option<PathBuf>,
}

/// Token ids that fit the model.
pub(super) struct Tokens {
    /// `[batch, seq]`.
    pub(super) ids: Tensor,
    pub(super) batch: usize,
    pub(super) seq: usize,
}

impl TokensArgs {
    /// The token ids; they fit the model and the memory.
    pub(super) fn read(&self, lm: &LanguageModel) -> Result<Tokens, CliError> {
        let vocab = lm.model().config().vocab;
        let rows = match &self.tokens_file {
            Some(path) => read_tokens(path)?,
            None => {
                check_fits(
                    &format!("--batch {} --seq {}", self.batch, self.seq),
                    &[self.batch, self.seq, vocab, 4],
                )?;
                let flat = ids(self.batch * self.seq, vocab);
                flat.chunks(self.seq).map(<[u32]>::to_vec).collect()
            }
        };
        let source = match &self.tokens_file {
            Some(path) => path.display().to_string(),
            None => format!("--seq {}", self.seq),
        };
        check(&rows, lm, false, true)
            .map_err(|problem| CliError::bad_input(format!("{source}: {problem}")))?;
        let (batch, seq) = (rows.len(), rows[0].len());
        let ids = Tensor::from_vec(rows.concat(), (batch, seq), &lm.device())?;
        Ok(Tokens { ids, batch, seq })
    }
}

/// The first `count` token ids: a formula, so that others can be measured with the same.
pub(super) fn ids(count: usize, vocab: usize) -> Vec<u32> {
    let id = |i: u64| ((7919 * i + 17) % vocab.max(1) as u64) as u32;
    (0..count as u64).map(id).collect()
}
