//! Texts in, outputs and a report out.

use std::sync::Arc;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{Clock, PassSetup, Report, Rows};

use crate::error::LensError;
use crate::language_model::LanguageModel;

/// On which side shorter texts of a batch are filled up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PaddingSide {
    /// Before the text, so that all end at the same place.
    Left,
    /// Behind the text.
    #[default]
    Right,
}

/// How an inference is done.
#[derive(Clone, Debug)]
pub struct InferenceOptions {
    /// Texts that go through the model together.
    pub batch_size: usize,
    /// Where shorter ones are filled up. The outputs do not depend on it.
    pub padding: PaddingSide,
    /// Whether a beginning-of-text token stands first; `None` leaves that to the tokenizer.
    pub prepend_bos: Option<bool>,
    /// Whether controllers take part; without them the model is as it would be, and observers still see it.
    pub with_controllers: bool,
}

impl Default for InferenceOptions {
    fn default() -> Self {
        Self { batch_size: 8, padding: PaddingSide::Right, prepend_bos: None, with_controllers: true }
    }
}

/// What came of an inference.
#[derive(Clone, Debug)]
pub struct Inference {
    /// Per text, the logits `[pos, vocab]` at its own tokens.
    pub outputs: Vec<Tensor>,
    /// Per text, its token ids.
    pub encodings: Vec<Vec<u32>>,
    /// What every hook did.
    pub report: Report,
}

impl LanguageModel {
    /// Runs texts through the model in batches. A text gives the same outputs in every batch, however it is padded, within rounding.
    pub fn execute_inference<T: AsRef<str>>(
        &self,
        texts: &[T],
        options: &InferenceOptions,
    ) -> Result<Inference, LensError> {
        let encode = |text: &T| self.to_tokens(text.as_ref(), options.prepend_bos);
        self.infer_tokens(texts.iter().map(encode).collect::<Result<_, _>>()?, options)
    }

    /// The same for token ids.
    pub fn infer_tokens(
        &self,
        encodings: Vec<Vec<u32>>,
        options: &InferenceOptions,
    ) -> Result<Inference, LensError> {
        if let Some(empty) = encodings.iter().position(Vec::is_empty) {
            return Err(LensError::BadInput(format!("text {empty} has no tokens")));
        }
        if options.batch_size == 0 {
            return Err(LensError::BadInput("`batch_size` is 0, it must be at least 1".to_string()));
        }
        let lm = if options.with_controllers { self.clone() } else { self.with_observers() };
        let (mut outputs, mut report) = (Vec::new(), Report::default());
        for (number, batch) in encodings.chunks(options.batch_size).enumerate() {
            let padded = Padded::new(batch, options.padding);
            let clock = Clock { step: number as u64, batch: number as u64, ..Clock::default() };
            let setup = PassSetup { clock, rows: padded.spans().map(Arc::new), ..PassSetup::default() };
            let (logits, done) = lm.forward_with(&padded.ids(&lm.device())?, setup)?;
            report.add(done);
            for (row, ids) in batch.iter().enumerate() {
                outputs.push(logits.get(row)?.narrow(0, padded.left[row], ids.len())?.contiguous()?);
            }
        }
        Ok(Inference { outputs, encodings, report })
    }
}

/// Sequences filled up to one length.
pub(crate) struct Padded {
    rows: Vec<Vec<u32>>,
    /// How many places before each sequence are padding.
    pub(crate) left: Vec<usize>,
    lengths: Vec<usize>,
}

impl Padded {
    pub(crate) fn new(sequences: &[Vec<u32>], side: PaddingSide) -> Self {
        let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
        let (mut rows, mut left) = (Vec::new(), Vec::new());
        for ids in sequences {
            // Any token will do: nothing sees it.
            let filler = vec![0; longest - ids.len()];
            let before = if side == PaddingSide::Left { filler.len() } else { 0 };
            rows.push(if side == PaddingSide::Left {
                [filler, ids.clone()].concat()
            } else {
                [ids.clone(), filler].concat()
            });
            left.push(before);
        }
        Self { rows, left, lengths: sequences.iter().map(Vec::len).collect() }
    }

    /// Where the sequences stand, when there is any padding.
    pub(crate) fn spans(&self) -> Option<Rows> {
        let spans: Vec<_> =
            self.left.iter().zip(&self.lengths).map(|(left, length)| *left..left + length).collect();
        spans.iter().zip(&self.rows).any(|(span, row)| span.len() < row.len()).then_some(Rows(spans))
    }

    pub(crate) fn into_rows(self) -> Vec<Vec<u32>> {
        self.rows
    }

    pub(crate) fn ids(&self, device: &candle_core::Device) -> Result<Tensor, LensError> {
        let (batch, length) = (self.rows.len(), self.rows.first().map_or(0, Vec::len));
        Ok(Tensor::from_vec(self.rows.concat(), (batch, length), device)?)
    }
}
