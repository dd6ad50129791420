//! A branch of a transformer block in one op: `x + f(norm(x))`, where `f` is [attention](attention_branch) or an [MLP](mlp_branch).
//!
//! candle's tape fills with zeros and adds for every edge between two ops. A whole branch is one edge. Inside, sums with the stream and slopes of activations are taken while a product's result is in the cache. The
//! arithmetic is that of the separate ops, in the same order, so the bits are the same.
//!
//! The gradients of a branch's parameters go to [`GradBuffer`]s; on the tape, one of the parameters stands for all, so that candle comes by
//! wherever it would have come to the separate ops. Where a parameter is trained and has no buffer, or where there is no kernel, a branch is
//! `None`, and the separate ops are to be used.

mod attention;
mod mlp;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor};
use std::sync::{Arc, OnceLock};

use super::cpu;
use super::grad_buffer::deliver;
use super::linear::LinearOp;
use super::norm::Norm;
use super::norm_kernel::{Row, Wanted};
use super::product::Finish;
use super::real::Real;
use super::{GradBuffer, LinearGrads, WeightLayout};

pub use attention::attention_branch;
pub use mlp::{BranchMlp, mlp_branch};

/// The norm through which a branch reads the stream.
#[derive(Clone, Debug)]
pub struct BranchNorm {
    /// Layer norm; otherwise RMS norm.
    pub centered: bool,
    /// Added under the root.
    pub eps: f64,
    /// Added to the gain.
    pub gain_offset: f64,
    /// The gain, and where its gradient goes.
    pub gain: (Tensor, Option<Arc<GradBuffer>>),
    /// The bias, likewise.
    pub bias: Option<(Tensor, Option<Arc<GradBuffer>>)>,
}

/// A dense layer of a branch.
#[derive(Clone, Debug)]
pub struct Projection {
    /// The matrix.
    pub weight: Tensor,
    /// What is added to every row.
    pub bias: Option<Tensor>,
    /// How the matrix lies in memory.
    pub layout: WeightLayout,
    /// Where the gradients go.
    pub grads: LinearGrads,
}

/// Whether a branch can be one op: on the CPU, and every parameter that is trained can get its gradient.
fn fits(x: &Tensor, norm: &BranchNorm, projections: &[&Projection]) -> bool {
    let arrives = |(param, buffer): (&Tensor, Option<&Arc<GradBuffer>>)| {
        !param.track_op() || param.is_variable() && buffer.is_some()
    };
    cpu::fused(x) && parameters(norm, projections).all(arrives)
}

/// All parameters of a branch, and where their gradients go.
fn parameters<'a>(
    norm: &'a BranchNorm,
    projections: &'a [&Projection],
) -> impl Iterator<Item = (&'a Tensor, Option<&'a Arc<GradBuffer>>)> {
    let of_norm = std::iter::once(&norm.gain).chain(&norm.bias);
    let weights = projections.iter().map(|p| (&p.weight, p.grads.weight.as_ref()));
    let biases = projections.iter().filter_map(|p| Some((p.bias.as_ref()?, p.grads.bias.as_ref())));
    of_norm.map(|(param, buffer)| (param, buffer.as_ref())).chain(weights).chain(biases)
}

impl BranchNorm {
    fn norm(&self) -> Norm {
        Norm {
            name: "norm of a branch",
            centered: self.centered,
            eps: self.eps,
            weight_offset: self.gain_offset,
        }
    }

    fn forward<T: Real>(&self, x: &[T]) -> Result<(Vec<T>, Vec<Row<T>>)> {
        let bias = self.bias.as_ref().map(|(bias, _)| bias);
        cpu::with_slice(&self.gain.0, |gain| {
            with_optional(bias, |bias| Ok(self.norm().forward(x, gain, bias)))
        })
    }

    /// The gradient of the input, with `also` added to it.
    fn backward<T: Real>(&self, rows: &[Row<T>], x: &[T], g: &[T], also: &[T]) -> Result<Vec<T>> {
        let wanted = Wanted {
            weight: self.gain.0.track_op(),
            bias: self.bias.as_ref().is_some_and(|(bias, _)| bias.track_op()),
        };
        let grads = cpu::with_slice(&self.gain.0, |gain| {
            let norm = self.norm();
            Ok(norm.gradients(rows, x, &norm.gain(gain), g, wanted, Some(also)))
        })?;
        let (gain, buffer) = &self.gain;
        delivered(deliver(gain, buffer.as_ref(), |dw, _| cpu::add_to(dw, &grads.weight))?)?;
        if let Some((bias, buffer)) = &self.bias {
            delivered(deliver(bias, buffer.as_ref(), |db, _| cpu::add_to(db, &grads.bias))?)?;
        }
        Ok(grads.x)
    }
}

impl Projection {
    fn outputs(&self) -> Result<usize> {
        Ok(self.layout.sizes(self.weight.shape())?.1)
    }

    fn check(&self, name: &str, inputs: usize, outputs: usize) -> Result<()> {
        let sizes = self.layout.sizes(self.weight.shape())?;
        let bias = self.bias.as_ref().map_or(outputs, Tensor::elem_count);
        if sizes != (inputs, outputs) || bias != outputs {
            candle_core::bail!(
                "branch: the {name} layer is {sizes:?} with a bias of {bias}, and ({inputs}, {outputs}) is needed"
            );
        }
        Ok(())
    }

    fn op(&self) -> LinearOp {
        LinearOp::new(self.layout, &self.grads)
    }

    /// Writes `x @ W + b`.
    fn product<T: Real>(&self, x: &[T], finish: Option<&Finish<T>>, y: &mut [T]) -> Result<()> {
        let sizes = self.layout.sizes(self.weight.shape())?;
        cpu::with_slice(&self.weight, |w| {
            with_optional(self.bias.as_ref(), |bias| {
                self.layout.product(x, w, bias, sizes, finish, y);
                Ok(())
            })
        })
    }

