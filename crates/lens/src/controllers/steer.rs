//! Adding a vector.

use std::path::PathBuf;

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{At, AttachError, Chosen, Cx, HookResult, Selector};

use super::tensor_file::{check_shape, problem, read_tensor};
use super::{Controller, Edit, Effect, Scene};

/// Where a [`Steer`] works, and which vector it adds.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SteerOptions {
    /// Where, and how often the vector is added.
    #[serde(flatten)]
    pub scene: Scene,
    /// A safetensors file with the vector.
    #[schemars(extend("format" = "path", "examples" = ["direction.safetensors"]))]
    pub vector: PathBuf,
    /// Its name in the file.
    #[serde(default = "vector")]
    pub key: String,
}

fn vector() -> String {
    "vector".to_string()
}

/// Adds a vector, `strength` times.
pub struct Steer {
    vector: Tensor,
}

impl Effect for Steer {
    const KIND: &'static str = "steer";

    fn apply(&mut self, at: &At, x: &Tensor, _: &mut Chosen, _: &mut Cx) -> HookResult<Edit> {
        check_shape(&self.vector, x, at.name())?;
        Ok(Edit::Add(self.vector.clone()))
    }
}

impl Steer {
    /// From the options of a configuration.
    pub fn from_options(options: SteerOptions) -> Result<Controller<Self>, AttachError> {
        let vector = read_tensor(&options.vector, &options.key).map_err(|e| problem(Self::KIND, e))?;
        Controller::new(options.scene, Self { vector })
    }
}

/// Adds a vector to the activations at these points; with [`strength`](Controller::strength), more or less of it.
pub fn steer(points: impl Into<Selector>, vector: Tensor) -> Controller<Steer> {
    Controller::at(points, Steer { vector })
}
