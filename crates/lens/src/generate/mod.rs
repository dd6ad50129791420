//! Generating text, one token after the other, with hooks at every one.

mod sampling;

use std::ops::ControlFlow;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use tenterhook_hooks::{Clock, Mode, PassSetup, Report, Rows};
use tenterhook_models::KvCache;
use tenterhook_models::config::Positions;

use crate::error::LensError;
use crate::inference::{Padded, PaddingSide};
use crate::language_model::LanguageModel;
pub use sampling::Sampling;

/// How text is generated.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// At most so many tokens are added.
    pub max_new_tokens: usize,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// Tokens that end a text; by default those of the model's `config.json`.
    pub stop_tokens: Option<Vec<u32>>,
    /// Whether a beginning-of-text token stands first; `None` leaves that to the tokenizer.
    pub prepend_bos: Option<bool>,
    /// Keeps keys and values of earlier tokens; without it every token runs the whole sequence again, which gives the same within rounding.
    pub use_cache: bool,
    /// Keeps the logits of every new token.
    pub keep_logits: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_new_tokens: 32,
            sampling: Sampling::default(),
            stop_tokens: None,
            prepend_bos: None,
            use_cache: true,
            keep_logits: false,
        }
    }
}

/// A token that was just generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// Of which prompt.
    pub prompt: usize,
    /// The token.
    pub id: u32,
    /// Its place in that text, prompt included.
    pub position: usize,
}

/// What came of a generation.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Per prompt, its token ids.
    pub prompts: Vec<Vec<u32>>,
    /// Per prompt, the new token ids, one that ended the text included.
    pub new_tokens: Vec<Vec<u32>>,
    /// Per prompt, the logits `[new, vocab]` the new tokens were chosen from, when they were asked for.
    pub logits: Vec<Option<Tensor>>,
    /// What every hook did, in all passes.
    pub report: Report,
}

impl LanguageModel {
    /// Goes on with texts. `on_token` hears of every token at once and may end it all.
    pub fn generate<T: AsRef<str>>(
        &self,
        prompts: &[T],
        options: &GenerateOptions,
        on_token: impl FnMut(NewToken) -> ControlFlow<()>,
    ) -> Result<Generation, LensError> {
        let encode = |text: &T| self.to_tokens(text.as_ref(), options.prepend_bos);
        self.generate_tokens(prompts.iter().map(encode).collect::<Result<_, _>>()?, options, on_token)
    }

    /// The same for token ids.
    pub fn generate_tokens(
        &self,
        prompts: Vec<Vec<u32>>,
        options: &GenerateOptions,
        mut on_token: impl FnMut(NewToken) -> ControlFlow<()>,
    ) -> Result<Generation, LensError> {
        options.sampling.check()?;
        if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
            return Err(LensError::BadInput("a prompt needs at least one token".to_string()));
        }
        self.check_room(&prompts, options)?;
        if options.use_cache
            && options.max_new_tokens > 1
            && let Some((id, point)) = self.hooks().unsteady_before_cache()
        {
            return Err(LensError::BadInput(format!(
                "hook `{id}` edits `{point}` in some passes only (`every`, `sample_rate`): earlier tokens would have to be computed again, \
                 and they are in the cache; let it run in every pass, or generate without the cache (--no-cache)"
            )));
        }
        let stop = options.stop_tokens.clone().unwrap_or_else(|| self.eos_tokens());
        let mut run = Run::new(self, prompts, options);
        for number in 0..options.max_new_tokens {
            let logits = run.next_logits(number)?;
            for row in 0..run.texts.len() {
                if run.done[row] {
                    run.texts[row].push(0); // a finished text is filled up; nobody reads it
                    continue;
                }
                let logits = logits.get(row)?;
                let id = options.sampling.choose(&logits, row, number)?;
                if options.keep_logits {
                    run.logits[row].push(logits);
                }
                run.texts[row].push(id);
                run.new_tokens[row].push(id);
                run.done[row] = stop.contains(&id);
                let position = run.prompts[row].len() + run.new_tokens[row].len() - 1;
                if on_token(NewToken { prompt: row, id, position }).is_break() {
                    return run.finish();
                }
            }
            if run.done.iter().all(|done| *done) {
                break;
            }
        }
        run.finish()
    }
}