    fn input_grad<T: Real>(&self, g: &[T], finish: Option<&Finish<T>>) -> Result<Vec<T>> {
        self.op().input_grad(&self.weight, g, finish)
    }

    fn deliver<T: Real>(&self, x: &[T], g: &[T]) -> Result<()> {
        let [weight, bias] = self.op().parameter_grads(x, g, &self.weight, self.bias.as_ref())?;
        delivered(weight)?;
        delivered(bias)
    }
}

/// A gradient that is left over would be lost.
fn delivered(for_the_tape: Option<Tensor>) -> Result<()> {
    match for_the_tape {
        None => Ok(()),
        Some(_) => candle_core::bail!("branch: a parameter is trained and has no buffer for its gradient"),
    }
}

fn with_optional<T: Real, R>(x: Option<&Tensor>, f: impl FnOnce(Option<&[T]>) -> Result<R>) -> Result<R> {
    match x {
        None => f(None),
        Some(x) => cpu::with_slice(x, |x| f(Some(x))),
    }
}

/// What a branch does between the norm and the stream.
trait Inside<T: Real>: Send + Sync {
    /// What the backward needs.
    type Kept: Send + Sync;

    /// Writes what it makes of the normed stream to `y`, with the stream added. Keeps what a backward needs if there will be one.
    fn forward(&self, normed: &[T], stream: &[T], y: &mut [T], keep: bool) -> Result<Option<Self::Kept>>;

    /// The gradient of the normed stream; those of parameters are delivered.
    fn backward(&self, normed: &[T], kept: &Self::Kept, g: &[T]) -> Result<Vec<T>>;
}

struct Branch<T: Real, I: Inside<T>> {
    norm: BranchNorm,
    inside: I,
    tracked: bool,
    kept: OnceLock<Kept<T, I::Kept>>,
}

struct Kept<T, K> {
    normed: Vec<T>,
    rows: Vec<Row<T>>,
    inside: K,
}

/// The width of the stream, which the norm must have too.
fn width_of(x: &Tensor, norm: &BranchNorm) -> Result<usize> {
    let width = norm.gain.0.dims1()?;
    let bias = norm.bias.as_ref().map_or(width, |(bias, _)| bias.elem_count());
    if width == 0 || bias != width || x.dims().last() != Some(&width) || x.elem_count() == 0 {
        candle_core::bail!("branch: a norm of {width} with a bias of {bias} for a stream {:?}", x.shape());
    }
    Ok(width)
}

/// Runs a branch as one op, if it can be one.
fn run<T: Real, I: Inside<T> + 'static>(
    x: &Tensor,
    norm: &BranchNorm,
    projections: &[&Projection],
    inside: I,
) -> Result<Option<Tensor>> {
    if !fits(x, norm, projections) {
        return Ok(None);
    }
    let trained = parameters(norm, projections).map(|(param, _)| param).find(|param| param.track_op());
    let tracked = x.track_op() || trained.is_some();
    let op = Branch { norm: norm.clone(), inside, tracked, kept: OnceLock::new() };
    let y = match trained {
        None => x.contiguous()?.apply_op1(op),
        // candle walks only to where it knows of a variable, and not through everything: the parameter makes it come here.
        Some(param) => x.contiguous()?.apply_op2(param, op),
    };
    y.map(Some)
}

impl<T: Real, I: Inside<T>> Branch<T, I> {
    fn forward(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = cpu::slice::<T>(x, layout)?;
        let (normed, rows) = self.norm.forward(x)?;
        // SAFETY: the branch writes every element.
        let mut y = unsafe { cpu::uninit::<T>(x.len()) };
        if let Some(inside) = self.inside.forward(&normed, x, &mut y, self.tracked)?
            && self.kept.set(Kept { normed, rows, inside }).is_err()
        {
            candle_core::bail!("branch: one op object runs one forward");
        }
        Ok((T::to_cpu_storage_owned(y), layout.shape().clone()))
    }

    fn backward(&self, x: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let Some(Kept { normed, rows, inside }) = self.kept.get() else {
            candle_core::bail!("branch: the forward did not run")
        };
        let dx = cpu::with_slice::<T, _>(g, |g| {
            let of_normed = self.inside.backward(normed, inside, g)?;
            cpu::with_slice::<T, _>(x, |x| self.norm.backward(rows, x, &of_normed, g))
        })?;
        x.track_op().then(|| cpu::tensor(dx, x.shape())).transpose()
    }
}

impl<T: Real, I: Inside<T>> CustomOp1 for Branch<T, I> {
    fn name(&self) -> &'static str {
        "branch"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.forward(x, layout)
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        self.backward(x, g)
    }
}

/// With a parameter beside the stream, whose gradient goes to its buffer like those of all others.
impl<T: Real, I: Inside<T>> CustomOp2 for Branch<T, I> {
    fn name(&self) -> &'static str {
        "branch"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        layout: &Layout,
        _param: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward(x, layout)
    }

    fn bwd(
        &self,
        x: &Tensor,
        _param: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((self.backward(x, g)?, None))
    }
}

/// A call for [`Product::then`](super::product::Product::then) that adds the same part of another matrix with rows of `width`.
fn add_rows<T: Real>(other: &[T], width: usize) -> impl Fn(usize, usize, &mut [T]) + Sync + '_ {
    move |row, col, part| {
        let other = &other[row * width + col..][..part.len()];
        cpu::wide(
            #[inline(always)]
            || cpu::add_to(part, other),
        );
    }
}
