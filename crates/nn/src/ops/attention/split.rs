//! Attention in three ops that write out the scores and the pattern, for when somebody listens to them.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, WithDType};
use std::ops::Range;

use super::AttentionSpec;
use super::fused::{copy_columns, scratch};
use super::geometry::{Block, Geometry};
use super::kernel::{
    Columns, Heads, HeadsMut, add_mixed, for_tasks, mask_and_cap_backward, mix, products, score_block,
    with_heads,
};
use crate::ops::cpu::{self, dispatch};
use crate::ops::real::Real;

pub(super) struct Scores {
    pub(super) geometry: Geometry,
    pub(super) spec: AttentionSpec,
}

type Gradients = (Option<Tensor>, Option<Tensor>);

impl CustomOp2 for Scores {
    fn name(&self) -> &'static str {
        "attention-scores"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Geometry { batch, q_len, k_len, heads, .. } = self.geometry;
        dispatch!(q.dtype(), T => {
            let scores = self.forward::<T>(Heads::new(q, q_layout)?, Heads::new(k, k_layout)?);
            Ok((T::to_cpu_storage_owned(scores), Shape::from((batch, heads, q_len, k_len))))
        })
    }

    fn bwd(&self, q: &Tensor, k: &Tensor, scores: &Tensor, gradient: &Tensor) -> Result<Gradients> {
        dispatch!(q.dtype(), T => {
            let (dq, dk) = with_heads(q, |q| with_heads(k, |k| {
                cpu::with_slice(scores, |scores| {
                    cpu::with_slice(gradient, |gradient| Ok(self.backward::<T>(q, k, scores, gradient)))
                })
            }))?;
            Ok((Some(cpu::tensor(dq, q.shape())?), Some(cpu::tensor(dk, k.shape())?)))
        })
    }
}

impl Scores {
    fn forward<T: Real>(&self, q: Heads<T>, k: Heads<T>) -> Vec<T> {
        let g = self.geometry;
        // SAFETY: every row is written: its visible keys by the product, the others with minus infinity.
        let mut scores = unsafe { cpu::uninit(g.batch * g.heads * g.q_len * g.k_len) };
        cpu::for_chunks(&mut scores, g.q_len * g.k_len, |start, matrix| {
            let task = start / (g.q_len * g.k_len);
            let (b, h) = (task / g.heads, task % g.heads);
            let mut columns = Vec::new();
            let keys = Columns::new(&k, b, h / g.group(), &g, &mut columns);
            for block in g.blocks() {
                let rows = &mut matrix[block_elements(&g, &block)];
                score_block(rows, &g, &block, &self.spec, q.rows(b, h, &block.queries), &keys);
                for (row, query) in rows.chunks_mut(g.k_len).zip(block.queries.clone()) {
                    let visible = g.visible(query);
                    row[..visible.start].fill(T::neg_infinity());
                    row[visible.end..].fill(T::neg_infinity());
                }
            }
        });
        scores
    }

    fn backward<T: Real>(&self, q: Heads<T>, k: Heads<T>, scores: &[T], gradient: &[T]) -> (Vec<T>, Vec<T>) {
        let g = self.geometry;
        let scale = T::of(self.spec.scale);
        // SAFETY: every row of every head is written by its task.
        let mut dq = unsafe { cpu::uninit(g.batch * g.q_len * g.heads * q.width) };
        let mut dk = vec![T::zero(); g.batch * g.k_len * g.kv_heads * k.width];
        let q_out = HeadsMut::new(&mut dq, [g.batch, g.q_len, g.heads, q.width]);
        let k_out = HeadsMut::new(&mut dk, [g.batch, g.k_len, g.kv_heads, k.width]);
        let work = g.q_len * g.k_len * q.width * g.group();
        for_tasks(
            g.batch * g.kv_heads,
            work,
            || scratch(&g),
            |masked, task| {
                let (b, kv) = (task / g.kv_heads, task % g.kv_heads);
                for h in kv * g.group()..(kv + 1) * g.group() {
                    for block in g.blocks() {
                        let Block { queries, keys } = &block;
                        let elements = head_block(&g, b, h, &block);
                        let masked = &mut masked[..elements.len()];
                        copy_columns(masked, &gradient[elements.clone()], &g, &block);
                        mask_and_cap_backward(masked, &scores[elements], &g, &block, self.spec.soft_cap);
                        // SAFETY: this key-value head and the query heads that share it belong to this task.
                        let (dq, dk) = unsafe { (q_out.rows(b, h, queries), k_out.rows(b, kv, keys)) };
                        mix(dq, masked, g.k_len, keys, scale, k.rows(b, kv, keys));
                        add_mixed(dk, masked, g.k_len, keys, scale, q.rows(b, h, queries));
                    }
                }
            },
        );
        (dq, dk)
    }
}

pub(super) struct Apply {
    pub(super) geometry: Geometry,
}

