//! Attention in one op: the attention matrix exists one block of query rows at a time, and the backward makes it again.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp3, Layout, Result, Shape, Tensor, WithDType};

use num_traits::Zero;

use super::AttentionSpec;
use super::geometry::{BLOCK, Block, Geometry};
use super::kernel::{
    Columns, Heads, HeadsMut, add_mixed, for_tasks, mask_and_cap_backward, mix, products, score_block,
    softmax_block, softmax_block_backward, with_heads,
};
use crate::ops::cpu::{self, dispatch};
use crate::ops::real::Real;

pub(super) struct Attention {
    pub(super) geometry: Geometry,
    pub(super) spec: AttentionSpec,
}

type Gradients = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Geometry { batch, q_len, heads, .. } = self.geometry;
        dispatch!(q.dtype(), T => {
            let (q, k, v) = (Heads::new(q, q_layout)?, Heads::new(k, k_layout)?, Heads::new(v, v_layout)?);
            let z = self.forward::<T>(q, k, v);
            Ok((T::to_cpu_storage_owned(z), Shape::from((batch, q_len, heads, v.width))))
        })
    }

    fn bwd(&self, q: &Tensor, k: &Tensor, v: &Tensor, _: &Tensor, dz: &Tensor) -> Result<Gradients> {
        let dz = dz.contiguous()?;
        dispatch!(q.dtype(), T => {
            let g = self.geometry;
            let [[_, _, _, q_width], [_, _, _, k_width], [_, _, _, v_width]] = [q.dims(), k.dims(), v.dims()].map(four);
            // SAFETY: every row of every head is written by its task.
            let mut dq = unsafe { cpu::uninit::<T>(g.batch * g.q_len * g.heads * q_width) };
            let mut dk = vec![T::zero(); g.batch * g.k_len * g.kv_heads * k_width];
            let mut dv = vec![T::zero(); g.batch * g.k_len * g.kv_heads * v_width];
            let to = [
                HeadsMut::new(&mut dq, [g.batch, g.q_len, g.heads, q_width]),
                HeadsMut::new(&mut dk, [g.batch, g.k_len, g.kv_heads, k_width]),
                HeadsMut::new(&mut dv, [g.batch, g.k_len, g.kv_heads, v_width]),
            ];
            with_heads(q, |q| with_heads(k, |k| with_heads(v, |v| with_heads(&dz, |dz| {
                self.backward::<T>([q, k, v], dz, to);
                Ok(())
            }))))?;
            let gradient = |values, like: &Tensor| cpu::tensor(values, like.shape()).map(Some);
            Ok((gradient(dq, q)?, gradient(dk, k)?, gradient(dv, v)?))
        })
    }
}

impl Attention {
    fn forward<T: Real>(&self, q: Heads<T>, k: Heads<T>, v: Heads<T>) -> Vec<T> {
        let g = self.geometry;
        // SAFETY: every row of every head is written by its task.
        let mut z = unsafe { cpu::uninit(g.batch * g.q_len * g.heads * v.width) };
        let out = HeadsMut::new(&mut z, [g.batch, g.q_len, g.heads, v.width]);
        let work = g.q_len * g.k_len * q.width;
        for_tasks(
            g.batch * g.heads,
            work,
            || (scratch(&g), Vec::new()),
            |(pattern, columns), task| {
                let (b, h) = (task / g.heads, task % g.heads);
                let kv = h / g.group();
                let keys = Columns::new(&k, b, kv, &g, columns);
                for block in g.blocks() {
                    let pattern = &mut pattern[..block.rows() * g.k_len];
                    score_block(pattern, &g, &block, &self.spec, q.rows(b, h, &block.queries), &keys);
                    softmax_block(pattern, &g, &block);
                    // SAFETY: this head of `z` belongs to this task.
                    let z = unsafe { out.rows(b, h, &block.queries) };
                    mix(z, pattern, g.k_len, &block.keys, T::one(), v.rows(b, kv, &block.keys));
                }
            },
        );
        z
    }

