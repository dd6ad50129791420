//! The text that a command looks at.

use clap::Args;
use tenterhook_lens::LanguageModel;

use super::error::CliError;

/// A text, or token ids where the model has no tokenizer.
#[derive(Args)]
pub(super) struct PromptArgs {
    /// The text.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// The text as token ids: 464,2068,7586.
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["prompt", "prepend_bos", "no_bos"])]
    tokens: Option<Vec<u32>>,
    #[command(flatten)]
    pub(super) bos: BosArgs,
}

/// Whether a beginning-of-text token stands first. Without either, the tokenizer decides.
#[derive(Args)]
pub(super) struct BosArgs {
    /// Put a beginning-of-text token first.
    #[arg(long, conflicts_with = "no_bos")]
    prepend_bos: bool,
    /// Put no beginning-of-text token first.
    #[arg(long)]
    no_bos: bool,
}

impl BosArgs {
    /// As [`LanguageModel::to_tokens`] wants it.
    pub(super) fn choice(&self) -> Option<bool> {
        match (self.prepend_bos, self.no_bos) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

impl PromptArgs {
    /// The token ids of the text; they fit the model.
    pub(super) fn ids(&self, lm: &LanguageModel) -> Result<Vec<u32>, CliError> {
        self.optional_ids(lm)?.ok_or_else(|| {
            CliError::bad_input("there is no text to look at: give --prompt TEXT or --tokens 1,2,3")
        })
    }

    /// The same where a command can do without a text.
    pub(super) fn optional_ids(&self, lm: &LanguageModel) -> Result<Option<Vec<u32>>, CliError> {
        let ids = match (&self.prompt, &self.tokens) {
            (Some(text), _) => Some(text_ids(lm, "--prompt", text, self.bos.choice())?),
            (None, Some(ids)) => {
                lm.check_tokens(ids).map_err(|error| CliError::bad_input(format!("--tokens: {error}")))?;
                Some(ids.clone())
            }
            (None, None) => None,
        };
        Ok(ids)
    }
}

/// The token ids of a text that was given with this option; they fit the model.
pub(super) fn text_ids(
    lm: &LanguageModel,
    option: &str,
    text: &str,
    prepend_bos: Option<bool>,
) -> Result<Vec<u32>, CliError> {
    let ids = lm.to_tokens(text, prepend_bos);
    let checked = ids.and_then(|ids| lm.check_tokens(&ids).map(|()| ids));
    checked.map_err(|error| CliError::bad_input(format!("{option}: {error}")))
}

/// One token that was given with this option: as text that is exactly one token, or as an id, such as `#123`.
pub(super) fn one_token(lm: &LanguageModel, option: &str, text: &str) -> Result<u32, CliError> {
    lm.to_single_token(text).map_err(|error| CliError::bad_input(format!("{option}: {error}")))
}

/// How a token is printed: in quotes, so that spaces show, or as its id.
pub(super) fn shown(token: &str) -> String {
    let is_id = token.strip_prefix('#').is_some_and(|id| id.parse::<u32>().is_ok());
    if is_id { token.to_string() } else { format!("{token:?}") }
}

/// The places of a text that a table has room for: the last ones.
pub(super) fn shown_places(length: usize) -> std::ops::Range<usize> {
    const ROOM: usize = 10;
    length.saturating_sub(ROOM)..length
}

/// Token ids written as `464,2068`.
pub(super) fn written_ids(place: &str, text: &str) -> Result<Vec<u32>, CliError> {
    let ids = text.split(',').map(|id| id.trim().parse()).collect::<Result<Vec<u32>, _>>();
    ids.map_err(|_| {
        CliError::bad_input(format!("{place}: `{text}` is no list of token ids such as 464,2068"))
    })
}
