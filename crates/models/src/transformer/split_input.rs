//! What single heads read: `hook_attn_in` and `hook_q_input`, `hook_k_input`, `hook_v_input`.
//!
//! Each is a copy of the residual stream per head, before the norm, so that editing one touches the input of that head's queries, keys
//! or values alone: path patching needs that. It costs a norm and a product per head, and is done only while somebody listens.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Result, Tensor, Var};
use tenterhook_hooks::{GradientObserver, Pass, Point, PointId};
use tenterhook_nn::Scope;
use tenterhook_nn::layers::Norm;
use tenterhook_nn::ops::watch_gradient;

use super::attention::{Heads, Qkv};

/// Queries, keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Branch {
    Query = 0,
    Key = 1,
    Value = 2,
}

impl Branch {
    const ALL: [Branch; 3] = [Branch::Query, Branch::Key, Branch::Value];

    pub(super) fn heads(self, heads: Heads) -> usize {
        if self == Branch::Query { heads.query } else { heads.kv }
    }
}

/// The four points of a block.
pub(super) struct SplitPoints {
    attn_in: PointId,
    inputs: [PointId; 3],
}

impl SplitPoints {
    pub(super) fn declare(scope: &Scope, name: &str) -> Result<Self> {
        let point =
            |end: &str, axes: &str| scope.point(Point::new(format!("{name}.{end}"), axes).on_demand());
        Ok(Self {
            attn_in: point("hook_attn_in", "batch pos head d_model")?,
            inputs: [
                point("hook_q_input", "batch pos head d_model")?,
                point("hook_k_input", "batch pos kv_head d_model")?,
                point("hook_v_input", "batch pos kv_head d_model")?,
            ],
        })
    }

    pub(super) fn armed(&self, pass: &Pass) -> bool {
        pass.armed(self.attn_in) || self.inputs.iter().any(|point| pass.armed(*point))
    }
}

/// The streams that the heads of one block read in one pass.
pub(super) struct SplitInput<'a> {
    pub(super) points: &'a SplitPoints,
    pub(super) qkv: &'a Qkv,
    pub(super) heads: Heads,
    pub(super) ln1: &'a Norm,
    pub(super) stream: &'a Tensor,
}

impl SplitInput<'_> {
    /// Takes queries, keys and values as the fused product gave them, and gives them back as the hooks want them.
    pub(super) fn apply(&self, qkv: [Tensor; 3], pass: &Pass) -> Result<[Tensor; 3]> {
        let attn_listens = pass.listens(self.points.attn_in);
        let all = self.copies(self.heads.query)?;
        let attn_in = match attn_listens.intervenes() {
            true => pass.tap(self.points.attn_in, all)?,
            false => {
                pass.show(self.points.attn_in, &all)?;
                all
            }
        };
        let summed = pass
            .gradient_observer(self.points.attn_in)
            .filter(|_| !attn_listens.intervenes())
            .map(GradientSum::new);
        let mut outputs = Vec::with_capacity(3);
        for (branch, fused) in Branch::ALL.into_iter().zip(qkv) {
            outputs.push(self.branch(
                branch,
                fused,
                &attn_in,
                attn_listens.intervenes(),
                summed.clone(),
                pass,
            )?);
        }
        outputs.try_into().map_err(|_| candle_core::Error::msg("three branches"))
    }

    fn branch(
        &self,
        branch: Branch,
        fused: Tensor,
        attn_in: &Tensor,
        attn_in_edited: bool,
        summed: Option<Arc<GradientSum>>,
        pass: &Pass,
    ) -> Result<Tensor> {
        let point = self.points.inputs[branch as usize];
        let listens = pass.listens(point);
        let input = attn_in.narrow(2, 0, branch.heads(self.heads))?.contiguous()?;
        if listens.intervenes() || attn_in_edited {
            // The product per head rounds differently from the fused one, so the change is added to the fused one.
            let before = self.project(branch, &self.copies(branch.heads(self.heads))?, pass)?.detach();
            let after = self.project(branch, &pass.tap(point, input)?, pass)?;
            return fused.detach() + (after - before)?;
        }
        pass.show(point, &input)?;
        let observer = pass.gradient_observer(point);
        if observer.is_none() && summed.is_none() {
            return Ok(fused);
        }
        // Watching must not change the sum of gradients, so the branch's gradient is computed beside the backward.
        let weights = self.qkv.head_weights(branch, self.heads, pass)?;
        let constants = (weights.0.detach(), weights.1.map(|bias| bias.detach()));
        let (ln1, stream, silent) = (self.ln1.clone(), input.detach(), Pass::default());
        watch_gradient(&pass.leaf(&fused)?, move |gradient| {
            let leaf = Var::from_tensor(&stream)?;
            let output = project(&ln1.plain(leaf.as_tensor(), &silent)?, &constants)?;
            let grads = (output * gradient)?.sum_all()?.backward()?;
            let Some(at_input) = grads.get(&leaf) else { return Ok(()) };
            if let Some(observer) = &observer {
                observer(at_input)?;
            }
            summed.as_ref().map_or(Ok(()), |summed| summed.add(at_input))
        })
    }

    fn copies(&self, heads: usize) -> Result<Tensor> {
        let (batch, pos, width) = self.stream.dims3()?;
        self.stream.unsqueeze(2)?.broadcast_as((batch, pos, heads, width))?.contiguous()
    }

    fn project(&self, branch: Branch, input: &Tensor, pass: &Pass) -> Result<Tensor> {
        project(&self.ln1.plain(input, pass)?, &self.qkv.head_weights(branch, self.heads, pass)?)
    }
}

/// `[batch, pos, head, d_model]` times a matrix per head.
fn project(normed: &Tensor, (matrices, bias): &(Tensor, Option<Tensor>)) -> Result<Tensor> {
    let (batch, pos, heads, width) = normed.dims4()?;
    let by_head = normed.reshape((batch * pos, heads, width))?.transpose(0, 1)?.contiguous()?;
    let output = by_head.matmul(matrices)?.transpose(0, 1)?.reshape((batch, pos, heads, ()))?;
    match bias {
        Some(bias) => output.broadcast_add(bias),
        None => Ok(output),
    }
}

/// The gradient at `hook_attn_in`: what queries, keys and values send back, added up. Key and value heads read the first copies.
struct GradientSum {
    observer: GradientObserver,
    parts: Mutex<Vec<Tensor>>,
}

impl GradientSum {
    fn new(observer: GradientObserver) -> Arc<Self> {
        Arc::new(Self { observer, parts: Mutex::default() })
    }

    fn add(&self, part: &Tensor) -> Result<()> {
        let parts = {
            let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
            parts.push(part.clone());
            if parts.len() < Branch::ALL.len() {
                return Ok(());
            }
            std::mem::take(&mut *parts)
        };
        let heads = parts.iter().map(|part| part.dims()[2]).max().unwrap_or(0);
        let padded = parts.iter().map(|part| part.pad_with_zeros(2, 0, heads - part.dims()[2]));
        let sum = padded.reduce(|a, b| a? + b?);
        sum.map_or(Ok(()), |sum| (self.observer)(&sum?))
    }
}