    /// The gradients of queries, keys and values, written and, for the last two, added to what is there. One task has a key-value head and all
    /// the query heads that share it, so that it alone adds to them.
    fn backward<T: Real>(
        &self,
        [q, k, v]: [Heads<T>; 3],
        dz: Heads<T>,
        [q_out, k_out, v_out]: [HeadsMut<T>; 3],
    ) {
        let g = self.geometry;
        let (cap, scale) = (self.spec.soft_cap, T::of(self.spec.scale));
        let work = g.q_len * g.k_len * q.width * g.group();
        // Only a cap's backward needs the scores beside the pattern.
        let buffers = || {
            let scores = if cap.is_some() { scratch(&g) } else { Vec::new() };
            (scratch(&g), scratch(&g), scores, Vec::new(), Vec::new())
        };
        for_tasks(g.batch * g.kv_heads, work, buffers, |buffers, task| {
            let (pattern, gradient, scores, k_columns, v_columns) = buffers;
            let (b, kv) = (task / g.kv_heads, task % g.kv_heads);
            let k_columns = Columns::new(&k, b, kv, &g, k_columns);
            let v_columns = Columns::new(&v, b, kv, &g, v_columns);
            for h in kv * g.group()..(kv + 1) * g.group() {
                for block in g.blocks() {
                    let Block { queries, keys } = &block;
                    let size = block.rows() * g.k_len;
                    let (pattern, gradient) = (&mut pattern[..size], &mut gradient[..size]);
                    let (q, dz) = (q.rows(b, h, queries), dz.rows(b, h, queries));
                    // SAFETY: this key-value head and the query heads that share it belong to this task.
                    let (dq, dk, dv) = unsafe {
                        (q_out.rows(b, h, queries), k_out.rows(b, kv, keys), v_out.rows(b, kv, keys))
                    };

                    score_block(pattern, &g, &block, &self.spec, q, &k_columns);
                    if cap.is_some() {
                        copy_columns(&mut scores[..size], pattern, &g, &block);
                    }
                    softmax_block(pattern, &g, &block);
                    add_mixed(dv, pattern, g.k_len, keys, T::one(), dz);
                    products(gradient, g.k_len, keys, T::one(), dz, &v_columns);
                    softmax_block_backward(pattern, gradient, &g, &block);
                    mask_and_cap_backward(gradient, scores, &g, &block, cap);
                    mix(dq, gradient, g.k_len, keys, scale, k.rows(b, kv, keys));
                    add_mixed(dk, gradient, g.k_len, keys, scale, q);
                }
            }
        });
    }
}

/// The same on queries, keys and values that lie side by side in one tensor `[batch, pos, heads + 2 kv_heads, d]`, as the product that makes them
/// leaves them: its gradient is written once, in place.
pub(crate) struct StackedAttention {
    attention: Attention,
    size: [usize; 4],
}

impl StackedAttention {
    pub(crate) fn new(size: [usize; 4], kv_heads: usize, spec: &AttentionSpec) -> Result<Self> {
        let geometry = Geometry::of_stack(size, kv_heads, spec)?;
        Ok(Self { attention: Attention { geometry, spec: *spec }, size })
    }

    /// The elements of such a tensor.
    pub(crate) fn len(&self) -> usize {
        self.size.iter().product()
    }

    fn parts<'a, T: Real>(&self, all: &'a [T]) -> [Heads<'a, T>; 3] {
        let Geometry { heads, kv_heads, .. } = self.attention.geometry;
        [0, heads, heads + kv_heads].map(|first| Heads::part(all, self.size, first))
    }

    /// `[batch, pos, heads * d]`.
    pub(crate) fn forward<T: Real>(&self, all: &[T]) -> Vec<T> {
        let [q, k, v] = self.parts(all);
        self.attention.forward(q, k, v)
    }

    /// The gradient of all, from that of what it gave.
    pub(crate) fn backward<T: Real>(&self, all: &[T], dz: &[T]) -> Vec<T> {
        let Geometry { heads, kv_heads, .. } = self.attention.geometry;
        let [batch, len, _, width] = self.size;
        let mut gradient = vec![T::zero(); all.len()];
        let (q, rest) = HeadsMut::new(&mut gradient, self.size).split(heads);
        let (k, v) = rest.split(kv_heads);
        let dz = Heads::part(dz, [batch, len, heads, width], 0);
        self.attention.backward(self.parts(all), dz, [q, k, v]);
        gradient
    }
}

impl CustomOp1 for StackedAttention {
    fn name(&self) -> &'static str {
        "attention of a stack"
    }

    fn cpu_fwd(&self, all: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Geometry { batch, q_len, heads, .. } = self.attention.geometry;
        let [_, _, _, width] = self.size;
        dispatch!(all.dtype(), T => {
            let z = self.forward(cpu::slice::<T>(all, layout)?);
            Ok((T::to_cpu_storage_owned(z), Shape::from((batch, q_len, heads * width))))
        })
    }

    fn bwd(&self, all: &Tensor, _: &Tensor, dz: &Tensor) -> Result<Option<Tensor>> {
        dispatch!(all.dtype(), T => cpu::with_slice::<T, _>(all, |values| cpu::with_slice::<T, _>(dz, |dz| {
            cpu::tensor(self.backward(values, dz), all.shape()).map(Some)
        })))
    }
}

/// The four axes of a tensor that was checked to have them.
fn four(dims: &[usize]) -> [usize; 4] {
    std::array::from_fn(|axis| dims[axis])
}

/// Room for one block of the attention matrix.
pub(super) fn scratch<T: Real>(g: &Geometry) -> Vec<T> {
    // SAFETY: the kernels write the columns of a block's keys before they read them, and read no others.
    unsafe { cpu::uninit(BLOCK.min(g.q_len) * g.k_len) }
}

/// Copies the columns of a block's keys.
pub(super) fn copy_columns<T: Real>(to: &mut [T], from: &[T], g: &Geometry, block: &Block) {
    for (to, from) in to.chunks_mut(g.k_len).zip(from.chunks(g.k_len)) {
        to[block.keys.clone()].copy_from_slice(&from[block.keys.clone()]);
    }
}
