//! The pieces of attention that both paths are made of. Each works on one block of query rows of one head; the score
//! matrix of a block always has rows of `k_len` elements, whether it is scratch or part of a tensor, because the order
//! in which `gemm` adds up may depend on sizes and strides.

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor, bail};
use std::marker::PhantomData;
use std::ops::Range;

use super::AttentionSpec;
use super::geometry::{Block, Geometry};
use crate::ops::cpu;
use crate::ops::product::{Mat, MatMut, Product, Threads};
use crate::ops::real::{LANES, Real};
use crate::ops::softmax::{softmax_row, softmax_row_backward};
use crate::parallel;

/// Multiplications below which the pool costs more than it brings.
const SMALL: usize = 1 << 17;

/// Queries from which a transposed copy of keys and values is worth its while.
const TRANSPOSE_FROM: usize = 16;

/// Calls `f` for every task, in parallel unless the whole is small; `scratch` is made once per thread.
pub(super) fn for_tasks<S>(
    tasks: usize,
    work: usize,
    scratch: impl Fn() -> S + Sync,
    f: impl Fn(&mut S, usize) + Sync,
) {
    if tasks == 1 || tasks * work < SMALL {
        let mut scratch = scratch();
        (0..tasks).for_each(|task| f(&mut scratch, task));
    } else {
        parallel::for_each_with(tasks, scratch, f);
    }
}

/// The tensor itself where the kernels can read it in place, else a contiguous copy.
pub(super) fn readable(x: &Tensor) -> Result<Tensor> {
    match *x.stride() {
        [_, row, _, 1] if row > 0 => Ok(x.clone()),
        _ => x.contiguous(),
    }
}

/// A `[batch, pos, head, width]` tensor to read from.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a, T> {
    data: &'a [T],
    strides: [usize; 3],
    pub(super) width: usize,
}

impl<'a, T: Real> Heads<'a, T> {
    pub(super) fn new(storage: &'a CpuStorage, layout: &Layout) -> Result<Self> {
        let (_, _, _, width) = layout.shape().dims4()?;
        let [batch, row, head, element] = *layout.stride() else { bail!("attention needs four axes") };
        if element != 1 && width != 1 {
            bail!("attention needs a contiguous last axis");
        }
        let data = &storage.as_slice::<T>()?[layout.start_offset()..];
        Ok(Self { data, strides: [batch, row, head], width })
    }

    /// Some of the heads of a contiguous `[batch, pos, head, width]` buffer, from `first` on.
    pub(super) fn part(data: &'a [T], [_, len, heads, width]: [usize; 4], first: usize) -> Self {
        Self { data: &data[first * width..], strides: [len * heads * width, heads * width, width], width }
    }

    /// Some positions of one head, as the rows of a matrix.
    pub(super) fn rows(&self, batch: usize, head: usize, positions: &Range<usize>) -> Mat<'a, T> {
        let [by_batch, by_row, by_head] = self.strides;
        let start = batch * by_batch + positions.start * by_row + head * by_head;
        Mat::strided(&self.data[start..], positions.len(), self.width, by_row, 1)
    }
}

/// Calls `f` with a readable view of a CPU tensor.
pub(super) fn with_heads<T: Real, R>(x: &Tensor, f: impl FnOnce(Heads<T>) -> Result<R>) -> Result<R> {
    let (storage, layout) = x.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => f(Heads::new(storage, layout)?),
        _ => bail!("fused attention needs a tensor on the CPU"),
    }
}

/// Some of the heads of a contiguous `[batch, pos, head, width]` buffer, which are written by different tasks.
pub(super) struct HeadsMut<'a, T> {
    data: *mut T,
    size: [usize; 4],
    some: Range<usize>,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: `rows` is the only way to the data, and its caller promises that no two tasks touch the same rows.
unsafe impl<T: Send> Sync for HeadsMut<'_, T> {}

