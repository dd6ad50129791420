//! The attention branch, for models in which queries, keys and values are one product and are used as they are.

use candle_core::{Result, Tensor};

use super::{BranchNorm, Inside, Projection, add_rows, run, width_of};
use crate::ops::AttentionSpec;
use crate::ops::attention::StackedAttention;
use crate::ops::cpu::{self, dispatch};
use crate::ops::real::Real;

/// `x + out(attention(qkv(norm(x))))` for `x [batch, pos, d_model]` in one op, with the bits of the separate ones. Queries, keys and values lie side by
/// side in the output of `qkv`, in heads of `d_head`. `None` where it cannot be one op.
pub fn attention_branch(
    x: &Tensor,
    norm: &BranchNorm,
    qkv: &Projection,
    (d_head, kv_heads): (usize, usize),
    spec: &AttentionSpec,
    out: &Projection,
) -> Result<Option<Tensor>> {
    let (width, (batch, len, _)) = (width_of(x, norm)?, x.dims3()?);
    let heads = qkv.outputs()? / d_head.max(1);
    let attention = StackedAttention::new([batch, len, heads, d_head], kv_heads, spec)?;
    qkv.check("query, key and value", width, heads * d_head)?;
    out.check("output", (heads - 2 * kv_heads) * d_head, width)?;
    dispatch!(x.dtype(), T => {
        run::<T, _>(x, norm, &[qkv, out], AttentionInside { qkv: qkv.clone(), attention, out: out.clone() })
    })
}

struct AttentionInside {
    qkv: Projection,
    attention: StackedAttention,
    out: Projection,
}

/// Queries, keys and values, and what attention makes of them.
struct Attended<T> {
    qkv: Vec<T>,
    z: Vec<T>,
}

impl<T: Real> Inside<T> for AttentionInside {
    type Kept = Attended<T>;

    fn forward(&self, normed: &[T], stream: &[T], y: &mut [T], keep: bool) -> Result<Option<Attended<T>>> {
        // SAFETY: the product writes every element.
        let mut qkv = unsafe { cpu::uninit::<T>(self.attention.len()) };
        self.qkv.product(normed, None, &mut qkv)?;
        let z = self.attention.forward(&qkv);
        self.out.product(&z, Some(&add_rows(stream, self.out.outputs()?)), y)?;
        Ok(keep.then_some(Attended { qkv, z }))
    }

    fn backward(&self, normed: &[T], Attended { qkv, z }: &Attended<T>, g: &[T]) -> Result<Vec<T>> {
        self.out.deliver(z, g)?;
        let dz = self.out.input_grad(g, None)?;
        let gradient = self.attention.backward(qkv, &dz);
        self.qkv.deliver(normed, &gradient)?;
        self.qkv.input_grad(&gradient, None)
    }
}
