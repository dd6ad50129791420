//! The hooks that patching attaches: one that keeps, one that patches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Device, Result, Tensor};
use tenterhook_hooks::{At, Cx, Hook, HookOptions, HookResult, OnError, Want};

/// What passed, by the canonical name of its point.
#[derive(Clone, Default)]
pub(super) struct Passed {
    pub(super) values: Arc<Mutex<BTreeMap<String, Tensor>>>,
    pub(super) gradients: Arc<Mutex<BTreeMap<String, Tensor>>>,
}

pub(super) fn take(map: &Mutex<BTreeMap<String, Tensor>>) -> BTreeMap<String, Tensor> {
    std::mem::take(&mut *map.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Keeps values, and gradients where they are asked for.
pub(super) struct Keep {
    pub(super) points: Vec<String>,
    pub(super) gradients: bool,
    pub(super) passed: Passed,
}

impl Hook for Keep {
    fn kind(&self) -> &str {
        "patching_keep"
    }

    fn wants(&self) -> Vec<Want> {
        if self.points.is_empty() {
            return vec![];
        }
        let mut wants = vec![Want::observe(self.points.clone())];
        if self.gradients {
            wants.push(Want::observe_gradient(self.points.clone()));
        }
        wants
    }

    fn observe(&mut self, at: &At, x: &Tensor, _cx: &mut Cx) -> HookResult {
        let map = if at.site().is_gradient() { &self.passed.gradients } else { &self.passed.values };
        let kept = at.owned(x)?;
        map.lock().unwrap_or_else(PoisonError::into_inner).insert(at.point().name.clone(), kept);
        Ok(())
    }
}

/// Which part of an activation: a position, a head, both, or all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) position: Option<usize>,
    pub(super) head: Option<usize>,
}

/// The axes of a point, as far as parts go.
#[derive(Clone, Debug)]
pub(super) struct Axes {
    pub(super) position: Option<usize>,
    pub(super) head: Option<usize>,
    names: Vec<String>,
}

impl Axes {
    /// Of axes such as `batch pos head d_head`. A pattern's positions are those of the queries.
    pub(super) fn of(axes: &str) -> Self {
        let names: Vec<String> = axes.split_whitespace().map(str::to_string).collect();
        let find = |wanted: [&str; 2]| names.iter().position(|name| wanted.contains(&name.as_str()));
        Self { position: find(["pos", "query_pos"]), head: find(["head", "kv_head"]), names }
    }

    /// One for every element of the parts, each in its own row of the batch; the other axes are of size 1.
    pub(super) fn mask(&self, parts: &[Part], shape: &[usize], device: &Device) -> Result<Tensor> {
        let mut dims = vec![1; self.names.len()];
        dims[0] = parts.len();
        [self.position, self.head].into_iter().flatten().for_each(|axis| dims[axis] = shape[axis]);
        let size = |axis: Option<usize>| axis.map_or(1, |axis| shape[axis]);
        let stride = |axis: usize| dims[axis + 1..].iter().product::<usize>();
        let at = |axis: Option<usize>, index: usize| axis.map_or(0, |axis| index * stride(axis));
        let mut mask = vec![0u8; dims.iter().product()];
        for (row, part) in parts.iter().enumerate() {
            for position in 0..size(self.position) {
                for head in 0..size(self.head) {
                    let inside = part.position.is_none_or(|one| one == position)
                        && part.head.is_none_or(|one| one == head);
                    mask[row * stride(0) + at(self.position, position) + at(self.head, head)] = inside as u8;
                }
            }
        }
        Tensor::from_vec(mask, dims, device)
    }

    /// An activation of one sequence as `[pos, head, everything else]`.
    pub(super) fn by_place(&self, x: &Tensor) -> Result<Tensor> {
        let rest = (1..self.names.len()).filter(|axis| ![self.position, self.head].contains(&Some(*axis)));
        let order: Vec<usize> =
            [Some(0), self.position, self.head].into_iter().flatten().chain(rest).collect();
        let size = |axis: Option<usize>| axis.map_or(Ok(1), |axis| x.dim(axis));
        let shape = (size(self.position)?, size(self.head)?, ());
        x.permute(order)?.contiguous()?.reshape(shape)
    }
}

/// Puts parts of `source`, an activation of one sequence, into the rows of a batch.
pub(super) fn patched(x: &Tensor, source: &Tensor, axes: &Axes, parts: &[Part]) -> Result<Tensor> {
    let mask = axes.mask(parts, x.dims(), x.device())?.broadcast_as(x.shape())?;
    mask.where_cond(&source.broadcast_as(x.shape())?, x)
}

/// Patches one point.
pub(super) struct Patch {
    pub(super) point: String,
    pub(super) source: Tensor,
    pub(super) parts: Vec<Part>,
}

impl Hook for Patch {
    fn kind(&self) -> &str {
        "patching"
    }

    fn wants(&self) -> Vec<Want> {
        vec![Want::edit(self.point.as_str())]
    }

    fn edit(&mut self, at: &At, x: &Tensor, _cx: &mut Cx) -> HookResult<Option<Tensor>> {
        Ok(Some(patched(x, &self.source, &Axes::of(&at.point().axes), &self.parts)?))
    }
}

/// Puts whole activations in the place of those that pass.
pub(super) struct Replace {
    pub(super) values: BTreeMap<String, Tensor>,
}

impl Hook for Replace {
    fn kind(&self) -> &str {
        "patching_replace"
    }

    fn wants(&self) -> Vec<Want> {
        vec![Want::edit(self.values.keys().cloned().collect::<Vec<_>>())]
    }

    fn edit(&mut self, at: &At, _x: &Tensor, _cx: &mut Cx) -> HookResult<Option<Tensor>> {
        Ok(self.values.get(&at.point().name).cloned())
    }
}

/// After the user's own hooks, and a failure is the sweep's.
pub(super) fn options() -> HookOptions {
    HookOptions { on_error: OnError::Abort, builtin: true, ..HookOptions::default() }
}