impl<'a, T: Real> HeadsMut<'a, T> {
    pub(super) fn new(data: &'a mut [T], size: [usize; 4]) -> Self {
        assert_eq!(data.len(), size.iter().product::<usize>());
        Self { data: data.as_mut_ptr(), size, some: 0..size[2], borrow: PhantomData }
    }

    /// Some of these heads and the others.
    pub(super) fn split(self, at: usize) -> (Self, Self) {
        let at = self.some.start + at;
        assert!(at <= self.some.end);
        let Self { data, size, some, borrow } = self;
        (Self { data, size, some: some.start..at, borrow }, Self { data, size, some: at..some.end, borrow })
    }

    /// Some positions of one head, as the rows of a matrix.
    ///
    /// # Safety
    /// Nobody else may use these positions of this head at the same time.
    pub(super) unsafe fn rows(&self, batch: usize, head: usize, positions: &Range<usize>) -> MatMut<T> {
        let [batches, len, heads, width] = self.size;
        assert!(batch < batches && positions.end <= len && head < self.some.len());
        let start = ((batch * len + positions.start) * heads + self.some.start + head) * width;
        // SAFETY: checked above to lie inside the buffer; the caller has these rows for itself.
        unsafe { MatMut::from_raw(self.data.add(start), positions.len(), width, heads * width) }
    }
}

/// The rows of one head as the columns of a matrix, for products with `keys` in their result.
pub(super) struct Columns<'a, T> {
    rows: Mat<'a, T>,
    transposed: Option<(&'a [T], usize)>,
}

impl<'a, T: Real> Columns<'a, T> {
    /// Copies the head into `scratch`, transposed, where there are enough queries to pay for it: `gemm` reads
    /// columns at half the speed of rows.
    pub(super) fn new(
        x: &Heads<'a, T>,
        b: usize,
        head: usize,
        g: &Geometry,
        scratch: &'a mut Vec<T>,
    ) -> Self {
        let rows = x.rows(b, head, &(0..g.k_len));
        if g.q_len < TRANSPOSE_FROM {
            return Self { rows, transposed: None };
        }
        scratch.resize(x.width * g.k_len, T::zero());
        rows.copy_transposed(scratch);
        Self { rows, transposed: Some((scratch, g.k_len)) }
    }

    fn of(&self, keys: &Range<usize>) -> Mat<'a, T> {
        match self.transposed {
            Some((data, k_len)) => Mat::strided(&data[keys.start..], self.rows.cols(), keys.len(), k_len, 1),
            None => self.rows.some_rows(keys).t(),
        }
    }
}

/// The columns `keys` of a block's score matrix.
fn columns<'a, T: Real>(block: &'a [T], rows: usize, k_len: usize, keys: &Range<usize>) -> Mat<'a, T> {
    Mat::strided(&block[keys.start..], rows, keys.len(), k_len, 1)
}

/// `dst[:, keys] = scale * a @ b[:, keys]`: scores from queries and keys, or the pattern's gradient from that of z
/// and values.
pub(super) fn products<T: Real>(
    dst: &mut [T],
    k_len: usize,
    keys: &Range<usize>,
    scale: T,
    a: Mat<T>,
    b: &Columns<T>,
) {
    let dst = MatMut::strided(&mut dst[keys.start..], a.rows(), keys.len(), k_len);
    Product::of(a, b.of(keys)).scaled(scale).on(Threads::One).write(dst);
}

/// `dst = scale * m[:, keys] @ b`: z from pattern and values, or the gradient of the queries from scores and keys.
pub(super) fn mix<T: Real>(dst: MatMut<T>, m: &[T], k_len: usize, keys: &Range<usize>, scale: T, b: Mat<T>) {
    let m = columns(m, dst.rows(), k_len, keys);
    Product::of(m, b).scaled(scale).on(Threads::One).write(dst);
}

