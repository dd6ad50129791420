//! The parts that the residual stream is the sum of.

use std::fmt;
use std::str::FromStr;

use candle_core::{DType, Tensor};
use serde::Serialize;
use tenterhook_hooks::Selector;

use super::frozen_norm::FrozenNorm;
use crate::cache::ActivationCache;
use crate::error::LensError;
use crate::language_model::LanguageModel;

/// How finely the stream is taken apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Embeddings, and what attention and MLP of every block add.
    #[default]
    Layer,
    /// The same with attention taken apart into its heads and its bias.
    Head,
    /// The same as by layer, with every MLP taken apart into its neurons and its bias.
    Neuron,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Layer => "layer",
            Self::Head => "head",
            Self::Neuron => "neuron",
        })
    }
}

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Layer, Self::Head, Self::Neuron];
        let found = all.into_iter().find(|by| by.to_string() == text);
        found.ok_or_else(|| format!("`{text}` is none of layer, head, neuron"))
    }
}

/// What a part of the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ComponentKind {
    /// The token embedding.
    Embed,
    /// The learned positions.
    PosEmbed,
    /// What a block's attention adds.
    Attention,
    /// What a head of it adds.
    Head,
    /// What attention adds whatever its heads do.
    AttentionBias,
    /// What a block's MLP adds.
    Mlp,
    /// What a neuron of it adds.
    Neuron,
    /// What the MLP adds whatever its neurons do.
    MlpBias,
}

/// A part of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Component {
    /// A short name: `embed`, `0_attn_out`, `L0H3`, `L2N17`.
    pub label: String,
    /// What it is.
    pub kind: ComponentKind,
    /// Its block.
    pub block: Option<usize>,
    /// Its number within the block: the head or the neuron.
    pub index: Option<usize>,
}

impl Component {
    pub(super) fn embedding(kind: ComponentKind) -> Self {
        let label = if kind == ComponentKind::PosEmbed { "pos_embed" } else { "embed" };
        Self { label: label.to_string(), kind, block: None, index: None }
    }

    pub(super) fn of_block(kind: ComponentKind, block: usize) -> Self {
        let end = match kind {
            ComponentKind::AttentionBias => "attn_bias",
            ComponentKind::MlpBias => "mlp_bias",
            ComponentKind::Mlp => "mlp_out",
            _ => "attn_out",
        };
        Self { label: format!("{block}_{end}"), kind, block: Some(block), index: None }
    }

    pub(super) fn unit(kind: ComponentKind, block: usize, index: usize) -> Self {
        let letter = if kind == ComponentKind::Neuron { 'N' } else { 'H' };
        Self { label: format!("L{block}{letter}{index}"), kind, block: Some(block), index: Some(index) }
    }
}

/// One of the two branches that write into the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Branch {
    Attention,
    Mlp,
}

impl Branch {
    pub(super) fn whole(self) -> ComponentKind {
        if self == Self::Attention { ComponentKind::Attention } else { ComponentKind::Mlp }
    }

    pub(super) fn unit(self) -> ComponentKind {
        if self == Self::Attention { ComponentKind::Head } else { ComponentKind::Neuron }
    }

    pub(super) fn bias(self) -> ComponentKind {
        if self == Self::Attention { ComponentKind::AttentionBias } else { ComponentKind::MlpBias }
    }

    /// Whether it is taken apart.
    pub(super) fn is_split(self, by: By) -> bool {
        matches!((self, by), (Self::Attention, By::Head) | (Self::Mlp, By::Neuron))
    }

    /// The point of what it adds to the stream.
    pub(super) fn added(self, block: usize) -> String {
        let name = if self == Self::Attention { "attn" } else { "mlp" };
        format!("blocks.{block}.hook_{name}_out")
    }

    /// The point of what its heads or neurons hold before they write.
    pub(super) fn inside(self, block: usize) -> String {
        let name = if self == Self::Attention { "attn.hook_z" } else { "mlp.hook_post" };
        format!("blocks.{block}.{name}")
    }

    /// The point of the divisor of the norm through which it writes, where the family has one.
    fn post_scale(self, block: usize) -> String {
        let name = if self == Self::Attention { "ln1_post" } else { "ln2_post" };
        format!("blocks.{block}.{name}.hook_scale")
    }
}

impl LanguageModel {
    /// The branches of a block, in the order in which they write.
    pub(super) fn branches(&self) -> &'static [Branch] {
        match self.model().config().mlp_width {
            0 => &[Branch::Attention],
            _ => &[Branch::Attention, Branch::Mlp],
        }
    }

    /// The points of the parts of the stream up to a block.
    pub(super) fn component_points(&self, by: By, blocks: usize) -> Vec<Selector> {
        let mut names = vec!["hook_embed".to_string(), "hook_pos_embed".to_string()];
        for block in 0..blocks {
            for branch in self.branches() {
                match branch.is_split(by) {
                    true => names.extend([branch.inside(block), branch.post_scale(block)]),
                    false => names.push(branch.added(block)),
                }
            }
        }
        let table = self.model().points();
        names.into_iter().filter(|name| table.find(name).is_some()).map(Selector::Name).collect()
    }

    /// The embeddings `[pos, d_model]` that the stream begins with.
    pub(super) fn embeddings(&self, cache: &ActivationCache) -> Result<Vec<(Component, Tensor)>, LensError> {
        let mut found = vec![(Component::embedding(ComponentKind::Embed), rows(cache, "hook_embed")?)];
        if self.model().points().find("hook_pos_embed").is_some() {
            found.push((Component::embedding(ComponentKind::PosEmbed), rows(cache, "hook_pos_embed")?));
        }
        Ok(found)
    }

    /// What every head or neuron writes per unit of what it holds: `[unit, d_in, d_model]`, where neurons hold one number and heads `d_head`.
    /// And the bias beside them.
    pub(super) fn writers(
        &self,
        branch: Branch,
        block: usize,
    ) -> Result<(Tensor, Option<Tensor>), LensError> {
        let model = self.model();
        let (matrices, bias) = match branch {
            Branch::Attention => {
                let out = |head| Ok(model.head_weights(block, head)?.o);
                let heads = (0..model.config().heads).map(out).collect::<candle_core::Result<Vec<_>>>()?;
                (Tensor::stack(&heads, 0)?, model.attention_bias(block))
            }
            Branch::Mlp => match model.mlp_out_weights(block)? {
                Some((matrix, bias)) => (matrix.unsqueeze(1)?, bias),
                None => return Err(LensError::BadInput("a model of attention alone has no neurons".into())),
            },
        };
        let bias = bias.map(|bias| bias.to_dtype(DType::F32)).transpose()?;
        Ok((matrices.to_dtype(DType::F32)?, bias))
    }

    /// The norm through which a branch writes, as it was in this run.
    pub(super) fn post_norm(
        &self,
        branch: Branch,
        block: usize,
        cache: &ActivationCache,
    ) -> Result<Option<FrozenNorm>, LensError> {
        let weights = match branch {
            Branch::Attention => self.model().attention_post_norm(block)?,
            Branch::Mlp => self.model().mlp_post_norm(block)?,
        };
        let frozen = |weights| FrozenNorm::new(weights, &rows(cache, &branch.post_scale(block))?);
        weights.map(frozen).transpose()
    }
}

/// What was kept of a point of one text: `[pos, ..]`, in f32.
pub(super) fn rows(cache: &ActivationCache, name: &str) -> Result<Tensor, LensError> {
    Ok(cache.get(name)?.squeeze(0)?.to_dtype(DType::F32)?)
}
