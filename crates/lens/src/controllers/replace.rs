//! Replacing activations by a value or a tensor.

use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{At, AttachError, Chosen, Cx, HookResult, Selector};

use super::tensor_file::{check_shape, like, problem, read_tensor};
use super::{Controller, Edit, Effect, Scene};

/// Where a [`Replace`] works, and what it puts in.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReplaceOptions {
    /// Where, and how much of it.
    #[serde(flatten)]
    pub scene: Scene,
    /// The value that is put in.
    #[serde(default)]
    #[schemars(extend("examples" = [0.5]))]
    pub value: Option<f64>,
    /// In place of a value: a safetensors file with a tensor that fits, or broadcasts.
    #[serde(default)]
    #[schemars(extend("format" = "path"))]
    pub tensor: Option<PathBuf>,
    /// The name of the tensor in the file.
    #[serde(default = "tensor")]
    pub key: String,
}

fn tensor() -> String {
    "tensor".to_string()
}

/// Replaces activations by a value or a tensor.
pub struct Replace {
    by: Tensor,
}

impl Effect for Replace {
    const KIND: &'static str = "replace";

    fn apply(&mut self, at: &At, x: &Tensor, _: &mut Chosen, _: &mut Cx) -> HookResult<Edit> {
        check_shape(&self.by, x, at.name())?;
        Ok(Edit::Put(like(&self.by, x)?))
    }
}

impl Replace {
    /// From the options of a configuration.
    pub fn from_options(options: ReplaceOptions) -> Result<Controller<Self>, AttachError> {
        let bad = |text: &str| AttachError::BadOptions {
            kind: Self::KIND.to_string(),
            problems: vec![text.to_string()],
        };
        let by = match (options.value, &options.tensor) {
            (Some(value), None) if value.is_finite() => {
                Tensor::full(value, (), &Device::Cpu).and_then(|value| value.to_dtype(DType::F32))
            }
            (Some(_), None) => return Err(bad("`value` must be a finite number")),
            (None, Some(path)) => {
                Ok(read_tensor(path, &options.key).map_err(|error| problem(Self::KIND, error))?)
            }
            _ => return Err(bad("give one of `value` and `tensor`")),
        };
        Controller::new(options.scene, Self { by: by.map_err(|error| bad(&error.to_string()))? })
    }
}

/// Replaces the activations at these points by a tensor that fits, or broadcasts.
pub fn replace(points: impl Into<Selector>, by: Tensor) -> Controller<Replace> {
    Controller::at(points, Replace { by })
}
