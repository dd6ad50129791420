//! Trainable parameters and their gradients.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{Result, Tensor, Var};
use tenterhook_hooks::{NamedGrads, Pass};

use crate::ops::GradBuffer;

/// A named weight: tracked by the tape in passes that train it, a constant in all others.
#[derive(Clone, Debug)]
pub struct Param {
    name: Arc<str>,
    var: Var,
    /// The same storage without the tape: candle has no switch to turn tracking off.
    constant: Tensor,
}

impl Param {
    /// A parameter with these first values.
    pub fn new(name: &str, value: &Tensor) -> Result<Self> {
        let var = Var::from_tensor(value)?;
        let constant = var.as_detached_tensor();
        Ok(Self { name: name.into(), var, constant })
    }

    /// The full dotted name, as in a model file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tensor to compute with in this pass.
    pub fn at(&self, pass: &Pass) -> &Tensor {
        if pass.tracks_parameters() { self.var.as_tensor() } else { &self.constant }
    }

    /// The value without the tape.
    pub fn value(&self) -> &Tensor {
        &self.constant
    }

    /// The variable, for optimizers.
    pub fn var(&self) -> &Var {
        &self.var
    }

    /// Where this pass wants the gradient added, when it brought buffers.
    pub fn buffer(&self, pass: &Pass) -> Option<Arc<GradBuffer>> {
        if !pass.tracks_parameters() {
            return None;
        }
        pass.extension::<GradBuffers>()?.0.get(&*self.name).cloned()
    }
}

/// All parameters of a model, sorted by name: no other order ever decides anything.
#[derive(Clone, Debug, Default)]
pub struct Params(BTreeMap<String, Param>);

impl Params {
    /// The parameter of this name.
    pub fn get(&self, name: &str) -> Option<&Param> {
        self.0.get(name)
    }

    /// All parameters by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Param> {
        self.0.values()
    }

    /// How many parameters there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many numbers they hold together.
    pub fn element_count(&self) -> usize {
        self.iter().map(|param| param.value().elem_count()).sum()
    }

    pub(crate) fn insert(&mut self, param: Param) {
        self.0.insert(param.name().to_string(), param);
    }
}

/// A buffer per parameter, into which fused ops add gradients. Put into the pass with
/// [`PassSetup::with`](tenterhook_hooks::PassSetup::with); a pass without works too, through the tape.
#[derive(Debug)]
pub struct GradBuffers(BTreeMap<String, Arc<GradBuffer>>);

impl GradBuffers {
    /// Empty buffers for these parameters.
    pub fn new(params: &Params) -> Arc<Self> {
        let buffer =
            |param: &Param| (param.name().to_string(), Arc::new(GradBuffer::new(param.value().shape())));
        Arc::new(Self(params.iter().map(buffer).collect()))
    }
}

/// What share of a step's loss the loss of this pass is: a hint for ops that compute gradients along with the loss. Put into the pass with
/// [`PassSetup::with`](tenterhook_hooks::PassSetup::with) where a step has several batches.
#[derive(Clone, Copy, Debug)]
pub struct LossShare(pub f64);

/// Some parameters got no gradient: an op without a backward, or a part of the model that the loss does not reach.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} of {total} parameters received no gradient: {}", missing.len(), shorten(.missing))]
pub struct CoverageError {
    /// The parameters without a gradient.
    pub missing: Vec<String>,
    /// How many parameters there are.
    pub total: usize,
}

fn shorten(names: &[String]) -> String {
    let shown = names.iter().take(20).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.len() > 20 { format!("{shown} and {} more", names.len() - 20) } else { shown }
}

/// Runs the backward of `loss` and collects the gradient of every parameter: from the tape, and from the buffers if
/// the pass had some.
pub fn backward(loss: &Tensor, params: &Params, buffers: Option<&GradBuffers>) -> Result<NamedGrads> {
    let tape = match loss.backward() {
        Ok(tape) => tape,
        Err(error) => {
            // Half a backward must not leak into the next one.
            for buffer in buffers.iter().flat_map(|buffers| buffers.0.values()) {
                buffer.take()?;
            }
            return Err(error);
        }
    };
    let mut grads = Vec::with_capacity(params.len());
    for param in params.iter() {
        let from_buffer = match buffers.and_then(|buffers| buffers.0.get(param.name())) {
            Some(buffer) => buffer.take()?,
            None => None,
        };
        let grad = match (from_buffer, tape.get(param.var())) {
            (Some(a), Some(b)) => Some((a + b)?),
            (Some(a), None) => Some(a),
            (None, b) => b.cloned(),
        };
        grads.extend(grad.map(|grad| (param.name().to_string(), grad)));
    }
    Ok(grads.into_iter().collect())
}

/// Checks that every parameter got a gradient.
pub fn check_coverage(grads: &NamedGrads, params: &Params) -> std::result::Result<(), CoverageError> {
    let missing: Vec<String> =
        params.iter().map(Param::name).filter(|name| grads.get(name).is_none()).map(str::to_string).collect();
    if missing.is_empty() { Ok(()) } else { Err(CoverageError { missing, total: params.len() }) }
}
