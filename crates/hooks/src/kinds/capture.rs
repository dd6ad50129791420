//! Keeping what passes at points.

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cx::Cx;
use crate::error::{AttachError, HookResult};
use crate::hook::{At, Hook, Want};
use crate::manager::HookManager;
use crate::options::HookOptions;
use crate::part::Part;
use crate::point::Point;
use crate::positions::Positions;
use crate::selector::Selector;
use crate::states::Retention;

/// What a [`Capture`] keeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureOptions {
    /// The points or layers.
    #[schemars(extend("examples" = ["blocks.*.hook_resid_post"]))]
    pub points: Selector,
    /// The layer index that captured states carry; without one it is the point's block.
    #[serde(default)]
    pub layer_idx: Option<usize>,
    /// Keeps the inputs of the chosen layers.
    #[serde(default)]
    pub capture_input: bool,
    /// Keeps the values at the chosen points; for layers, their outputs.
    #[serde(default = "yes")]
    pub capture_output: bool,
    /// Keeps the gradients there as well, or alone when neither input nor output is kept.
    #[serde(default)]
    pub gradients: bool,
    /// How much is kept: "all", "last" (step), {"ring": states} or {"bytes": n}.
    #[serde(default)]
    pub retention: Retention,
    /// Only these positions of the text, one or a list; negative from its end, padding not counted. Nothing else is kept in memory.
    #[serde(default)]
    pub positions: Option<Positions>,
    /// Only these heads, where there is an axis of heads.
    #[serde(default)]
    pub heads: Option<Vec<usize>>,
    /// Only these entries of the last axis.
    #[serde(default)]
    pub neurons: Option<Vec<usize>>,
}

fn yes() -> bool {
    true
}

impl CaptureOptions {
    /// The values at these points, all of them.
    pub fn new(points: impl Into<Selector>) -> Self {
        Self {
            points: points.into(),
            layer_idx: None,
            capture_input: false,
            capture_output: true,
            gradients: false,
            retention: Retention::All,
            positions: None,
            heads: None,
            neurons: None,
        }
    }

    fn part(&self) -> Part {
        Part { positions: self.positions.clone(), heads: self.heads.clone(), neurons: self.neurons.clone() }
    }
}

/// Keeps tensors in the manager's store of captured states.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// use tenterhook_hooks::kinds::capture::{Capture, CaptureOptions};
/// use tenterhook_hooks::{HookManager, PassSetup, Point, PointTable, Positions};
///
/// let mut points = PointTable::builder();
/// let stream = points.point(Point::new("blocks.0.hook_resid_post", "batch pos d_model"))?;
/// let hooks = HookManager::new(points.build());
///
/// let last = CaptureOptions { positions: Some(Positions(vec![-1])), ..CaptureOptions::new("*.hook_resid_post") };
/// let id = hooks.register(Capture::new(last)?)?;
/// hooks.pass(PassSetup::default()).tap(stream, Tensor::zeros((2, 5, 8), candle_core::DType::F32, &Device::Cpu)?)?;
/// assert_eq!(hooks.get_captured_states(&id)?[0].shape(), [2, 1, 8]);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct Capture {
    options: CaptureOptions,
}

impl Capture {
    /// The kind's name.
    pub const KIND: &'static str = "capture";

    /// Options that would keep nothing are an error.
    pub fn new(options: CaptureOptions) -> Result<Self, AttachError> {
        let mut problems = Vec::new();
        if !options.capture_input && !options.capture_output && !options.gradients {
            problems.push(
                "nothing to capture: none of `capture_input`, `capture_output`, `gradients` is set"
                    .to_string(),
            );
        }
        problems.extend(options.part().problems());
        match problems.is_empty() {
            true => Ok(Self { options }),
            false => Err(AttachError::BadOptions { kind: Self::KIND.to_string(), problems }),
        }
    }
}

impl Hook for Capture {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn wants(&self) -> Vec<Want> {
        let CaptureOptions { points, capture_input, capture_output, gradients, .. } = &self.options;
        let mut wants = Vec::new();
        if *capture_input {
            wants.push(Want::observe(points.clone()).before());
        }
        if *capture_output {
            wants.push(Want::observe(points.clone()));
        }
        if *gradients && *capture_input {
            wants.push(Want::observe_gradient(points.clone()).before());
        }
        if *gradients && (*capture_output || !*capture_input) {
            wants.push(Want::observe_gradient(points.clone()));
        }
        wants
    }

    fn fits(&self, point: &Point) -> HookResult {
        self.options.part().fits(point)
    }

