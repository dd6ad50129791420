//! How much gradient reaches every layer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::cx::Cx;
use crate::error::{AttachError, HookResult};
use crate::grads::NamedGrads;
use crate::hook::{At, Hook, Want};
use crate::manager::HookManager;
use crate::options::HookOptions;
use crate::selector::Selector;
use crate::statistics::Moments;

/// What a [`GradientFlow`] watches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GradientFlowOptions {
    /// The layers or points.
    #[schemars(extend("examples" = ["blocks.*.hook_resid_post"]))]
    pub points: Selector,
    /// A gradient norm below this is vanishing.
    #[serde(default = "vanishing_below")]
    pub vanishing_below: f64,
    /// A gradient norm above this is exploding.
    #[serde(default = "exploding_above")]
    pub exploding_above: f64,
}

fn vanishing_below() -> f64 {
    1e-7
}

fn exploding_above() -> f64 {
    1e3
}

impl GradientFlowOptions {
    /// These layers, with the usual thresholds.
    pub fn new(points: impl Into<Selector>) -> Self {
        Self { points: points.into(), vanishing_below: vanishing_below(), exploding_above: exploding_above() }
    }
}

/// What a gradient norm means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Between the thresholds.
    Healthy,
    /// Below `vanishing_below`.
    Vanishing,
    /// Above `exploding_above`, or not finite.
    Exploding,
    /// Exactly zero: nothing before this layer learns from it.
    Dead,
    /// No gradient came by: the layer does not lead to the loss, or an operation without a backward is in between.
    Missing,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Healthy => "healthy",
            Verdict::Vanishing => "vanishing",
            Verdict::Exploding => "exploding",
            Verdict::Dead => "dead",
            Verdict::Missing => "missing",
        })
    }
}

/// The gradient at one layer in the last backward.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerFlow {
    /// The point or layer.
    pub point: String,
    /// The Euclidean norm of the gradient; `None` when none arrived.
    pub norm: Option<f64>,
    /// The norm divided by that of the next layer, from which the gradient comes; `None` where one of them is missing or zero.
    pub ratio: Option<f64>,
    /// What it means.
    pub verdict: Verdict,
}

/// Remembers the gradient norm of every layer in the last backward, and logs it as `<hook id>/<point>/norm`.
///
/// In a training run it also logs `<hook id>/<point>/ratio`, counts the layers that are `vanishing` (dead ones too), `exploding` and
/// `missing` under these names, and warns of each layer once.
pub struct GradientFlow {
    options: GradientFlowOptions,
    clock: Clock,
    norms: BTreeMap<String, f64>,
    /// The names of the layers, in the order of the model's points; known once training has started.
    layers: Vec<String>,
    said: BTreeSet<String>,
}

impl GradientFlow {
    /// The kind's name.
    pub const KIND: &'static str = "gradient_flow";

    /// Thresholds that leave nothing healthy are an error.
    pub fn new(options: GradientFlowOptions) -> Result<Self, AttachError> {
        let GradientFlowOptions { vanishing_below: low, exploding_above: high, .. } = options;
        if !(0.0 <= low && low < high) {
            let problem = format!(
                "`vanishing_below` is {low} and `exploding_above` is {high}: needed is 0 <= {low} < {high}"
            );
            return Err(AttachError::BadOptions { kind: Self::KIND.to_string(), problems: vec![problem] });
        }
        let (norms, layers, said) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        Ok(Self { options, clock: Clock::default(), norms, layers, said })
    }

    fn verdict(&self, norm: f64) -> Verdict {
        match norm {
            0.0 => Verdict::Dead,
            norm if norm < self.options.vanishing_below => Verdict::Vanishing,
            norm if norm <= self.options.exploding_above => Verdict::Healthy,
            _ => Verdict::Exploding, // also NaN
        }
    }

    fn flow(&self, points: &[String]) -> Vec<LayerFlow> {
        let norms: Vec<Option<f64>> = points.iter().map(|point| self.norms.get(point).copied()).collect();
        let ratio = |here: Option<f64>, next: Option<f64>| Some(here? / next.filter(|next| *next != 0.0)?);
        let layers = points.iter().zip(&norms).enumerate().map(|(i, (point, norm))| LayerFlow {
            point: point.clone(),
            norm: *norm,
            ratio: ratio(*norm, norms.get(i + 1).copied().flatten()),
            verdict: norm.map_or(Verdict::Missing, |norm| self.verdict(norm)),
        });
        layers.collect()
    }
}

impl Hook for GradientFlow {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn wants(&self) -> Vec<Want> {
        vec![Want::observe_gradient(self.options.points.clone())]
    }

    fn observe(&mut self, at: &At, gradient: &Tensor, cx: &mut Cx) -> HookResult {
        if self.clock != cx.clock() {
            self.clock = cx.clock();
            self.norms.clear(); // a layer that gets none this time must not show its last one
        }
        let moments = Moments::of(gradient)?;
        let norm = if moments.non_finite() == 0 { moments.norm() } else { f64::NAN };
        cx.log(format!("{}/{}/norm", cx.hook_id(), at.name()), norm);
        self.norms.insert(at.name().to_string(), norm);
        Ok(())
    }

    fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
        let this = cx.hooks().into_iter().find(|hook| hook.id == cx.hook_id());
        self.layers = this.map(|hook| hook.matched).unwrap_or_default();
        Ok(())
    }

    fn on_after_backward(&mut self, _grads: &NamedGrads, cx: &mut Cx) -> HookResult {
        if self.clock != cx.clock() {
            self.norms.clear(); // nothing arrived anywhere
        }
        let (mut vanishing, mut exploding, mut missing) = (0u64, 0u64, 0u64);
        for layer in self.flow(&self.layers) {
            let LayerFlow { point, norm, ratio, verdict } = &layer;
            if let Some(ratio) = ratio {
                cx.log(format!("{}/{point}/ratio", cx.hook_id()), *ratio);
            }
            match verdict {
                Verdict::Healthy => continue,
                Verdict::Vanishing | Verdict::Dead => vanishing += 1,
                Verdict::Exploding => exploding += 1,
                Verdict::Missing => missing += 1,
            }
            if self.said.insert(point.clone()) {
                let norm = norm.map(|norm| format!(", its norm is {norm:e}")).unwrap_or_default();
                tracing::warn!(hook = cx.hook_id(), "the gradient at `{point}` is {verdict}{norm}");
            }
        }
        for (name, count) in [("vanishing", vanishing), ("exploding", exploding), ("missing", missing)] {
            cx.log(format!("{}/{name}", cx.hook_id()), count as f64);
        }
        Ok(())
    }

    fn save_state(&self) -> HookResult<Option<serde_json::Value>> {
        Ok(Some(serde_json::to_value(&self.said)?))
    }

    fn load_state(&mut self, state: serde_json::Value) -> HookResult {
        self.said = serde_json::from_value(state)?;
        Ok(())
    }
}

impl HookManager {
    /// Watches how much gradient reaches the chosen layers; read it with [`gradient_flow`](HookManager::gradient_flow).
    pub fn register_gradient_flow(
        &self,
        layers: impl Into<Selector>,
        id: Option<&str>,
        vanishing_below: f64,
        exploding_above: f64,
    ) -> Result<String, AttachError> {
        let options = GradientFlowOptions { points: layers.into(), vanishing_below, exploding_above };
        self.register_with(GradientFlow::new(options)?, HookOptions::builtin(id))
    }

    /// The gradients of the last backward that reached any of the layers, in the order of the model's points.
    pub fn gradient_flow(&self, id: &str) -> Result<Vec<LayerFlow>, AttachError> {
        let points = self.list_hooks().into_iter().find(|hook| hook.id == id).map(|hook| hook.matched);
        self.with_hook(id, |flow: &mut GradientFlow| flow.flow(&points.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::PassSetup;
    use crate::point::{Point, PointTable};
    use candle_core::{Device, Var};

    /// Five points one after the other; the layer after point 1 is dead, the last point does not lead to the loss.
    #[test]
    fn a_dead_layer_is_named_and_a_missing_gradient_listed() -> HookResult {
        let mut points = PointTable::builder();
        let names = ["h.0", "h.1", "h.2", "h.3", "aside"];
        let ids =
            names.iter().map(|name| points.point(Point::new(*name, "d"))).collect::<Result<Vec<_>, _>>()?;
        let hooks = HookManager::new(points.build());
        let id = hooks.register_gradient_flow("*", Some("flow"), 1e-3, 10.0)?;
        let all_missing = hooks.gradient_flow(&id)?;
        assert!(all_missing.iter().all(|layer| layer.verdict == Verdict::Missing));

        let pass = hooks.pass(PassSetup::train(0));
        let x = Var::new(&[3f32, 4.0], &Device::Cpu)?;
        let x0 = pass.tap(ids[0], (x.as_tensor() * 1.0)?)?;
        let x1 = pass.tap(ids[1], (&x0 * 1e-5)?)?;
        let x2 = pass.tap(ids[2], (&x1 * x1.zeros_like()?)?)?; // dead: nothing gets back through it
        let x3 = pass.tap(ids[3], ((&x2 + &x0)? * 20.0)?)?;
        pass.tap(ids[4], (&x3 * 1.0)?)?;
        x3.sum_all()?.backward()?;

        let flow = hooks.gradient_flow(&id)?;
        let verdicts: Vec<_> = flow.iter().map(|layer| (layer.point.as_str(), layer.verdict)).collect();
        let want =
            [Verdict::Exploding, Verdict::Dead, Verdict::Exploding, Verdict::Healthy, Verdict::Missing];
        assert_eq!(verdicts, names.into_iter().zip(want).collect::<Vec<_>>());
        assert_eq!((flow[0].ratio, flow[3].ratio), (None, None)); // the next one is dead, or missing
        assert!(flow[2].ratio.is_some_and(|ratio| (ratio - 20.0).abs() < 1e-6));
        assert!(pass.report().metrics.contains_key("flow/h.0/norm"));

        let pass = hooks.pass(PassSetup::train(1));
        pass.tap(ids[3], (x.as_tensor() * 1e-9)?)?.affine(1e-9, 0.0)?.sum_all()?.backward()?;
        let flow = hooks.gradient_flow(&id)?;
        assert_eq!(flow[0].verdict, Verdict::Missing, "the last backward did not get there");
        assert_eq!(flow[3].verdict, Verdict::Vanishing);
        Ok(())
    }

    #[test]
    fn thresholds_must_leave_something_healthy() -> HookResult {
        let mut points = PointTable::builder();
        points.point(Point::new("h", "d"))?;
        let hooks = HookManager::new(points.build());
        for (low, high) in [(1.0, 1.0), (-1.0, 1.0), (f64::NAN, 1.0)] {
            assert!(hooks.register_gradient_flow("h", None, low, high).is_err());
        }
        Ok(())
    }
}
