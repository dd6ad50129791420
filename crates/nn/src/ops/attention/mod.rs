//! Causal attention with grouped key-value heads, sliding windows, soft caps and room for a KV cache.
//!
//! Two paths give the same bits. [`attention`] keeps nothing but a block of query rows of the attention matrix; where
//! somebody listens to the scores or the pattern, [`attention_scores`], [`attention_pattern`] and [`attention_apply`]
//! write them out. Both call the block kernels of `kernel.rs` with the same operands in the same order.

mod composed;
mod fused;
mod geometry;
mod kernel;
mod split;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use candle_core::{Result, Tensor};

use super::cpu;
use super::softmax::softmax;
pub(crate) use fused::StackedAttention;
use geometry::Geometry;
use kernel::readable;

/// What an attention layer does to its scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// The products of queries and keys are multiplied by this, mostly `1 / sqrt(d_head)`.
    pub scale: f64,
    /// Squashes every scaled score `s` to `cap * tanh(s / cap)`, as Gemma 2 does.
    pub soft_cap: Option<f64>,
    /// A query sees this many keys, itself included; all earlier ones where it is `None`.
    pub window: Option<usize>,
}

impl AttentionSpec {
    /// Plain causal attention with the usual scale for heads of this size.
    pub fn causal(d_head: usize) -> Self {
        Self { scale: (d_head as f64).powf(-0.5), soft_cap: None, window: None }
    }
}

/// Attention in one op: `q [batch, q_len, heads, d]`, `k [batch, k_len, kv_heads, d]` and
/// `v [batch, k_len, kv_heads, d_v]` give `z [batch, q_len, heads, d_v]`.
///
/// The queries are the last `q_len` of the `k_len` positions, and each sees the keys up to its own position. Query
/// head `h` reads key-value head `h / (heads / kv_heads)`. Strided views are read in place as long as their last
/// axis is contiguous.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, spec: &AttentionSpec) -> Result<Tensor> {
    let geometry = Geometry::of_queries(q, k, spec)?;
    geometry.check_values(v)?;
    if !cpu::fused(q) {
        let pattern = softmax(&composed::scores(q, k, spec, &geometry)?)?;
        return composed::apply(&pattern, v, &geometry);
    }
    readable(q)?.apply_op3(&readable(k)?, &readable(v)?, fused::Attention { geometry, spec: *spec })
}

/// The same on `[batch, pos, heads + 2 kv_heads, d]`, in which queries, keys and values lie side by side; gives `[batch, pos, heads * d]`.
pub fn attention_of_stack(all: &Tensor, kv_heads: usize, spec: &AttentionSpec) -> Result<Tensor> {
    let (batch, len, count, width) = all.dims4()?;
    let op = StackedAttention::new([batch, len, count, width], kv_heads, spec)?;
    if !cpu::fused(all) {
        let part = |first: usize, count: usize| all.narrow(2, first, count);
        let heads = count - 2 * kv_heads;
        let (q, k, v) = (part(0, heads)?, part(heads, kv_heads)?, part(heads + kv_heads, kv_heads)?);
        return attention(&q, &k, &v, spec)?.flatten_from(candle_core::D::Minus2);
    }
    all.contiguous()?.apply_op1(op)
}

/// The scaled, capped scores `[batch, heads, q_len, k_len]`; minus infinity where a query does not see a key.
/// No gradient flows through those places.
pub fn attention_scores(q: &Tensor, k: &Tensor, spec: &AttentionSpec) -> Result<Tensor> {
    let geometry = Geometry::of_queries(q, k, spec)?;
    if !cpu::fused(q) {
        return composed::scores(q, k, spec, &geometry);
    }
    readable(q)?.apply_op2(&readable(k)?, split::Scores { geometry, spec: *spec })
}

/// The attention pattern: softmax of the scores over the keys, exactly 0 where a score is minus infinity.
pub fn attention_pattern(scores: &Tensor) -> Result<Tensor> {
    softmax(scores)
}

/// Mixes the values by a pattern `[batch, heads, q_len, k_len]` into `z [batch, q_len, heads, d_v]`.
///
/// The pattern may be anything, also non-zero at keys that a query does not see; its gradient is the whole matrix.
/// `spec` says which keys are normally zero and need not be read.
pub fn attention_apply(pattern: &Tensor, v: &Tensor, spec: &AttentionSpec) -> Result<Tensor> {
    let geometry = Geometry::of_pattern(pattern, v, spec)?;
    if !cpu::fused(pattern) {
        return composed::apply(pattern, v, &geometry);
    }
    pattern.contiguous()?.apply_op2(&readable(v)?, split::Apply { geometry })
}
