//! Texts as sequences of tokens.

use tenterhook_lens::LanguageModel;

use crate::error::SaeError;

/// How texts become sequences.
#[derive(Clone, Copy, Debug)]
pub struct TextOptions {
    /// The most tokens of a sequence: a longer text becomes several.
    pub context: usize,
    /// Whether a beginning-of-text token stands first in every text; `None` leaves that to the tokenizer.
    pub prepend_bos: Option<bool>,
}

/// The tokens of texts, cut into sequences that the model can take.
pub fn sequences<T: AsRef<str>>(
    lm: &LanguageModel,
    texts: impl IntoIterator<Item = T>,
    options: &TextOptions,
) -> Result<Vec<Vec<u32>>, SaeError> {
    let tokens = texts.into_iter().map(|text| lm.to_tokens(text.as_ref(), options.prepend_bos));
    token_sequences(lm, tokens.collect::<Result<Vec<_>, _>>()?, options)
}

/// The same of texts that are token ids already: nothing is put before them.
pub fn token_sequences(
    lm: &LanguageModel,
    texts: Vec<Vec<u32>>,
    options: &TextOptions,
) -> Result<Vec<Vec<u32>>, SaeError> {
    if options.context == 0 {
        return Err(SaeError::bad("a context of 0 tokens: it must have at least 1"));
    }
    let mut all = Vec::new();
    for ids in texts {
        for sequence in ids.chunks(options.context) {
            lm.check_tokens(sequence)?;
            all.push(sequence.to_vec());
        }
    }
    match all.is_empty() {
        false => Ok(all),
        true => Err(SaeError::bad("there is no text")),
    }
}