impl CustomOp2 for Apply {
    fn name(&self) -> &'static str {
        "attention-apply"
    }

    fn cpu_fwd(
        &self,
        pattern: &CpuStorage,
        layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Geometry { batch, q_len, heads, .. } = self.geometry;
        dispatch!(pattern.dtype(), T => {
            let v = Heads::new(v, v_layout)?;
            let z = self.forward::<T>(cpu::slice(pattern, layout)?, v);
            Ok((T::to_cpu_storage_owned(z), Shape::from((batch, q_len, heads, v.width))))
        })
    }

    fn bwd(&self, pattern: &Tensor, v: &Tensor, _: &Tensor, dz: &Tensor) -> Result<Gradients> {
        let dz = dz.contiguous()?;
        dispatch!(pattern.dtype(), T => {
            let (dp, dv) = cpu::with_slice(pattern, |pattern| {
                with_heads(v, |v| with_heads(&dz, |dz| Ok(self.backward::<T>(pattern, v, dz))))
            })?;
            Ok((Some(cpu::tensor(dp, pattern.shape())?), Some(cpu::tensor(dv, v.shape())?)))
        })
    }
}

impl Apply {
    fn forward<T: Real>(&self, pattern: &[T], v: Heads<T>) -> Vec<T> {
        let g = self.geometry;
        // SAFETY: every row of every head is written by its task.
        let mut z = unsafe { cpu::uninit(g.batch * g.q_len * g.heads * v.width) };
        let out = HeadsMut::new(&mut z, [g.batch, g.q_len, g.heads, v.width]);
        for_tasks(
            g.batch * g.heads,
            g.q_len * g.k_len * v.width,
            || (),
            |(), task| {
                let (b, h) = (task / g.heads, task % g.heads);
                for block in g.blocks() {
                    let rows = &pattern[head_block(&g, b, h, &block)];
                    let keys = used_keys(rows, &g, &block);
                    // SAFETY: this head of `z` belongs to this task.
                    let z = unsafe { out.rows(b, h, &block.queries) };
                    mix(z, rows, g.k_len, &keys, T::one(), v.rows(b, h / g.group(), &keys));
                }
            },
        );
        z
    }

    fn backward<T: Real>(&self, pattern: &[T], v: Heads<T>, dz: Heads<T>) -> (Vec<T>, Vec<T>) {
        let g = self.geometry;
        let mut dv = vec![T::zero(); g.batch * g.k_len * g.kv_heads * v.width];
        // SAFETY: the three products of a block write its rows at all keys.
        let mut dp = unsafe { cpu::uninit(pattern.len()) };
        let v_out = HeadsMut::new(&mut dv, [g.batch, g.k_len, g.kv_heads, v.width]);
        let task_len = g.group() * g.q_len * g.k_len;
        cpu::for_chunks(&mut dp, task_len, |start, dp| {
            let (b, kv) = (start / task_len / g.kv_heads, start / task_len % g.kv_heads);
            let mut columns = Vec::new();
            let values = Columns::new(&v, b, kv, &g, &mut columns);
            for (h, dp) in (kv * g.group()..).zip(dp.chunks_mut(g.q_len * g.k_len)) {
                for block in g.blocks() {
                    let rows = &pattern[head_block(&g, b, h, &block)];
                    let keys = used_keys(rows, &g, &block);
                    let dz = dz.rows(b, h, &block.queries);
                    // SAFETY: this key-value head belongs to this task.
                    let dv = unsafe { v_out.rows(b, kv, &keys) };
                    add_mixed(dv, rows, g.k_len, &keys, T::one(), dz);
                    // In three parts, so that the part that fused attention has too is the same product.
                    let dp = &mut dp[block_elements(&g, &block)];
                    for keys in [block.keys.clone(), 0..block.keys.start, block.keys.end..g.k_len] {
                        if !keys.is_empty() {
                            products(dp, g.k_len, &keys, T::one(), dz, &values);
                        }
                    }
                }
            }
        });
        (dp, dv)
    }
}

/// The elements of a block's rows in the matrix of its head.
fn block_elements(g: &Geometry, block: &Block) -> Range<usize> {
    block.queries.start * g.k_len..block.queries.end * g.k_len
}

/// The elements of a block's rows in the `[batch, heads, q_len, k_len]` tensor.
fn head_block(g: &Geometry, b: usize, h: usize, block: &Block) -> Range<usize> {
    let head = (b * g.heads + h) * g.q_len * g.k_len;
    let rows = block_elements(g, block);
    head + rows.start..head + rows.end
}

/// The block's keys, or all where an edited pattern reaches beyond them.
fn used_keys<T: Real>(pattern: &[T], g: &Geometry, block: &Block) -> Range<usize> {
    let empty = |part: &[T]| part.iter().all(|p| *p == T::zero());
    let inside = |row: &[T]| empty(&row[..block.keys.start]) && empty(&row[block.keys.end..]);
    if pattern.chunks(g.k_len).all(inside) { block.keys.clone() } else { 0..g.k_len }
}
