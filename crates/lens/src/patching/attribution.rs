//! Attribution patching: every cell of a sweep estimated from one gradient.

use candle_core::{DType, Tensor};
use tenterhook_hooks::Report;

use super::contrast::Contrast;
use super::grid::{Method, PatchingGrid};
use super::hooks::Part;
use super::runs::{Lab, absent};
use super::sweep::{Plan, Sweep};
use crate::error::LensError;
use crate::language_model::LanguageModel;

impl LanguageModel {
    /// Estimates what [`activation_patching`](Self::activation_patching) measures, to first order: two forwards and one backward for all
    /// cells. A cell's value is the metric of the unpatched run plus the difference of the two runs times the gradient, summed over what
    /// the cell patches.
    ///
    /// Exact where the metric is linear in the activation. Elsewhere it is an estimate, good for small changes: prompts that differ in one
    /// token, single heads of a model that is not too sure of itself. What passes saturated norms and softmaxes, or the whole residual
    /// stream of very different prompts, is a large change: compare with exact patching before you trust the order.
    pub fn attribution_patching(
        &self,
        contrast: &Contrast,
        sweep: &Sweep,
    ) -> Result<(PatchingGrid, Report), LensError> {
        let mut lab = Lab::new(self, contrast)?;
        let plan = sweep.plan(self, contrast.length())?;
        let (source, base) = contrast.source_and_base();
        let source = lab.run(source, &plan.names())?;
        let base = lab.run_with_gradients(base, &plan.names())?;
        let mut values = Vec::with_capacity(plan.cells());
        for (point, parts) in plan.points.iter().zip(&plan.parts) {
            let gradient = base.gradients.get(&point.name).ok_or_else(|| absent("gradient", &point.name))?;
            let effect = effects(source.value(&point.name)?, base.value(&point.name)?, gradient)?;
            let by_place = point.axes.by_place(&effect)?.sum(2)?.to_vec2::<f64>()?;
            values.extend(parts.iter().map(|part| (f64::from(base.metric) + summed(&by_place, part)) as f32));
        }
        let naive = (lab.layers() * (plan.cells() + 2)) as u64;
        let costs = (lab.block_evaluations, naive);
        let frame = Plan::into_frame(plan, Method::Attribution);
        let metrics = (source.metric, base.metric);
        Ok((PatchingGrid::new(frame, contrast, metrics, &values, costs), lab.report))
    }
}

/// The difference times the gradient. What is the same in both runs has no effect, infinities included.
fn effects(source: &Tensor, base: &Tensor, gradient: &Tensor) -> Result<Tensor, LensError> {
    let [source, base, gradient] = [source, base, gradient].map(|x| x.to_dtype(DType::F64));
    let (source, base) = (source?, base?);
    let product = ((&source - &base)? * gradient?)?;
    Ok(source.eq(&base)?.where_cond(&product.zeros_like()?, &product)?)
}

/// Of values by position and head.
fn summed(by_place: &[Vec<f64>], part: &Part) -> f64 {
    let rows = by_place.iter().enumerate().filter(|(at, _)| part.position.is_none_or(|one| one == *at));
    rows.flat_map(|(_, heads)| heads.iter().enumerate())
        .filter(|(head, _)| part.head.is_none_or(|one| one == *head))
        .map(|(_, value)| value)
        .sum()
}
