//! Texts through a model, into a store.

use std::sync::Arc;

use tenterhook_hooks::{
    BoxError, CapturedState, Clock, HookOptions, OnError, PassSetup, Positions, Report, Selector, Site,
};

use super::batch::StoreBatch;
use super::capture::StoreCapture;
use super::error::StoreError;
use super::writer::{StoreOptions, StoreSummary, StoreWriter};
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
    /// The points; none where only what hooks capture is stored.
    pub points: Option<Selector>,
    /// Only these positions of every sequence, negative ones from its own end.
    pub positions: Option<Positions>,
    /// The logits too, as the layer `logits`.
    pub logits: bool,
    /// What `capture` hooks kept of each batch too, which is taken out of memory then. Under the name of its point, or `<hook id>/<name>` where that
    /// is stored already.
    pub captured_states: bool,
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
            points: Some(points.into()),
            positions: None,
            logits: false,
            captured_states: false,
            batch_size: 8,
            prepend_bos: None,
            context: None,
            long_texts: LongTexts::Split,
        }
    }
}

impl CaptureToOptions {
    /// Whether they make sense and fit the model: what can be known before a store is made.
    pub fn check(&self, lm: &LanguageModel) -> Result<(), LensError> {
        if self.batch_size == 0 || self.context == Some(0) {
            return Err(LensError::BadInput("`batch_size` and `context` must be at least 1".to_string()));
        }
        let config = lm.model().config();
        if let Some(context) = self.context
            && context > config.context
            && matches!(config.positions, tenterhook_models::config::Positions::Learned)
        {
            return Err(LensError::BadInput(format!(
                "sequences of {context} tokens are more than the model's {} positions",
                config.context
            )));
        }
        if let Some(points) = &self.points {
            points.resolve(lm.hooks().points(), Site::Forward)?;
        }
        Ok(())
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
    /// Runs texts through the model and keeps what passes at the points as a new run of the model's own store.
    ///
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use tenterhook_models::{Transformer, config::TransformerConfig};
    /// use tenterhook_lens::{CaptureToOptions, LanguageModel, LocalStore};
    ///
    /// # let model = Transformer::init(TransformerConfig::gpt2(50, 16, 8, 2, 2), 42, DType::F32, &Device::Cpu)?;
    /// # let dir = tempfile::tempdir()?;
    /// let lm = LanguageModel::new(model)?.with_store(LocalStore::new(dir.path()));
    /// let texts = [vec![1, 2, 3], vec![4, 5]].map(Ok);
    /// let (_, summary) = lm.capture("first", texts, &CaptureToOptions::points("blocks.*.hook_resid_post"))?;
    /// assert_eq!((summary.rows, lm.store()?.open("first")?.layers().len()), (5, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn capture(
        &self,
        run: &str,
        texts: impl IntoIterator<Item = Result<Vec<u32>, LensError>>,
        options: &CaptureToOptions,
    ) -> Result<(Captured, StoreSummary), LensError> {
        options.check(self)?;
        let mut writer = self.store()?.create(run, StoreOptions::default())?;
        let captured = self.capture_tokens_to(&mut writer, texts, options, |_| ())?;
        Ok((captured, writer.finish()?))
    }

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
        options.check(self)?;
        let context = options.context.unwrap_or(self.model().config().context);
        let branch = self.branch();
        let capture = StoreCapture::new(options.points.clone().unwrap_or(Selector::Any(Vec::new())));
        if options.points.is_some() {
            let storing = HookOptions { on_error: OnError::Abort, builtin: true, ..HookOptions::default() };
            branch.hooks().register_with(capture.clone(), storing)?;
        }
        let run = Run { lm: &branch, capture, options };
        let (mut captured, mut batch) = (Captured::default(), Vec::new());
        for text in texts {
            let tokens = text?;
            captured.texts += 1;
            captured.long_texts += u64::from(tokens.len() > context);
            let blocks = match options.long_texts {
                LongTexts::Split => usize::MAX,
                LongTexts::Cut => 1,
            };
            if tokens.is_empty() {
                return Err(LensError::BadInput(format!("text {} has no tokens", captured.texts - 1)));
            }
            for block in tokens.chunks(context).take(blocks) {
                let of_text = |error| LensError::BadInput(format!("text {}: {error}", captured.texts - 1));
                self.check_tokens(block).map_err(of_text)?;
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
        let done = self.lm.forward_with(&padded.ids(&self.lm.device())?, setup);
        // What the store has to say says more than that a hook failed.
        let (logits, report) = match self.capture.failure() {
            Some(failure) => return Err(failure.into()),
            None => done?,
        };
        captured.batches += 1;
        captured.report.add(report);
        let Some(mut batch) = self.capture.take() else { return Ok(()) };
        if self.options.logits {
            batch.add("logits", "batch pos vocab", &logits)?;
        }
        if self.options.captured_states {
            self.add_captured(&mut batch)?;
        }
        writer.append(batch)?;
        Ok(())
    }

    /// Moves what `capture` hooks kept of this batch into it.
    fn add_captured(&self, batch: &mut StoreBatch) -> Result<(), LensError> {
        let hooks = self.lm.hooks();
        let failed = |error: BoxError| LensError::BadInput(error.to_string());
        for hook in hooks.list_hooks() {
            for state in hooks.get_captured_states(&hook.id).map_err(failed)? {
                let mut name = state.name();
                if batch.has(&name) {
                    name = format!("{}/{name}", hook.id);
                }
                let axes = self.axes(&state, batch.width());
                let of_hook = |error: StoreError| match error {
                    StoreError::BadInput(problem) => {
                        LensError::BadInput(format!("what hook `{}` captured: {problem}", hook.id))
                    }
                    other => other.into(),
                };
                batch.add(&name, &axes, &state.tensor).map_err(of_hook)?;
            }
            hooks.clear_captured_states(Some(&hook.id)).map_err(failed)?;
        }
        Ok(())
    }

    /// The axes of a captured tensor: those of its point, or numbered ones where that has others. Chosen positions are none of the batch's.
    fn axes(&self, state: &CapturedState, width: usize) -> String {
        let axes = self.axes_of_point(state);
        let pos = axes.split_whitespace().position(|axis| axis == "pos");
        match pos.is_some_and(|axis| state.shape().get(axis) != Some(&width)) {
            true => axes.replacen(" pos", " chosen_pos", 1),
            false => axes,
        }
    }

    fn axes_of_point(&self, state: &CapturedState) -> String {
        let points = self.lm.hooks().points();
        let known = points.find(&state.point).map(|id| points.point(id).axes.clone());
        let known =
            known.filter(|axes| !state.is_input() && axes.split_whitespace().count() == state.shape().len());
        known.unwrap_or_else(|| {
            let more = (2..state.shape().len()).map(|axis| format!(" axis_{axis}"));
            format!("batch pos{}", more.collect::<String>())
        })
    }
}
