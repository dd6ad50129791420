//! The matrices of a model by what they do, whatever the family's files call them: what circuits are made of.

use candle_core::{D, Result, Tensor, bail};
use tenterhook_hooks::Pass;
use tenterhook_nn::layers::{Linear, Norm};

use super::Transformer;
use super::attention::{Attention, Qkv};

/// One attention head: its input goes through `q`, `k` and `v` `[d_model, d_head]`, and what it reads through `o` `[d_head, d_model]` into the
/// stream. All are constants.
#[derive(Clone, Debug)]
pub struct HeadWeights {
    /// Makes queries.
    pub q: Tensor,
    /// Makes keys; heads of a group share it.
    pub k: Tensor,
    /// Makes values; heads of a group share it.
    pub v: Tensor,
    /// Writes into the stream.
    pub o: Tensor,
    /// Added to queries, `[d_head]`.
    pub q_bias: Option<Tensor>,
    /// Added to keys.
    pub k_bias: Option<Tensor>,
    /// Added to values.
    pub v_bias: Option<Tensor>,
}

/// What a norm does once its divisor is known: `(x, minus its mean where centered) / scale * gain + bias`. All are constants.
#[derive(Clone, Debug)]
pub struct NormWeights {
    /// The factors, `[d_model]`, as they are used: whatever a file leaves out is added.
    pub gain: Tensor,
    /// Added in the end, `[d_model]`.
    pub bias: Option<Tensor>,
    /// Whether the mean is taken away first.
    pub centered: bool,
}

impl Transformer {
    /// The norm before the logits.
    pub fn final_norm_weights(&self) -> Result<NormWeights> {
        norm_weights(&self.final_norm)
    }

    /// The norm through which a block's attention writes into the stream, in the families that have one (Gemma 2).
    pub fn attention_post_norm(&self, block: usize) -> Result<Option<NormWeights>> {
        self.blocks.get(block).and_then(|block| block.attention_post_norm()).map(norm_weights).transpose()
    }

    /// The norm through which a block's MLP writes into the stream, in the families that have one (Gemma 2).
    pub fn mlp_post_norm(&self, block: usize) -> Result<Option<NormWeights>> {
        self.blocks.get(block).and_then(|block| block.mlp_post_norm()).map(norm_weights).transpose()
    }

    /// The matrices of a head.
    pub fn head_weights(&self, block: usize, head: usize) -> Result<HeadWeights> {
        let Some(found) = self.blocks.get(block) else {
            bail!("block {block} was asked for, and the model has {}", self.blocks.len());
        };
        found.attention().head_weights(head)
    }

    /// What attention adds to the stream beside its heads, `[d_model]`.
    pub fn attention_bias(&self, block: usize) -> Option<Tensor> {
        self.blocks.get(block).and_then(|block| block.attention().out_bias())
    }

    /// What every neuron of a block's MLP writes into the stream, `[d_mlp, d_model]`, and what is added beside them; `None` in a model of
    /// attention alone.
    pub fn mlp_out_weights(&self, block: usize) -> Result<Option<(Tensor, Option<Tensor>)>> {
        let Some(linear) = self.blocks.get(block).and_then(|block| block.mlp_out()) else { return Ok(None) };
        let pass = Pass::default();
        Ok(Some((linear.matrix(&pass)?.contiguous()?, linear.bias_at(&pass).cloned())))
    }

    /// The vector of every token id, `[vocab, d_model]`.
    pub fn embedding_weights(&self) -> Tensor {
        self.embed.weight().at(&Pass::default()).clone()
    }

    /// From the normalised stream to logits, `[d_model, vocab]`.
    pub fn unembedding_weights(&self) -> Result<Tensor> {
        self.head.matrix(&Pass::default())
    }
}

impl Attention {
    fn out_bias(&self) -> Option<Tensor> {
        self.out.bias_at(&Pass::default()).cloned()
    }

    fn head_weights(&self, head: usize) -> Result<HeadWeights> {
        let heads = self.heads;
        if head >= heads.query {
            bail!("head {head} was asked for, and a block has {}", heads.query);
        }
        let (size, kv) = (heads.size, head / (heads.query / heads.kv));
        let [q, k, v] = match &self.qkv {
            Qkv::Separate([q, k, v]) => {
                [columns(q, head * size, size)?, columns(k, kv * size, size)?, columns(v, kv * size, size)?]
            }
            Qkv::Stacked(all) => [
                columns(all, head * size, size)?,
                columns(all, (heads.query + kv) * size, size)?,
                columns(all, (heads.query + heads.kv + kv) * size, size)?,
            ],
            Qkv::PerHead(all) => [
                columns(all, 3 * head * size, size)?,
                columns(all, (3 * head + 1) * size, size)?,
                columns(all, (3 * head + 2) * size, size)?,
            ],
        };
        let o = self.out.matrix(&Pass::default())?.narrow(0, head * size, size)?.contiguous()?;
        let [(q, q_bias), (k, k_bias), (v, v_bias)] = [q, k, v];
        Ok(HeadWeights { q, k, v, o, q_bias, k_bias, v_bias })
    }
}

fn norm_weights(norm: &Norm) -> Result<NormWeights> {
    let pass = Pass::default();
    let (gain, bias) = (norm.gain_at(&pass)?, norm.bias_at(&pass).cloned());
    Ok(NormWeights { gain, bias, centered: norm.spec().centered })
}

/// Some outputs of a layer: their columns of its matrix, and their biases.
fn columns(linear: &Linear, first: usize, count: usize) -> Result<(Tensor, Option<Tensor>)> {
    let pass = Pass::default();
    let matrix = linear.matrix(&pass)?.narrow(D::Minus1, first, count)?.contiguous()?;
    let bias = linear.bias_at(&pass).map(|bias| bias.narrow(0, first, count)?.contiguous()).transpose()?;
    Ok((matrix, bias))
}
