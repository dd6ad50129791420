//! Analyses that read a model and leave it as it is. All are methods of [`LanguageModel`] that return plain data.
//!
//! ```
//! use candle_core::{DType, Device};
//! use tenterhook_lens::LanguageModel;
//! use tenterhook_lens::analysis::{AttributeOptions, By, HeadKind, LogitLensOptions};
//! use tenterhook_models::{Transformer, config::TransformerConfig};
//!
//! # let model = Transformer::init(TransformerConfig::gpt2(50, 16, 8, 2, 2), 42, DType::F32, &Device::Cpu)?;
//! let lm = LanguageModel::new(model)?;
//! let ids = [1, 2, 3, 1, 2];
//!
//! // What would the model say after every block?
//! let lens = lm.logit_lens(&ids, &LogitLensOptions::default())?;
//! println!("{}: {:?}", lens.rows[0].label, lens.rows[0].cells[4].top[0]);
//!
//! // Which heads make token 3 more likely than token 4 at the end?
//! let options = AttributeOptions { wrong: Some(4), by: By::Head, ..AttributeOptions::answer(3) };
//! for part in lm.attribute(&ids, &options)?.top(3) {
//!     println!("{}: {:+.3}", part.component.label, part.value);
//! }
//!
//! // Which heads look for what followed the same token before?
//! let texts = lm.repeated_random_tokens(4, 8, 0, Some(false))?;
//! let scores = lm.head_scores(&texts, &[HeadKind::Induction])?;
//! assert_eq!(scores.kinds[0].scores.len(), 2); // blocks
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attention;
mod attribution;
mod circuits;
mod components;
mod composition;
mod decompose;
mod frozen_norm;
mod head_score_monitor;
mod head_scores;
mod logit_lens;
mod low_rank;
mod tokens;

pub use attention::{AttentionPatterns, HeadPattern};
pub use attribution::{AttributeOptions, Attribution, Contribution};
pub use circuits::{Circuit, CircuitOptions, Direction, HeadCircuit, HeadCircuits};
pub use components::{By, Component, ComponentKind};
pub use composition::{Composition, CompositionPair, CompositionScores};
pub use decompose::{DecomposeOptions, Decomposition};
pub use head_score_monitor::{HeadScoreMonitor, HeadScoreMonitorOptions};
pub use head_scores::{HeadKind, HeadScoreOptions, HeadScores, KindScores};
pub use logit_lens::{Guess, LensCell, LensRow, LogitLens, LogitLensOptions, Target};
pub use low_rank::{LowRank, Svd};
pub use tokens::{Token, TokenScore};

use candle_core::{DType, Device, Tensor};
use nalgebra::DMatrix;
use tenterhook_hooks::{AttachError, HookRegistry};

use crate::error::LensError;
use crate::language_model::LanguageModel;
use crate::tokens::place;

/// Adds the kinds of hooks that analyse a model while it runs or trains. A name that is taken is an error.
pub fn register_kinds(registry: &mut HookRegistry) -> Result<(), AttachError> {
    registry.register_builtin::<HeadScoreMonitorOptions>(
        HeadScoreMonitor::KIND,
        "logs how far every attention head has a habit, such as induction",
        |options| Ok(Box::new(HeadScoreMonitor::new(options)?)),
    )
}

impl LanguageModel {
    /// These blocks, or all; every one is there.
    fn chosen_blocks(&self, blocks: Option<&[usize]>) -> Result<Vec<usize>, LensError> {
        chosen("block", blocks, self.model().config().layers)
    }

    /// These heads of every block, or all; every one is there.
    fn chosen_heads(&self, heads: Option<&[usize]>) -> Result<Vec<usize>, LensError> {
        chosen("head", heads, self.model().config().heads)
    }
}

fn chosen(what: &str, numbers: Option<&[usize]>, count: usize) -> Result<Vec<usize>, LensError> {
    let numbers = match numbers {
        None => return Ok((0..count).collect()),
        Some(numbers) => numbers,
    };
    match numbers.iter().find(|number| **number >= count) {
        Some(number) => Err(LensError::BadInput(format!(
            "there is no {what} {number}: the model has {count}, from 0 to {}",
            count.saturating_sub(1)
        ))),
        None => Ok(numbers.to_vec()),
    }
}

/// The matrix of a tensor `[rows, columns]`, in double precision.
fn matrix(x: &Tensor) -> Result<DMatrix<f64>, LensError> {
    let (rows, columns) = x.dims2()?;
    // Not every device has double precision.
    let values = x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    let values: Vec<f64> = values.flatten_all()?.to_vec1()?;
    if values.iter().any(|value| !value.is_finite()) {
        // Decompositions would never come to an end.
        return Err(LensError::BadInput("the model has weights that are NaN or infinite".to_string()));
    }
    Ok(DMatrix::from_row_slice(rows, columns, &values))
}

/// A vector as numbers.
fn numbers(x: &Tensor) -> Result<Vec<f32>, LensError> {
    Ok(x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}
