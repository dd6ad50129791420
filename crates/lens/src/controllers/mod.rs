//! Hooks that change what a model computes, each usable from the library and, by its kind, from a TOML file.
//!
//! All of them are told where (`points`), of what (`positions`, `heads`, `neurons`) and how much (`strength`: 0 changes nothing, 1 does it
//! in full). They do the same while a model trains, is evaluated and generates, with or without a cache.
//!
//! ```
//! # use candle_core::{DType, Device};
//! # use tenterhook_models::{Transformer, config::TransformerConfig};
//! use tenterhook_lens::{LanguageModel, controllers};
//!
//! # let lm = LanguageModel::new(Transformer::init(TransformerConfig::gpt2(50, 16, 8, 2, 2), 42, DType::F32, &Device::Cpu)?)?;
//! let ids = lm.batch_of(&[1, 2, 3])?;
//! let no_head_1 = controllers::zero_ablate("blocks.0.attn.hook_z").heads([1]);
//! let (logits, report) = lm.run_with_hooks(&ids, vec![Box::new(no_head_1)])?;
//! assert_eq!(report.hooks[0].receipt.elements_changed, 3 * 4); // three tokens, four numbers of the head
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod knockout;
mod mean_ablate;
mod noise;
mod patch;
mod replace;
mod scale;
mod steer;
mod tensor_file;
mod zero_ablate;

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{
    At, AttachError, Chosen, Cx, Hook, HookRegistry, HookResult, Part, Point, Positions, Selector, Want,
};

pub use knockout::{Edge, Knockout, KnockoutOptions, knockout};
pub use mean_ablate::{MeanAblate, MeanAblateOptions, mean_ablate};
pub use noise::{Noise, NoiseOptions, noise};
pub use patch::{Patch, PatchOptions, patch};
pub use replace::{Replace, ReplaceOptions, replace};
pub use scale::{Scale, ScaleOptions, scale};
pub use steer::{Steer, SteerOptions, steer};
use tensor_file::like;
pub use tensor_file::{read_tensor, save_tensor};
pub use zero_ablate::{ZeroAblate, ZeroAblateOptions, zero_ablate};

/// Where a controller works, on which part, and how much of it is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Scene {
    /// The points or layers.
    #[schemars(extend("examples" = ["blocks.0.hook_resid_post"]))]
    pub points: Selector,
    /// Which part of the tensors.
    #[serde(flatten)]
    pub part: Part,
    /// How much of it is done: 0 changes nothing, 1 does it in full.
    #[serde(default = "in_full")]
    pub strength: f64,
}

fn in_full() -> f64 {
    1.0
}

impl Scene {
    /// All of the tensors at these points, in full.
    pub fn new(points: impl Into<Selector>) -> Self {
        Self { points: points.into(), part: Part::default(), strength: in_full() }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = self.part.problems();
        if !self.strength.is_finite() {
            problems.push(format!("`strength` is {}, it must be a finite number", self.strength));
        }
        problems
    }
}

/// What a controller does to a tensor.
pub trait Effect: Send + 'static {
    /// The kind's name.
    const KIND: &'static str;

    /// What it does in full strength. An effect that reaches only some of the tensor narrows `chosen`.
    fn apply(&mut self, at: &At, x: &Tensor, chosen: &mut Chosen, cx: &mut Cx) -> HookResult<Edit>;
}

/// What an effect does in full strength; shapes broadcast to that of the tensor.
pub enum Edit {
    /// This takes the tensor's place.
    Put(Tensor),
    /// This is added to it. The strength goes to what is added: in a coarse type the sum would be rounded before it is multiplied.
    Add(Tensor),
}

impl Edit {
    /// `x` with as much of the edit as `strength` says. All of it is exactly that.
    fn of_strength(self, x: &Tensor, strength: f64) -> candle_core::Result<Tensor> {
        match self {
            Edit::Put(new) if strength == 1.0 => Ok(new),
            Edit::Put(new) => x + (new.broadcast_sub(x)? * strength)?,
            Edit::Add(more) if strength == 1.0 => x.broadcast_add(&like(&more, x)?),
            Edit::Add(more) => x.broadcast_add(&like(&(more * strength)?, x)?),
        }
    }
}

/// A hook that changes tensors: an effect and where it is wanted.
pub struct Controller<E> {
    scene: Scene,
    effect: E,
}

impl<E: Effect> Controller<E> {
    fn new(scene: Scene, effect: E) -> Result<Self, AttachError> {
        let problems = scene.problems();
        match problems.is_empty() {
            true => Ok(Self { scene, effect }),
            false => Err(AttachError::BadOptions { kind: E::KIND.to_string(), problems }),
        }
    }

    fn at(points: impl Into<Selector>, effect: E) -> Self {
        Self { scene: Scene::new(points), effect }
    }

    /// Only at these positions of the text; negative ones count from its end.
    pub fn positions(mut self, positions: impl Into<Positions>) -> Self {
        self.scene.part.positions = Some(positions.into());
        self
    }

    /// Only in these heads.
    pub fn heads(mut self, heads: impl Into<Vec<usize>>) -> Self {
        self.scene.part.heads = Some(heads.into());
        self
    }

    /// Only in these entries of the last axis.
    pub fn neurons(mut self, neurons: impl Into<Vec<usize>>) -> Self {
        self.scene.part.neurons = Some(neurons.into());
        self
    }

    /// How much of it is done.
    pub fn strength(mut self, strength: f64) -> Self {
        self.scene.strength = strength;
        self
    }
}

impl<E: Effect> Hook for Controller<E> {
    fn kind(&self) -> &str {
        E::KIND
    }

    fn wants(&self) -> Vec<Want> {
        vec![Want::edit(self.scene.points.clone())]
    }

    fn fits(&self, point: &Point) -> HookResult {
        // What was put together in code has not been looked at yet.
        match self.scene.problems().into_iter().next() {
            Some(problem) => Err(problem.into()),
            None => self.scene.part.fits(point),
        }
    }

    fn edit(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult<Option<Tensor>> {
        let mut chosen = self.scene.part.choose(at, x, cx)?;
        if matches!(chosen, Chosen::Nothing) {
            return Ok(None);
        }
        let edit = self.effect.apply(at, x, &mut chosen, cx)?;
        chosen.put(x, &edit.of_strength(x, self.scene.strength)?)
    }
}

/// Adds every kind of this crate to a registry. A name that is taken is an error.
pub fn register_kinds(registry: &mut HookRegistry) -> Result<(), AttachError> {
    let r = registry;
    add(r, Knockout::KIND, "cuts edges of attention: who attends to whom", Knockout::new)?;
    add(r, MeanAblate::KIND, "replaces activations by their mean", MeanAblate::from_options)?;
    add(r, Noise::KIND, "adds random noise", Noise::from_options)?;
    add(r, Patch::KIND, "puts in activations of a stored run", Patch::from_options)?;
    add(r, Replace::KIND, "replaces activations by a value or a stored tensor", Replace::from_options)?;
    add(r, Scale::KIND, "multiplies activations", Scale::from_options)?;
    add(r, Steer::KIND, "adds a vector", Steer::from_options)?;
    add(r, ZeroAblate::KIND, "sets activations to zero", ZeroAblate::from_options)
}

fn add<Options: DeserializeOwned + JsonSchema + 'static, H: Hook>(
    registry: &mut HookRegistry,
    kind: &str,
    doc: &str,
    new: fn(Options) -> Result<H, AttachError>,
) -> Result<(), AttachError> {
    registry.register_builtin::<Options>(kind, doc, move |options| Ok(Box::new(new(options)?)))
}
