//! Setting activations to zero.

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{At, AttachError, Chosen, Cx, HookResult, Selector};

use super::{Controller, Edit, Effect, Scene};

/// Where a [`ZeroAblate`] works.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ZeroAblateOptions {
    /// Where, and how much of it.
    #[serde(flatten)]
    pub scene: Scene,
}

/// Sets activations to zero.
pub struct ZeroAblate;

impl Effect for ZeroAblate {
    const KIND: &'static str = "zero_ablate";

    fn apply(&mut self, _: &At, x: &Tensor, _: &mut Chosen, _: &mut Cx) -> HookResult<Edit> {
        Ok(Edit::Put(x.zeros_like()?))
    }
}

impl ZeroAblate {
    /// From the options of a configuration.
    pub fn from_options(options: ZeroAblateOptions) -> Result<Controller<Self>, AttachError> {
        Controller::new(options.scene, Self)
    }
}

/// Sets the activations at these points to zero.
pub fn zero_ablate(points: impl Into<Selector>) -> Controller<ZeroAblate> {
    Controller::at(points, ZeroAblate)
}
