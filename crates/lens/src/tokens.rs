//! Text and tokens.

use serde_json::Value;

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