/// `dst += scale * m[:, keys]^T @ b`: the gradient of values or keys.
pub(super) fn add_mixed<T: Real>(
    dst: MatMut<T>,
    m: &[T],
    k_len: usize,
    keys: &Range<usize>,
    scale: T,
    b: Mat<T>,
) {
    let m = columns(m, b.rows(), k_len, keys);
    Product::of(m.t(), b).scaled(scale).on(Threads::One).add_to(dst);
}

/// The scores of a block: scaled and capped, not yet masked.
pub(super) fn score_block<T: Real>(
    dst: &mut [T],
    g: &Geometry,
    block: &Block,
    spec: &AttentionSpec,
    queries: Mat<T>,
    keys: &Columns<T>,
) {
    products(dst, g.k_len, &block.keys, T::of(spec.scale), queries, keys);
    cap_scores(dst, g, block, spec.soft_cap);
}

/// `cap * tanh(s / cap)` of every visible score.
fn cap_scores<T: Real>(scores: &mut [T], g: &Geometry, block: &Block, cap: Option<f64>) {
    let Some(cap) = cap else { return };
    let (cap, inverse) = (T::of(cap), T::of(1.0 / cap));
    for (row, query) in scores.chunks_mut(g.k_len).zip(block.queries.clone()) {
        cpu::wide(
            #[inline(always)]
            || row[g.visible(query)].iter_mut().for_each(|s| *s = cap * (*s * inverse).fast_tanh()),
        );
    }
}

/// Turns a block's scores into its pattern, in place; 0 at keys of the block that a query does not see.
pub(super) fn softmax_block<T: Real>(scores: &mut [T], g: &Geometry, block: &Block) {
    for (row, query) in scores.chunks_mut(g.k_len).zip(block.queries.clone()) {
        let visible = g.visible(query);
        let start = visible.start / LANES * LANES;
        row[block.keys.start..start].fill(T::zero());
        row[start..visible.start].fill(T::neg_infinity());
        row[visible.end..block.keys.end].fill(T::zero());
        let row = &mut row[start..visible.end];
        cpu::wide(
            #[inline(always)]
            || softmax_row(row),
        );
    }
}

/// Turns the gradient of a block's pattern into that of its scores, in place, at the keys that a query sees.
pub(super) fn softmax_block_backward<T: Real>(
    pattern: &[T],
    gradient: &mut [T],
    g: &Geometry,
    block: &Block,
) {
    let rows = gradient.chunks_mut(g.k_len).zip(pattern.chunks(g.k_len));
    for ((gradient, pattern), query) in rows.zip(block.queries.clone()) {
        let visible = g.visible(query);
        let start = visible.start / LANES * LANES;
        let (pattern, gradient) = (&pattern[start..visible.end], &mut gradient[start..visible.end]);
        cpu::wide(
            #[inline(always)]
            || softmax_row_backward(pattern, gradient),
        );
    }
}

/// Takes the gradient of a block's scores back through mask and cap, in place: 0 at keys that a query does not see.
/// `scores` are the capped ones; they are not looked at without a cap.
pub(super) fn mask_and_cap_backward<T: Real>(
    gradient: &mut [T],
    scores: &[T],
    g: &Geometry,
    block: &Block,
    cap: Option<f64>,
) {
    for (row, query) in block.queries.clone().enumerate() {
        let visible = g.visible(query);
        let gradient = &mut gradient[row * g.k_len..];
        gradient[block.keys.start..visible.start].fill(T::zero());
        gradient[visible.end..block.keys.end].fill(T::zero());
        let Some(cap) = cap else { continue };
        let inverse = T::of(1.0 / cap);
        let scores = &scores[row * g.k_len..][visible.clone()];
        cpu::wide(
            #[inline(always)]
            || {
                for (g, s) in gradient[visible].iter_mut().zip(scores) {
                    let tanh = *s * inverse;
                    *g *= T::one() - tanh * tanh;
                }
            },
        );
    }
}
