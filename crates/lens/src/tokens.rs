//! Text and tokens.

use serde_json::Value;
use tenterhook_models::config::Positions;

use crate::error::LensError;
use crate::language_model::LanguageModel;

impl LanguageModel {
    /// The token ids of a text. `prepend_bos` says whether a beginning-of-text token stands first; `None` leaves that to the tokenizer.
    pub fn to_tokens(&self, text: &str, prepend_bos: Option<bool>) -> Result<Vec<u32>, LensError> {
        let tokenizer = self.tokenizer()?;
        let Some(wanted) = prepend_bos else { return Ok(tokenizer.encode(text, true)?) };
        let mut ids = tokenizer.encode(text, false)?;
        if wanted {
            let bos = self.bos_token().ok_or_else(|| {
                LensError::BadInput("the model's config.json names no bos_token_id to put first".to_string())
            })?;
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// What each token of a text stands for.
    pub fn to_str_tokens(&self, text: &str, prepend_bos: Option<bool>) -> Result<Vec<String>, LensError> {
        self.to_tokens(text, prepend_bos)?.into_iter().map(|id| self.token_text(id)).collect()
    }

    /// The text of one token, special ones by their name.
    pub fn token_text(&self, id: u32) -> Result<String, LensError> {
        Ok(self.tokenizer()?.token_text(id)?)
    }

    /// How a token is shown: its text, or `#id` where there is no tokenizer or the id is none of its own.
    pub fn token_label(&self, id: u32) -> String {
        self.token_text(id).ok().filter(|text| !text.is_empty()).unwrap_or_else(|| format!("#{id}"))
    }

    /// The id of a text that is exactly one token, or of an id written as `#123`.
    pub fn to_single_token(&self, text: &str) -> Result<u32, LensError> {
        let written = text.strip_prefix('#').and_then(|digits| digits.parse::<u32>().ok());
        let id = match (written, self.tokenizer()) {
            (Some(id), _) => id,
            (None, Err(_)) => {
                return Err(LensError::BadInput(format!(
                    "`{text}`: the model has no tokenizer.json; give a token id, such as #123"
                )));
            }
            (None, Ok(_)) => match self.to_tokens(text, Some(false))?[..] {
                [id] => id,
                ref ids => {
                    let parts: Vec<String> =
                        ids.iter().map(|id| format!("`{}` (#{id})", self.token_label(*id))).collect();
                    return Err(LensError::BadInput(format!(
                        "`{text}` is {} tokens and must be one{}{}",
                        ids.len(),
                        if parts.is_empty() { "" } else { ": " },
                        parts.join(", ")
                    )));
                }
            },
        };
        self.check_token(id)?;
        Ok(id)
    }

    /// Whether the model can read these tokens: there are some, it knows them all, and it has a position for each.
    pub fn check_tokens(&self, ids: &[u32]) -> Result<(), LensError> {
        if ids.is_empty() {
            return Err(LensError::BadInput("a text needs at least one token".to_string()));
        }
        ids.iter().try_for_each(|id| self.check_token(*id))?;
        let config = self.model().config();
        if matches!(config.positions, Positions::Learned) && ids.len() > config.context {
            return Err(LensError::BadInput(format!(
                "{} tokens are more than the model's {} positions",
                ids.len(),
                config.context
            )));
        }
        Ok(())
    }

    /// Whether the model knows this token.
    pub fn check_token(&self, id: u32) -> Result<(), LensError> {
        let vocab = self.model().config().vocab;
        match (id as usize) < vocab {
            true => Ok(()),
            false => Err(LensError::BadInput(format!("token id {id} is outside the vocabulary of {vocab}"))),
        }
    }

    /// The text of token ids, special ones left out.
    pub fn to_text(&self, ids: &[u32]) -> Result<String, LensError> {
        Ok(self.tokenizer()?.decode(ids)?)
    }

    /// The token that begins a text, as `config.json` has it.
    pub fn bos_token(&self) -> Option<u32> {
        self.config_ids("bos_token_id").first().copied()
    }

    /// The tokens that end a text, as `config.json` has them.
    pub fn eos_tokens(&self) -> Vec<u32> {
        self.config_ids("eos_token_id")
    }

    fn config_ids(&self, key: &str) -> Vec<u32> {
        let config = self.model().config_json();
        let ids: Vec<&Value> = match &config[key] {
            Value::Array(ids) => ids.iter().collect(),
            id => vec![id],
        };
        let vocab = self.model().config().vocab as u64;
        let known = ids.into_iter().filter_map(Value::as_u64).filter(|id| *id < vocab);
        known.filter_map(|id| u32::try_from(id).ok()).collect()
    }
}

/// The place in a text of so many tokens that a number means, negative ones from the end.
pub(crate) fn place(position: i64, length: usize) -> Result<usize, LensError> {
    let from_start = if position < 0 { position.saturating_add(length as i64) } else { position };
    usize::try_from(from_start).ok().filter(|place| *place < length).ok_or_else(|| {
        LensError::BadInput(format!(
            "position {position} is not in the text: it has {length} tokens, so positions are 0 to {} or -{length} to -1",
            length.saturating_sub(1)
        ))
    })
}
