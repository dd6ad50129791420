//! Replacing activations by their mean.

use std::path::PathBuf;

use candle_core::{DType, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{At, AttachError, Chosen, Cx, HookResult, Mode, Refused, Selector, without_padding};

use super::tensor_file::{check_shape, like, problem, read_tensor};
use super::{Controller, Edit, Effect, Scene};

/// Where a [`MeanAblate`] works, and which mean it puts in.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MeanAblateOptions {
    /// Where, and how much of it.
    #[serde(flatten)]
    pub scene: Scene,
    /// A safetensors file with the mean; without one it is the mean over all tokens of the batch, padding left out.
    #[serde(default)]
    #[schemars(extend("format" = "path"))]
    pub mean: Option<PathBuf>,
    /// The name of the mean in the file.
    #[serde(default = "mean")]
    pub key: String,
}

fn mean() -> String {
    "mean".to_string()
}

/// Replaces activations by their mean: a stored one, or that of the batch.
pub struct MeanAblate {
    mean: Option<Tensor>,
}

impl Effect for MeanAblate {
    const KIND: &'static str = "mean_ablate";

    fn apply(&mut self, at: &At, x: &Tensor, _: &mut Chosen, cx: &mut Cx) -> HookResult<Edit> {
        if let Some(mean) = &self.mean {
            check_shape(mean, x, at.name())?;
            return Ok(Edit::Put(like(mean, x)?));
        }
        if cx.keeps_cache() || cx.mode() == Mode::Decode && cx.first_position() > 0 {
            return Err(Box::new(Refused(format!(
                "the mean over the text at `{}` is another one after every new token, and what was computed with the old one is in the \
                 cache: give a stored `mean`, or generate without the cache (--no-cache)",
                at.name()
            ))));
        }
        let has_positions = at.point().axes.split_whitespace().nth(1) == Some("pos");
        if !has_positions {
            return Err(Box::new(Refused(format!(
                "`{}` has no axis of tokens to take the mean over: its axes are `{}`",
                at.name(),
                at.point().axes
            ))));
        }
        // `[tokens, ...]`, whether there was padding or not.
        let real = without_padding(at, &x.detach(), cx)?;
        let real = if real.rank() == x.rank() { real.flatten(0, 1)? } else { real };
        // A coarse type would stop adding long before the end.
        let real = if real.dtype() == DType::F64 { real } else { real.to_dtype(DType::F32)? };
        let count = real.dim(0)? as f64;
        Ok(Edit::Put(like(&(real.sum(0)? / count)?, x)?))
    }
}

impl MeanAblate {
    /// From the options of a configuration.
    pub fn from_options(options: MeanAblateOptions) -> Result<Controller<Self>, AttachError> {
        let read =
            |path: &PathBuf| read_tensor(path, &options.key).map_err(|error| problem(Self::KIND, error));
        Controller::new(options.scene, Self { mean: options.mean.as_ref().map(read).transpose()? })
    }
}

/// Replaces the activations at these points by their mean over the tokens of the batch, or by a stored one.
pub fn mean_ablate(points: impl Into<Selector>, mean: Option<Tensor>) -> Controller<MeanAblate> {
    Controller::at(points, MeanAblate { mean })
}
