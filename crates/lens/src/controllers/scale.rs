//! Multiplying activations.

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{At, AttachError, Chosen, Cx, HookResult, Selector};

use super::{Controller, Edit, Effect, Scene};

/// Where a [`Scale`] works, and by how much.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ScaleOptions {
    /// Where, and how much of it.
    #[serde(flatten)]
    pub scene: Scene,
    /// What activations are multiplied by.
    #[schemars(extend("examples" = [2.0]))]
    pub factor: f64,
}

/// Multiplies activations.
pub struct Scale {
    factor: f64,
}

impl Effect for Scale {
    const KIND: &'static str = "scale";

    fn apply(&mut self, _: &At, x: &Tensor, _: &mut Chosen, _: &mut Cx) -> HookResult<Edit> {
        Ok(Edit::Put((x * self.factor)?))
    }
}

impl Scale {
    /// From the options of a configuration.
    pub fn from_options(options: ScaleOptions) -> Result<Controller<Self>, AttachError> {
        if !options.factor.is_finite() {
            let problems = vec![format!("`factor` is {}, it must be a finite number", options.factor)];
            return Err(AttachError::BadOptions { kind: Self::KIND.to_string(), problems });
        }
        Controller::new(options.scene, Self { factor: options.factor })
    }
}

/// Multiplies the activations at these points.
pub fn scale(points: impl Into<Selector>, factor: f64) -> Controller<Scale> {
    Controller::at(points, Scale { factor })
}
