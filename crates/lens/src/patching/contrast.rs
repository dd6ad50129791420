//! The two prompts.

use serde::{Deserialize, Serialize};

use super::metric::LogitMetric;
use crate::error::LensError;
use crate::language_model::LanguageModel;

/// Which run is patched with activations of which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Clean activations into the corrupted run: what is enough to bring the answer back.
    #[default]
    Denoise,
    /// Corrupted activations into the clean run: what the answer cannot do without.
    Noise,
}

/// A clean and a corrupted prompt of the same length, and what is measured.
#[derive(Clone, Debug)]
pub struct Contrast {
    /// The prompt with the answer that the metric is for.
    pub clean: Vec<u32>,
    /// The same with one thing changed.
    pub corrupted: Vec<u32>,
    /// How much the model is for the answer.
    pub metric: LogitMetric,
    /// Which run is patched.
    pub direction: Direction,
}

impl Contrast {
    /// Clean activations are patched into the corrupted run.
    pub fn new(clean: Vec<u32>, corrupted: Vec<u32>, metric: LogitMetric) -> Self {
        Self { clean, corrupted, metric, direction: Direction::Denoise }
    }

    /// The same in this direction.
    pub fn direction(self, direction: Direction) -> Self {
        Self { direction, ..self }
    }

    /// Where activations come from, and the prompt that is patched.
    pub(super) fn source_and_base(&self) -> (&[u32], &[u32]) {
        match self.direction {
            Direction::Denoise => (&self.clean, &self.corrupted),
            Direction::Noise => (&self.corrupted, &self.clean),
        }
    }

    pub(super) fn length(&self) -> usize {
        self.clean.len()
    }

    pub(super) fn check(&self, lm: &LanguageModel) -> Result<(), LensError> {
        let bad = |problem: String| Err(LensError::BadInput(problem));
        let (clean, corrupted) = (self.clean.len(), self.corrupted.len());
        if clean != corrupted {
            return bad(format!(
                "the clean prompt has {clean} tokens and the corrupted one {corrupted}: activations can only be patched between \
                 prompts of the same length"
            ));
        }
        lm.check_tokens(&self.clean)?;
        lm.check_tokens(&self.corrupted)?;
        if self.clean == self.corrupted {
            return bad(
                "the clean and the corrupted prompt are the same: there is nothing to patch".to_string()
            );
        }
        self.metric.check(lm.model().config().vocab, clean)
    }
}
