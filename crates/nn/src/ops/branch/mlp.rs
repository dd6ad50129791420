//! The MLP branch.

use candle_core::{Result, Tensor};

use super::{BranchNorm, Inside, Projection, add_rows, run, width_of};
use crate::ops::Activation;
use crate::ops::activation::with_curve;
use crate::ops::cpu::{self, dispatch};
use crate::ops::product::{MatMut, Rows};
use crate::ops::real::Real;

/// What is between the norm and the stream: `down(act(up(x)))`, or `down(act(gate(x)) * up(x))` where there is a gate.
#[derive(Clone, Debug)]
pub struct BranchMlp {
    /// The layer whose output goes through the activation, where another one goes past it.
    pub gate: Option<Projection>,
    /// Into the MLP.
    pub up: Projection,
    /// The activation.
    pub activation: Activation,
    /// Back to the stream.
    pub down: Projection,
}

impl BranchMlp {
    fn projections(&self) -> Vec<&Projection> {
        self.gate.iter().chain([&self.up, &self.down]).collect()
    }
}

/// `x + mlp(norm(x))` in one op, with the bits of the separate ones; `None` where it cannot be one.
pub fn mlp_branch(x: &Tensor, norm: &BranchNorm, mlp: &BranchMlp) -> Result<Option<Tensor>> {
    let (width, hidden) = (width_of(x, norm)?, mlp.up.outputs()?);
    mlp.gate.iter().try_for_each(|gate| gate.check("gate", width, hidden))?;
    mlp.up.check("up", width, hidden)?;
    mlp.down.check("down", hidden, width)?;
    dispatch!(x.dtype(), T => run::<T, _>(x, norm, &mlp.projections(), mlp.clone()))
}

/// The hidden layer before and after the activation.
pub(super) struct Hidden<T> {
    /// What goes through the activation.
    before: Vec<T>,
    /// What goes past it, in a gated MLP.
    past: Vec<T>,
    after: Vec<T>,
}

impl BranchMlp {
    /// The layer that goes through the activation.
    fn activated(&self) -> &Projection {
        self.gate.as_ref().unwrap_or(&self.up)
    }
}

impl<T: Real> Inside<T> for BranchMlp {
    type Kept = Hidden<T>;

    fn forward(&self, normed: &[T], stream: &[T], y: &mut [T], keep: bool) -> Result<Option<Hidden<T>>> {
        let (width, outputs) = (self.up.outputs()?, self.down.outputs()?);
        let rows = y.len() / outputs;
        // SAFETY: the products write every element, or what is made of them.
        let room = |wanted: bool| unsafe { cpu::uninit::<T>(if wanted { rows * width } else { 0 }) };
        let mut past = room(self.gate.is_some());
        if self.gate.is_some() {
            self.up.product(normed, None, &mut past)?;
        }
        let (mut before, mut after) = (room(keep), room(true));
        let activate = |row: usize, col: usize, part: &mut [T]| {
            let past = past.get(row * width + col..).unwrap_or_default();
            with_curve!(self.activation, f => cpu::wide(
                #[inline(always)]
                || match past.is_empty() {
                    true => part.iter_mut().for_each(|x| *x = f(*x).0),
                    false => part.iter_mut().zip(past).for_each(|(x, past)| *x = f(*x).0 * *past),
                },
            ));
        };
        if keep {
            let to = MatMut::new(&mut after, rows, width);
            let to = Rows::of(&to);
            let finish = |row: usize, col: usize, part: &mut [T]| {
                // SAFETY: every part of the product is complete once.
                let to = unsafe { to.part(row, col..col + part.len()) };
                to.copy_from_slice(part);
                activate(row, col, to);
            };
            self.activated().product(normed, Some(&finish), &mut before)?;
        } else {
            self.activated().product(normed, Some(&activate), &mut after)?;
        }
        self.down.product(&after, Some(&add_rows(stream, outputs)), y)?;
        Ok(keep.then_some(Hidden { before, past, after }))
    }

    fn backward(&self, normed: &[T], hidden: &Hidden<T>, g: &[T]) -> Result<Vec<T>> {
        let width = self.up.outputs()?;
        self.down.deliver(&hidden.after, g)?;
        // SAFETY: written with the gradient beside it.
        let mut past = unsafe { cpu::uninit::<T>(hidden.past.len()) };
        let to = MatMut::new(&mut past, hidden.past.len() / width, width);
        let to = Rows::of(&to);
        // From the gradient after the activation to that before it, in place, and to that of what goes past.
        let slope = |row: usize, col: usize, part: &mut [T]| {
            let here = row * width + col..row * width + col + part.len();
            let before = &hidden.before[here.clone()];
            with_curve!(self.activation, f => cpu::wide(
                #[inline(always)]
                || match hidden.past.is_empty() {
                    true => part.iter_mut().zip(before).for_each(|(g, &x)| *g *= f(x).1),
                    false => {
                        // SAFETY: every part of the product is complete once.
                        let to = unsafe { to.part(row, col..col + part.len()) };
                        let values = before.iter().zip(&hidden.past[here.clone()]);
                        for ((g, to), (&x, &past)) in part.iter_mut().zip(to).zip(values) {
                            let (value, slope) = f(x);
                            *to = *g * value;
                            *g = *g * past * slope;
                        }
                    }
                },
            ));
        };
        let before = self.down.input_grad(g, Some(&slope))?;
        self.activated().deliver(normed, &before)?;
        let of_normed = self.activated().input_grad(&before, None)?;
        if self.gate.is_none() {
            return Ok(of_normed);
        }
        self.up.deliver(normed, &past)?;
        let inputs = normed.len() * width / past.len();
        self.up.input_grad(&past, Some(&add_rows(&of_normed, inputs)))
    }
}
