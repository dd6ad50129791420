//! Attention of candle's own ops, for devices that have no fused kernel.

use candle_core::{Result, Tensor};

use super::AttentionSpec;
use super::geometry::Geometry;

pub(super) fn scores(q: &Tensor, k: &Tensor, spec: &AttentionSpec, g: &Geometry) -> Result<Tensor> {
    let k = per_query_head(k, g)?;
    let scores = (by_head(q)?.matmul(&k.t()?)? * spec.scale)?;
    let scores = match spec.soft_cap {
        Some(cap) => ((scores / cap)?.tanh()? * cap)?,
        None => scores,
    };
    let visible = visible(g, q)?.broadcast_as(scores.shape())?;
    let masked =
        Tensor::full(f32::NEG_INFINITY, (), q.device())?.to_dtype(q.dtype())?.broadcast_as(scores.shape())?;
    visible.where_cond(&scores, &masked)
}

pub(super) fn apply(pattern: &Tensor, v: &Tensor, g: &Geometry) -> Result<Tensor> {
    pattern.contiguous()?.matmul(&per_query_head(v, g)?)?.transpose(1, 2)?.contiguous()
}

fn by_head(x: &Tensor) -> Result<Tensor> {
    x.transpose(1, 2)?.contiguous()
}

/// `[batch, k_len, kv_heads, d]` as `[batch, heads, k_len, d]`: every head repeated for its group.
fn per_query_head(x: &Tensor, g: &Geometry) -> Result<Tensor> {
    let width = x.dim(3)?;
    let x = by_head(x)?.unsqueeze(2)?;
    x.broadcast_as((g.batch, g.kv_heads, g.group(), g.k_len, width))?
        .reshape((g.batch, g.heads, g.k_len, width))
}

/// 1 where a query sees a key: `[q_len, k_len]`.
fn visible(g: &Geometry, like: &Tensor) -> Result<Tensor> {
    let mut mask = vec![0u8; g.q_len * g.k_len];
    for (query, row) in mask.chunks_mut(g.k_len).enumerate() {
        row[g.visible(query)].fill(1);
    }
    Tensor::from_vec(mask, (g.q_len, g.k_len), like.device())
}
