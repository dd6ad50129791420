//! The residual stream as a sum.

use candle_core::Tensor;
use tenterhook_hooks::{Positions, Report, Selector};

use super::components::{Branch, By, Component, rows};
use super::place;
use crate::cache::{ActivationCache, CacheOptions};
use crate::error::LensError;
use crate::language_model::LanguageModel;

/// How [`LanguageModel::decompose_resid`] takes the stream apart.
#[derive(Clone, Debug, Default)]
pub struct DecomposeOptions {
    /// How finely.
    pub by: By,
    /// The stream that enters this block; by default the one after the last.
    pub before_block: Option<usize>,
    /// Only these positions, negative ones from the end. By neuron, one position takes `neurons * d_model` numbers.
    pub positions: Option<Vec<i64>>,
}

/// The residual stream as a sum of parts.
#[derive(Clone, Debug)]
pub struct Decomposition {
    /// The parts.
    pub components: Vec<Component>,
    /// Their values, `[component, pos, d_model]`.
    pub stack: Tensor,
    /// What the hooks did that are registered.
    pub report: Report,
}

impl Decomposition {
    /// The sum of the parts, `[pos, d_model]`: the stream, up to rounding, unless a hook edits the stream itself.
    pub fn sum(&self) -> Result<Tensor, LensError> {
        Ok(self.stack.sum(0)?)
    }

    /// The value of a part, `[pos, d_model]`.
    pub fn get(&self, label: &str) -> Result<Tensor, LensError> {
        let labels = || self.components.iter().map(|component| component.label.as_str());
        match labels().position(|other| other == label) {
            Some(i) => Ok(self.stack.get(i)?),
            None => {
                let near = tenterhook_hooks::nearest(label, labels(), 3);
                Err(LensError::BadInput(format!("no part is called `{label}`; nearest: {}", near.join(", "))))
            }
        }
    }
}

impl LanguageModel {
    /// The residual stream of a text as the sum of what embeddings, attention and MLPs wrote into it. Where a family has a norm between a branch
    /// and the stream (Gemma 2), heads and neurons are shown as they arrive behind it, with its divisor kept at what it was.
    pub fn decompose_resid(
        &self,
        ids: &[u32],
        options: &DecomposeOptions,
    ) -> Result<Decomposition, LensError> {
        self.check_tokens(ids)?;
        let layers = self.model().config().layers;
        let blocks = options.before_block.unwrap_or(layers);
        if blocks > layers {
            return Err(LensError::BadInput(format!("there is no block {blocks}: the model has {layers}")));
        }
        for position in options.positions.iter().flatten() {
            place(*position, ids.len())?;
        }
        let cached = CacheOptions {
            positions: options.positions.clone().map(Positions),
            stop_at_block: options.before_block,
            ..CacheOptions::points(Selector::Any(self.component_points(options.by, blocks)))
        };
        let (_, cache, report) = self.run_with_cache(&self.batch_of(ids)?, &cached)?;
        let mut parts = self.embeddings(&cache)?;
        for block in 0..blocks {
            for branch in self.branches() {
                match branch.is_split(options.by) {
                    true => parts.extend(self.units(*branch, block, &cache)?),
                    false => {
                        let component = Component::of_block(branch.whole(), block);
                        parts.push((component, rows(&cache, &branch.added(block))?));
                    }
                }
            }
        }
        let (components, values): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        Ok(Decomposition { components, stack: Tensor::stack(&values, 0)?, report })
    }

    /// What every head or neuron of a branch adds to the stream, and its bias, each `[pos, d_model]`.
    fn units(
        &self,
        branch: Branch,
        block: usize,
        cache: &ActivationCache,
    ) -> Result<Vec<(Component, Tensor)>, LensError> {
        let (writers, bias) = self.writers(branch, block)?;
        let (units, size, width) = writers.dims3()?;
        let inside = rows(cache, &branch.inside(block))?;
        let places = inside.dim(0)?;
        let held = inside.reshape((places, units, size))?.transpose(0, 1)?.contiguous()?;
        let written = held.matmul(&writers)?;
        let norm = self.post_norm(branch, block, cache)?;
        let arrived = norm.as_ref().map_or(Ok(written.clone()), |norm| norm.linear(&written))?;
        let mut parts = Vec::with_capacity(units + 1);
        for unit in 0..units {
            parts.push((Component::unit(branch.unit(), block, unit), arrived.get(unit)?));
        }
        let spread = |bias: &Tensor| bias.broadcast_as((places, width))?.contiguous();
        let bias = bias.as_ref().map(spread).transpose()?;
        let bias = match (&norm, bias) {
            (Some(norm), Some(bias)) => Some(norm.linear(&bias)?),
            (_, bias) => bias,
        };
        let constant = norm.as_ref().and_then(|norm| norm.bias()).map(spread).transpose()?;
        let bias = match (bias, constant) {
            (Some(a), Some(b)) => Some((a + b)?),
            (a, b) => a.or(b),
        };
        parts.extend(bias.map(|bias| (Component::of_block(branch.bias(), block), bias)));
        Ok(parts)
    }
}
