//! A branch of a transformer block in one op: `x + f(norm(x))`, where `f` is [attention](attention_branch) or an [MLP](mlp_branch).
//!
//! candle's tape fills with zeros and adds for every edge between two ops. A whole branch is one edge. Inside, sums with the stream and slopes of activations are taken while a product's result is in the cache. The
//! arithmetic is that of the separate ops, in the same order, so the bits are the same.
//!
//! The tape knows nothing of a branch's parameters: their gradients go to [`GradBuffer`]s. Where a parameter is trained and has none,
//! or the stream itself has no gradient, [`branch_fits`] says no, and the separate ops do the work.

mod attention;
mod mlp;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
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
pub fn branch_fits(x: &Tensor, norm: &BranchNorm, projections: &[&Projection]) -> bool {
    let reaches = |param: &Tensor, buffer: &Option<Arc<GradBuffer>>| {
        !param.track_op() || x.track_op() && param.is_variable() && buffer.is_some()
    };
    let of_norm = std::iter::once(&norm.gain).chain(&norm.bias);
    cpu::fused(x)
        && of_norm.into_iter().all(|(param, buffer)| reaches(param, buffer))
        && projections.iter().all(|projection| {
            reaches(&projection.weight, &projection.grads.weight)
                && projection.bias.iter().all(|bias| reaches(bias, &projection.grads.bias))
        })
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
        deliver(gain, buffer.as_ref(), |dw, _| cpu::add_to(dw, &grads.weight))?;
        if let Some((bias, buffer)) = &self.bias {
            deliver(bias, buffer.as_ref(), |db, _| cpu::add_to(db, &grads.bias))?;
        }
        Ok(grads.x)
    }
}

impl Projection {
    fn outputs(&self) -> Result<usize> {
        Ok(self.layout.sizes(self.weight.shape())?.1)
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
        // Nothing goes to the tape: `branch_fits`.
        self.op().parameter_grads(x, g, &self.weight, self.bias.as_ref()).map(|_| ())
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

/// Runs a branch as one op.
fn run<T: Real, I: Inside<T> + 'static>(x: &Tensor, norm: &BranchNorm, inside: I) -> Result<Tensor> {
    let width = norm.gain.0.dims1()?;
    if width == 0 || x.dims().last() != Some(&width) {
        candle_core::bail!("branch: the last axis of {:?} is not the {width} of its norm", x.shape());
    }
    let tracked = x.track_op();
    x.contiguous()?.apply_op1(Branch { norm: norm.clone(), inside, tracked, kept: OnceLock::new() })
}

impl<T: Real, I: Inside<T>> CustomOp1 for Branch<T, I> {
    fn name(&self) -> &'static str {
        "branch"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
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

    fn bwd(&self, x: &Tensor, _y: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let Some(Kept { normed, rows, inside }) = self.kept.get() else {
            candle_core::bail!("branch: the forward did not run")
        };
        let dx = cpu::with_slice::<T, _>(g, |g| {
            let of_normed = self.inside.backward(normed, inside, g)?;
            cpu::with_slice::<T, _>(x, |x| self.norm.backward(rows, x, &of_normed, g))
        })?;
        cpu::tensor(dx, x.shape()).map(Some)
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
