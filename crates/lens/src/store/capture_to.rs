//! Texts through a model, into a store.

use std::sync::Arc;

use tenterhook_hooks::{Clock, HookOptions, OnError, PassSetup, Positions, Report, Selector};

use super::capture::StoreCapture;
use super::writer::StoreWriter;
use crate::error::LensError;
use crate::inference::{Padded, PaddingSide};
use crate::language_model::LanguageModel;

/// What becomes of a text that has more tokens than a sequence may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LongTexts {
    /// Blocks of that length, each a sequence of its own with positions from 0; the last one is shorter.
    #[default]
    Split,
    /// Its beginning only.
    Cut,
}

/// What [`LanguageModel::capture_to`] stores.
#[derive(Clone, Debug)]
pub struct CaptureToOptions {
    /// The points.
    pub points: Selector,
    /// Only these positions of every sequence, negative ones from its own end.
    pub positions: Option<Positions>,
    /// The logits too, as the layer `logits`.
    pub logits: bool,
    /// Sequences that go through the model together.
    pub batch_size: usize,
    /// Whether a beginning-of-text token stands first in a text; `None` leaves that to the tokenizer.
    pub prepend_bos: Option<bool>,
    /// The most tokens of a sequence; by default what the model was made for.
    pub context: Option<usize>,
    /// What becomes of longer texts.
    pub long_texts: LongTexts,
}

impl CaptureToOptions {
    /// Everything at these points.
    pub fn points(points: impl Into<Selector>) -> Self {
        Self {
            points: points.into(),
            positions: None,
            logits: false,
            batch_size: 8,
            prepend_bos: None,
            context: None,
            long_texts: LongTexts::Split,
        }
    }
}

/// How far a capture is.
#[derive(Clone, Debug, Default)]
pub struct Captured {
    /// Texts that were taken up.
    pub texts: u64,
    /// Texts that were too long, and were split or cut.
    pub long_texts: u64,
    /// Batches that went through the model.
    pub batches: u64,
    /// Sequences that went through the model.
    pub sequences: u64,
    /// Tokens that went through the model, without padding.
    pub tokens: u64,
    /// What every hook did.
    pub report: Report,
}

impl LanguageModel {
    /// Runs texts through the model in batches and appends what passes at the points to a run of a store. The hooks that are registered take
    /// part. Texts are taken up one batch at a time, and the memory the activations take is the writer's limit: both may be endless.
    ///
    /// `progress` is called after every batch.
    pub fn capture_to<T: AsRef<str>>(
        &self,
        writer: &mut StoreWriter,
        texts: impl IntoIterator<Item = T>,
        options: &CaptureToOptions,
        progress: impl FnMut(&Captured),
    ) -> Result<Captured, LensError> {
        let encode = |text: T| self.to_tokens(text.as_ref(), options.prepend_bos);
        self.capture_tokens_to(writer, texts.into_iter().map(encode), options, progress)
    }

    /// The same for token ids, which may come from something that can fail.
    pub fn capture_tokens_to(
        &self,
        writer: &mut StoreWriter,
        texts: impl IntoIterator<Item = Result<Vec<u32>, LensError>>,
        options: &CaptureToOptions,
        mut progress: impl FnMut(&Captured),
    ) -> Result<Captured, LensError> {
        let context = options.context.unwrap_or(self.model().config().context);
        if options.batch_size == 0 || context == 0 {
            return Err(LensError::BadInput("`batch_size` and `context` must be at least 1".to_string()));
        }
        let branch = self.branch();
        let capture = StoreCapture::new(options.points.clone());
        let storing = HookOptions { on_error: OnError::Abort, builtin: true, ..HookOptions::default() };
        branch.hooks().register_with(capture.clone(), storing)?;
        let run = Run { lm: &branch, capture, options };
        let (mut captured, mut batch) = (Captured::default(), Vec::with_capacity(options.batch_size));
        for text in texts {
            let tokens = text?;
            self.check_ids(&tokens, captured.texts)?;
            captured.texts += 1;
            captured.long_texts += u64::from(tokens.len() > context);
            let blocks = match options.long_texts {
                LongTexts::Split => usize::MAX,
                LongTexts::Cut => 1,
            };
            for block in tokens.chunks(context).take(blocks) {
                batch.push(block.to_vec());
                if batch.len() == options.batch_size {
                    run.batch(writer, std::mem::take(&mut batch), &mut captured)?;
                    progress(&captured);
                }
            }
        }
        if !batch.is_empty() {
            run.batch(writer, batch, &mut captured)?;
            progress(&captured);
        }
        Ok(captured)
    }

    fn check_ids(&self, tokens: &[u32], text: u64) -> Result<(), LensError> {
        let vocab = self.model().config().vocab;
        if tokens.is_empty() {
            return Err(LensError::BadInput(format!("text {text} has no tokens")));
        }
        match tokens.iter().position(|id| *id as usize >= vocab) {
            Some(at) => Err(LensError::BadInput(format!(
                "token id {} (text {text}, position {at}) is outside the vocabulary of {vocab}",
                tokens[at]
            ))),
            None => Ok(()),
        }
    }
}

struct Run<'a> {
    lm: &'a LanguageModel,
    capture: StoreCapture,
    options: &'a CaptureToOptions,
}

impl Run<'_> {
    fn batch(
        &self,
        writer: &mut StoreWriter,
        sequences: Vec<Vec<u32>>,
        captured: &mut Captured,
    ) -> Result<(), LensError> {
        captured.sequences += sequences.len() as u64;
        captured.tokens += sequences.iter().map(|ids| ids.len() as u64).sum::<u64>();
        // Behind the texts, where it needs nothing: the model takes its quickest way.
        let padded = Padded::new(&sequences, PaddingSide::Right);
        let mut batch = writer.batch(sequences)?;
        if let Some(positions) = &self.options.positions {
            batch = batch.keep(positions)?;
        }
        self.capture.begin(batch);
        let number = captured.batches;
        let clock = Clock { step: number, batch: number, ..Clock::default() };
        let setup = PassSetup { clock, rows: padded.spans().map(Arc::new), ..PassSetup::default() };
        let (logits, report) = self.lm.forward_with(&padded.ids(&self.lm.device())?, setup)?;
        captured.batches += 1;
        captured.report.add(report);
        let Some(mut batch) = self.capture.take() else { return Ok(()) };
        if self.options.logits {
            batch.add("logits", "batch pos vocab", &logits)?;
        }
        writer.append(batch)?;
        Ok(())
    }
}
