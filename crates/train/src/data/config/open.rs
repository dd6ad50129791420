//! From configuration to loader.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenterhook_hooks::random::Stream;

use super::super::{
    DataError, Dataset, Encode, Induction, JsonlOptions, Loader, ModularAddition, Part, TokenFile,
    TokenStream,
};
use super::{DataConfig, DataKind, ModelFacts, Role};

/// The modulus of the literature on grokking, and a share at which it happens.
const USUAL_MODULUS: u64 = 113;
const USUAL_TRAIN_SHARE: f64 = 0.3;

impl DataConfig {
    /// Opens the set and makes sure that its examples fit the model. `name` is used where the configuration has none, and
    /// `encode` where it does not ask for bytes. Relative paths begin at `base_dir`.
    pub fn open(
        &self,
        name: &str,
        role: Role,
        base_dir: &Path,
        model: &ModelFacts,
        seed: u64,
        encode: Option<&Encode>,
    ) -> Result<Loader, DataError> {
        let name = self.name.as_deref().unwrap_or(name);
        let problems = self.problems(role).into_iter().map(|(key, problem)| format!("`{key}` {problem}"));
        DataError::options(name, problems.collect())?;
        let seed = self.seed.unwrap_or(seed);
        let source = Source { config: self, name, role, base_dir, model, seed };
        let dataset = source.open(encode)?;
        source.check(dataset.as_ref())?;
        Ok(Loader {
            name: name.to_string(),
            dataset: Arc::from(dataset),
            batch: self.batch,
            shuffle: self.shuffle.unwrap_or(role == Role::Train),
            drop_last: self.drop_last,
            weight: self.weight,
            seed,
        })
    }
}

/// One data set that is being opened.
struct Source<'a> {
    config: &'a DataConfig,
    name: &'a str,
    role: Role,
    base_dir: &'a Path,
    model: &'a ModelFacts,
    seed: u64,
}

impl Source<'_> {
    fn open(&self, encode: Option<&Encode>) -> Result<Box<dyn Dataset>, DataError> {
        let config = self.config;
        match config.kind {
            DataKind::Tokens => {
                let file = TokenFile::open(&self.path()?, config.dtype.unwrap_or_default(), self.block()?)?;
                if let Some(vocab) = self.vocab() {
                    file.check_vocab(vocab)?;
                }
                self.split(Box::new(file))
            }
            DataKind::Text => {
                let encode = self.encoder(encode)?;
                self.split(Box::new(TokenStream::from_text(&[self.path()?], self.block()?, encode)?))
            }
            DataKind::Jsonl => {
                let encode = self.encoder(encode)?;
                let usual = JsonlOptions::default();
                let field = config.field.clone().unwrap_or(usual.field);
                let options = JsonlOptions { field, separator: config.separator };
                self.split(Box::new(TokenStream::from_jsonl(&self.path()?, &options, self.block()?, encode)?))
            }
            DataKind::Induction => {
                let vocab =
                    self.vocab().ok_or_else(|| self.missing("vocab", "the model does not tell one"))?;
                let usual = if self.role == Role::Train { 8192 } else { 512 };
                let examples = config.examples.unwrap_or(usual);
                // Its own examples for every set: validation must not see those of training.
                let own = Stream::new(self.seed).named(self.role.name()).named(self.name).bits(0);
                let predict = config.predict.unwrap_or_default();
                Ok(Box::new(Induction::new(vocab, self.block()?, examples, predict, own)?))
            }
            DataKind::ModularAddition => {
                // The seed as it is: both parts come from one split.
                let modulus = config.modulus.unwrap_or(USUAL_MODULUS);
                let share = config.train_share.unwrap_or(USUAL_TRAIN_SHARE);
                Ok(Box::new(ModularAddition::new(modulus, share, self.role, self.seed)?))
            }
        }
    }

    fn check(&self, dataset: &dyn Dataset) -> Result<(), DataError> {
        if let (Some(needed), Some(vocab)) = (dataset.vocab(), self.model.vocab)
            && needed > vocab
        {
            return Err(DataError::VocabTooSmall { name: self.name.to_string(), needed, vocab });
        }
        if let (Some(length), Some(context)) = (dataset.sequence_length(), self.model.context)
            && length > context
        {
            let way_out = match self.config.block {
                Some(_) => "use a smaller `block`",
                None => "use a model that takes more",
            };
            return Err(DataError::TooLongForModel { name: self.name.to_string(), length, context, way_out });
        }
        Ok(())
    }

    fn path(&self) -> Result<PathBuf, DataError> {
        let path = self.config.path.as_ref().ok_or_else(|| self.missing("path", "it reads a file"))?;
        Ok(self.base_dir.join(path))
    }

    fn block(&self) -> Result<usize, DataError> {
        let block = self.config.block.or(self.model.context);
        block.ok_or_else(|| self.missing("block", "the model does not say how much it takes"))
    }

    /// The stricter of both, where both are given.
    fn vocab(&self) -> Option<u64> {
        match (self.config.vocab, self.model.vocab) {
            (Some(own), Some(model)) if self.config.kind == DataKind::Tokens => Some(own.min(model)),
            (own, model) => own.or(model),
        }
    }

    fn encoder<'e>(&self, encode: Option<&'e Encode<'e>>) -> Result<Option<&'e Encode<'e>>, DataError> {
        match self.config.tokenizer.as_deref() {
            Some("byte") => Ok(None),
            Some(tokenizer) if encode.is_none() => {
                let (name, tokenizer) = (self.name.to_string(), tokenizer.to_string());
                Err(DataError::NoTokenizer { name, tokenizer })
            }
            _ => Ok(encode),
        }
    }

    fn split(&self, whole: Box<dyn Dataset>) -> Result<Box<dyn Dataset>, DataError> {
        let Some(share) = self.config.split else {
            return Ok(whole);
        };
        let examples = whole.len();
        let part = match self.role {
            Role::Train => Part::front(whole, share),
            Role::Val => Part::rest(whole, share),
        };
        if part.is_empty() {
            let problem = format!(
                "`split = {share}` of {examples} examples leaves none for {}; use another share, a smaller `block` or more data",
                self.role.name()
            );
            DataError::options(self.name, vec![problem])?;
        }
        Ok(Box::new(part))
    }

    fn missing(&self, key: &str, why: &str) -> DataError {
        let problems = vec![format!("`{key}` is missing, and {why}; set it")];
        DataError::Options { name: self.name.to_string(), problems }
    }
}

#[cfg(test)]
mod tests;