    fn observe(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult {
        let CaptureOptions { layer_idx, retention, .. } = self.options;
        match self.options.part().pick(at, x, cx)? {
            Some(part) => cx.keep(at, &part, retention, layer_idx),
            None => Ok(()), // a generation comes to these positions in another pass
        }
    }
}

impl HookManager {
    /// Keeps the inputs, the outputs or both of the chosen layers; read them with
    /// [`get_captured_states`](HookManager::get_captured_states). For more choices register a [`Capture`].
    pub fn register_capture_hook(
        &self,
        layer: impl Into<Selector>,
        id: Option<&str>,
        layer_idx: Option<usize>,
        capture_input: bool,
        capture_output: bool,
    ) -> Result<String, AttachError> {
        let options =
            CaptureOptions { layer_idx, capture_input, capture_output, ..CaptureOptions::new(layer) };
        self.register_with(Capture::new(options)?, HookOptions::builtin(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hook::Site;
    use crate::mock::Mock;
    use crate::point::{Point, PointTable};
    use candle_core::{DType, Device};

    fn layer() -> HookResult<Mock> {
        let mut points = PointTable::builder();
        let input = points.point(Point::new("ln.hook_in", "batch pos d_model"))?;
        let output = points.point(Point::new("ln.hook_out", "batch pos d_model").in_block(Some(4)))?;
        points.layer("ln", input, output)?;
        points.point(Point::new("scale", "batch"))?;
        Ok(Mock::with_points(points.build()))
    }

    fn ones() -> candle_core::Result<Tensor> {
        Tensor::ones((2, 5, 3), DType::F32, &Device::Cpu)
    }

    #[test]
    fn states_say_what_they_are() -> HookResult {
        let mut mock = layer()?;
        let id = mock.hooks().register_capture_hook("ln", Some("both"), None, true, true)?;
        let only_input = mock.hooks().register_capture_hook("ln", None, Some(7), true, false)?;
        assert_eq!((id.as_str(), only_input.as_str()), ("both", "capture"));
        mock.step();
        mock.fire("ln.hook_in", &ones()?)?;
        mock.fire("ln.hook_out", &ones()?)?;
        let states = mock.hooks().get_captured_states("both")?;
        let told: Vec<_> =
            states.iter().map(|s| (s.point.as_str(), s.is_input(), s.layer_idx, s.step)).collect();
        assert_eq!(told, [("ln.hook_in", true, None, 1), ("ln", false, Some(4), 1)]);
        assert_eq!(states[0].shape(), [2, 5, 3]);
        let states = mock.hooks().get_captured_states("capture")?;
        assert_eq!((states.len(), states[0].layer_idx), (1, Some(7)));
        Ok(())
    }

    #[test]
    fn gradients_are_captured_where_the_values_are() -> HookResult {
        let mut mock = layer()?;
        let both = CaptureOptions { gradients: true, capture_input: true, ..CaptureOptions::new("ln") };
        let id = mock.attach(Capture::new(both)?)?;
        let alone = CaptureOptions { gradients: true, capture_output: false, ..CaptureOptions::new("ln") };
        let alone = mock.attach(Capture::new(alone)?)?;
        mock.backward("ln.hook_in", &ones()?, &(ones()? * 2.0)?)?;
        mock.backward("ln.hook_out", &ones()?, &(ones()? * 3.0)?)?;
        let sites = |id: &str| -> HookResult<Vec<Site>> {
            Ok(mock.hooks().get_captured_states(id)?.iter().map(|state| state.site).collect())
        };
        assert_eq!(sites(&id)?, [Site::PreForward, Site::PreGradient, Site::Forward, Site::Gradient]);
        assert_eq!(sites(&alone)?, [Site::Gradient]);
        let gradient = &mock.hooks().get_captured_states(&alone)?[0].tensor;
        assert_eq!(gradient.flatten_all()?.to_vec1::<f32>()?, [3.0; 30]);
        Ok(())
    }

    #[test]
    fn one_position_costs_one_position() -> HookResult {
        let mut mock = layer()?;
        let positions = |positions: Vec<i64>| CaptureOptions {
            positions: Some(Positions(positions)),
            ..CaptureOptions::new("ln")
        };
        let id = mock.attach(Capture::new(positions(vec![0, -1]))?)?;
        let x = Tensor::arange(0f32, 30.0, &Device::Cpu)?.reshape((2, 5, 3))?;
        mock.fire("ln", &x)?;
        let kept = mock.hooks().get_captured_states(&id)?[0].tensor.to_vec3::<f32>()?;
        assert_eq!(kept[0], [[0.0, 1.0, 2.0], [12.0, 13.0, 14.0]]);
        assert_eq!(mock.report().receipt(&id).map(|r| r.bytes_captured), Some(2 * 2 * 3 * 4));

        mock.fire("ln", &x.narrow(1, 0, 1)?)?; // both are the same one
        let nowhere = CaptureOptions { positions: Some(Positions(vec![0])), ..CaptureOptions::new("scale") };
        let error = mock.attach(Capture::new(nowhere)?).err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| text.contains("`positions` needs an axis of positions")));
        let outside = mock.attach(Capture::new(positions(vec![5]))?)?;
        mock.fire("ln", &x)?;
        let report = mock.report();
        let error = report.errors.iter().find(|error| error.hook_id == outside).map(ToString::to_string);
        assert!(error.is_some_and(|text| text.contains("position 5 does not exist: there are 5")));
        Ok(())
    }

    #[test]
    fn capturing_nothing_is_an_error() -> HookResult {
        let mock = layer()?;
        let error =
            mock.hooks().register_capture_hook("ln", None, None, false, false).err().map(|e| e.to_string());
        assert!(error.is_some_and(|text| text.contains("nothing to capture")));
        let error =
            mock.hooks().register_capture_hook("scale", None, None, true, false).err().map(|e| e.to_string());
        assert!(error.is_some_and(|text| text.contains("no layer matches `scale`")));
        Ok(())
    }
}
