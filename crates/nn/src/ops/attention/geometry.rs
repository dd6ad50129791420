//! Who sees whom: the sizes of an attention op, checked once, and its blocks of query rows.

use candle_core::{Result, Tensor, bail};
use std::ops::Range;

use super::AttentionSpec;
use crate::ops::real::LANES;

/// Query rows that are worked on together. Their scores fit into the second-level cache for a few thousand keys.
pub(super) const BLOCK: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) batch: usize,
    pub(super) q_len: usize,
    pub(super) k_len: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    window: usize,
}

/// Some query rows and the keys that any of them sees.
pub(super) struct Block {
    pub(super) queries: Range<usize>,
    /// Starts at a multiple of `LANES`, so that a sum over these keys has the same lanes as one over all keys.
    pub(super) keys: Range<usize>,
}

impl Geometry {
    pub(super) fn of_queries(q: &Tensor, k: &Tensor, spec: &AttentionSpec) -> Result<Self> {
        let ((batch, q_len, heads, width), (k_batch, k_len, kv_heads, k_width)) = (q.dims4()?, k.dims4()?);
        if batch != k_batch || width != k_width {
            bail!("attention: queries {:?} and keys {:?} differ in batch or head size", q.shape(), k.shape());
        }
        if q.dtype() != k.dtype() {
            bail!("attention: queries of {:?} and keys of {:?}", q.dtype(), k.dtype());
        }
        Self { batch, q_len, k_len, heads, kv_heads, window: 0 }.checked(spec, width)
    }

    /// Of queries, keys and values that lie side by side: `[batch, pos, heads + 2 kv_heads, width]`.
    pub(super) fn of_stack(
        [batch, len, all, width]: [usize; 4],
        kv_heads: usize,
        spec: &AttentionSpec,
    ) -> Result<Self> {
        let Some(heads) = all.checked_sub(2 * kv_heads) else {
            bail!("attention: no queries beside {kv_heads} keys and values in {all} heads");
        };
        Self { batch, q_len: len, k_len: len, heads, kv_heads, window: 0 }.checked(spec, width)
    }

    pub(super) fn of_pattern(pattern: &Tensor, v: &Tensor, spec: &AttentionSpec) -> Result<Self> {
        let ((batch, heads, q_len, k_len), (_, _, kv_heads, width)) = (pattern.dims4()?, v.dims4()?);
        if pattern.dtype() != v.dtype() {
            bail!("attention: a pattern of {:?} and values of {:?}", pattern.dtype(), v.dtype());
        }
        let geometry = Self { batch, q_len, k_len, heads, kv_heads, window: 0 }.checked(spec, width)?;
        geometry.check_values(v)?;
        Ok(geometry)
    }

    pub(super) fn check_values(&self, v: &Tensor) -> Result<()> {
        let (batch, len, heads, width) = v.dims4()?;
        if (batch, len, heads) != (self.batch, self.k_len, self.kv_heads) || width == 0 {
            bail!(
                "attention: values {:?} where [{}, {}, {}, d_v] is needed, the same as the keys",
                v.shape(),
                self.batch,
                self.k_len,
                self.kv_heads
            );
        }
        Ok(())
    }

    fn checked(mut self, spec: &AttentionSpec, width: usize) -> Result<Self> {
        let Self { batch, q_len, k_len, heads, kv_heads, .. } = self;
        if [batch, q_len, k_len, heads, kv_heads, width].contains(&0) {
            bail!("attention: an axis of size 0 in {self:?}");
        }
        if heads % kv_heads != 0 {
            bail!("attention: {heads} query heads cannot share {kv_heads} key-value heads evenly");
        }
        if k_len < q_len {
            bail!(
                "attention: {q_len} queries but only {k_len} keys; the queries are the last of the keys' positions"
            );
        }
        if spec.soft_cap.is_some_and(|cap| cap.is_nan() || cap <= 0.0) {
            bail!("attention: a soft cap must be above 0, got {:?}", spec.soft_cap);
        }
        self.window = match spec.window {
            Some(0) => bail!("attention: a window of 0 sees no key; a query itself counts as 1"),
            Some(window) => window,
            None => usize::MAX,
        };
        Ok(self)
    }

    /// How many query heads share a key-value head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The keys that a query sees.
    pub(super) fn visible(&self, query: usize) -> Range<usize> {
        let end = self.k_len - self.q_len + query + 1;
        end.saturating_sub(self.window)..end
    }

    pub(super) fn blocks(self) -> impl Iterator<Item = Block> {
        (0..self.q_len).step_by(BLOCK).map(move |first| {
            let queries = first..(first + BLOCK).min(self.q_len);
            let start = self.visible(first).start / LANES * LANES;
            Block { keys: start..self.visible(queries.end - 1).end, queries }
        })
    }
}

impl Block {
    pub(super) fn rows(&self) -> usize {
        self.queries.len()
    }
}
