//! Keys and values of the tokens seen so far.

use candle_core::{Result, Tensor};
use tenterhook_hooks::Point;

/// The keys and values of all layers, for incremental forwards: see [`Transformer::forward_cached`](super::Transformer::forward_cached).
#[derive(Debug, Default)]
pub struct KvCache {
    layers: Vec<LayerCache>,
    len: usize,
}

/// The keys and values of one layer, in buffers that grow by doubling.
#[derive(Debug, Default)]
pub(super) struct LayerCache {
    keys: Option<Tensor>,
    values: Option<Tensor>,
}

impl KvCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many positions are in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets the positions from `len` on; later ones are written over.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    pub(super) fn layer(&mut self, index: usize) -> &mut LayerCache {
        if self.layers.len() <= index {
            self.layers.resize_with(index + 1, LayerCache::default);
        }
        &mut self.layers[index]
    }

    pub(super) fn advance(&mut self, positions: usize) {
        self.len += positions;
    }
}

impl LayerCache {
    /// Writes the new keys and values `[batch, pos, head, d_head]` behind the first `len`, and gives back all of them.
    pub(super) fn append(&mut self, len: usize, keys: &Tensor, values: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((write(&mut self.keys, len, keys)?, write(&mut self.values, len, values)?))
    }
}

fn write(buffer: &mut Option<Tensor>, len: usize, new: &Tensor) -> Result<Tensor> {
    let (batch, count, heads, width) = new.dims4()?;
    let needed = len + count;
    if let Some(old) = buffer.as_ref()
        && len > 0
        && old.dim(0)? != batch
    {
        candle_core::bail!("the cache holds a batch of {}, and {batch} sequences were given", old.dim(0)?);
    }
    let roomy = match buffer.take().filter(|old| old.dims()[0] == batch) {
        Some(old) if old.dim(1)? >= needed => old,
        old => {
            let room =
                Tensor::zeros((batch, needed.next_power_of_two(), heads, width), new.dtype(), new.device())?;
            if let (Some(old), true) = (old, len > 0) {
                room.slice_set(&old.narrow(1, 0, len)?.contiguous()?, 1, 0)?;
            }
            room
        }
    };
    roomy.slice_set(&new.contiguous()?, 1, len)?;
    let all = roomy.narrow(1, 0, needed)?;
    *buffer = Some(roomy);
    Ok(all)
}

/// Whether keys or values depend on what passes at a point: in the last block, only on what comes before them.
pub(super) fn feeds_cache(point: &Point, layers: usize) -> bool {
    let name = point.name.as_str();
    match point.block {
        None => !["ln_final.", "lm_head.", "embed_out."].iter().any(|after| name.starts_with(after)),
        Some(block) if block + 1 < layers => true,
        Some(_) => {
            let inside = [".mlp.", ".ln2.", ".ln1_post.", ".ln2_post.", ".q_proj.", ".q_norm."];
            let ends = [
                ".hook_q",
                ".hook_rot_q",
                ".hook_q_input",
                ".hook_attn_scores",
                ".hook_pattern",
                ".hook_z",
                ".hook_result",
                ".c_proj.hook_in",
                ".c_proj.hook_out",
                ".o_proj.hook_in",
                ".o_proj.hook_out",
                ".dense.hook_in",
                ".dense.hook_out",
                ".attn.hook_out",
                ".hook_attn_out",
                ".hook_resid_mid",
                ".hook_mlp_in",
                ".hook_mlp_out",
                ".hook_resid_post",
            ];
            !inside.iter().any(|part| name.contains(part)) && !ends.iter().any(|end| name.ends_with(end))
        }
    }
}