impl LanguageModel {
    /// A table of learned positions has an end, which is better known before half of the text is there.
    fn check_room(&self, prompts: &[Vec<u32>], options: &GenerateOptions) -> Result<(), LensError> {
        prompts.iter().try_for_each(|prompt| self.check_tokens(prompt))?;
        let config = self.model().config();
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        // Nothing is computed at the last new token.
        let room = config.context + 1 - longest.min(config.context);
        match matches!(config.positions, Positions::Learned) && options.max_new_tokens > room {
            false => Ok(()),
            true => Err(LensError::BadInput(format!(
                "{} new tokens behind a prompt of {longest} are more than the model's {} positions: at most {room} fit",
                options.max_new_tokens, config.context
            ))),
        }
    }
}

/// A generation on its way.
struct Run<'a> {
    lm: &'a LanguageModel,
    options: &'a GenerateOptions,
    cache: KvCache,
    prompts: Vec<Vec<u32>>,
    /// The texts so far, filled up on the left to one length.
    texts: Vec<Vec<u32>>,
    /// How many places before each text are padding.
    left: Vec<usize>,
    new_tokens: Vec<Vec<u32>>,
    logits: Vec<Vec<Tensor>>,
    done: Vec<bool>,
    report: Report,
}

impl<'a> Run<'a> {
    fn new(lm: &'a LanguageModel, prompts: Vec<Vec<u32>>, options: &'a GenerateOptions) -> Self {
        let padded = Padded::new(&prompts, PaddingSide::Left);
        let count = prompts.len();
        Self {
            lm,
            options,
            cache: KvCache::new(),
            left: padded.left.clone(),
            texts: padded.into_rows(),
            prompts,
            new_tokens: vec![Vec::new(); count],
            logits: vec![Vec::new(); count],
            done: vec![false; count],
            report: Report::default(),
        }
    }

    /// The logits `[batch, vocab]` after the last token of every text.
    fn next_logits(&mut self, number: usize) -> Result<Tensor, LensError> {
        let length = self.texts[0].len();
        let first = if self.options.use_cache { self.cache.len() } else { 0 };
        let rows: Vec<u32> = self.texts.iter().flat_map(|text| text[first..].to_vec()).collect();
        let ids = Tensor::from_vec(rows, (self.texts.len(), length - first), &self.lm.device())?;
        let setup = PassSetup {
            clock: Clock { step: number as u64, batch: number as u64, ..Clock::default() },
            mode: if number == 0 { Mode::Prefill } else { Mode::Decode },
            first_position: first,
            // The last pass keeps nothing for anybody.
            keeps_cache: self.options.use_cache && number + 1 < self.options.max_new_tokens,
            rows: self.rows().map(Arc::new),
            ..PassSetup::default()
        };
        let pass = self.lm.hooks().pass(setup);
        let logits = match self.options.use_cache {
            true => self.lm.model().forward_cached(&ids, &mut self.cache, &pass),
            false => self.lm.model().forward(&ids, &pass),
        };
        let logits = logits.map_err(|error| LensError::of_pass(error, &pass))?;
        self.report.add(pass.report());
        Ok(logits.narrow(1, logits.dim(1)? - 1, 1)?.squeeze(1)?.to_dtype(DType::F32)?)
    }

    /// Where the texts stand, when there is any padding: before short prompts, and behind texts that are done.
    fn rows(&self) -> Option<Rows> {
        let length = |row: usize| self.prompts[row].len() + self.new_tokens[row].len();
        let rows: Vec<_> =
            self.left.iter().enumerate().map(|(row, left)| *left..left + length(row)).collect();
        rows.iter().any(|row| row.len() < self.texts[0].len()).then_some(Rows(rows))
    }

    fn finish(self) -> Result<Generation, LensError> {
        let stack =
            |rows: Vec<Tensor>| if rows.is_empty() { Ok(None) } else { Tensor::stack(&rows, 0).map(Some) };
        let logits = self.logits.into_iter().map(stack).collect::<candle_core::Result<_>>()?;
        Ok(Generation { prompts: self.prompts, new_tokens: self.new_tokens, logits, report: self.report })
    }
}
