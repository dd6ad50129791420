//! What a sparse autoencoder looks like.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tenterhook_models::error::Problems;

/// Which latents are active, and how much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Architecture {
    /// ReLU; trained with an L1 penalty.
    Standard,
    /// The `k` largest pre-activations of every input.
    TopK {
        /// How many.
        k: usize,
        /// Compares pre-activations times the norm of their latent's decoder row, as if all rows had norm 1.
        rescale_acts_by_decoder_norm: bool,
    },
    /// The largest pre-activations of a batch, `k` per input on average. For training: it is saved as JumpReLU.
    BatchTopK {
        /// How many on average.
        k: f64,
        /// As in [`TopK`](Self::TopK).
        rescale_acts_by_decoder_norm: bool,
    },
    /// Zero up to a threshold of every latent's own.
    JumpRelu,
    /// One path decides which latents are active, another one how much.
    Gated,
}

impl Architecture {
    /// The name in `cfg.json` and on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::TopK { .. } => "topk",
            Self::BatchTopK { .. } => "batchtopk",
            Self::JumpRelu => "jumprelu",
            Self::Gated => "gated",
        }
    }

    /// Whether pre-activations are multiplied by the norms of the decoder's rows.
    pub(crate) fn rescales(&self) -> bool {
        match self {
            Self::TopK { rescale_acts_by_decoder_norm, .. }
            | Self::BatchTopK { rescale_acts_by_decoder_norm, .. } => *rescale_acts_by_decoder_norm,
            _ => false,
        }
    }
}

/// What is done to activations before they are encoded, and undone after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalize {
    /// Nothing.
    #[default]
    None,
    /// One factor for all, so that their mean norm is the root of their width. The trainer finds it and folds it into the weights when it
    /// saves; what still says so in a file was saved without, and is used as it is.
    ExpectedAverageOnlyIn,
    /// A factor for each, so that its norm is the root of its width.
    ConstantNormRescale,
    /// Each less its mean, divided by its standard deviation.
    LayerNorm,
}

impl Normalize {
    /// The name in `cfg.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ExpectedAverageOnlyIn => "expected_average_only_in",
            Self::ConstantNormRescale => "constant_norm_rescale",
            Self::LayerNorm => "layer_norm",
        }
    }
}

/// How activations with a head axis are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reshape {
    /// As they are.
    #[default]
    None,
    /// `[.., heads, d_head]` as one axis of all heads.
    HookZ,
}

impl Reshape {
    /// The name in `cfg.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::HookZ => "hook_z",
        }
    }
}

/// What a sparse autoencoder looks like, as SAELens' `cfg.json` says it.
#[derive(Clone, Debug, PartialEq)]
pub struct SaeConfig {
    /// The width of the activations.
    pub d_in: usize,
    /// The number of latents.
    pub d_sae: usize,
    /// Which latents are active.
    pub architecture: Architecture,
    /// Whether the decoder's bias is subtracted from the input.
    pub apply_b_dec_to_input: bool,
    /// What is done to the input first.
    pub normalize_activations: Normalize,
    /// How a head axis is taken.
    pub reshape_activations: Reshape,
    /// What it is for and where it comes from: `hook_name`, `model_name` and whatever else was said of it.
    pub metadata: Map<String, Value>,
}

impl SaeConfig {
    /// An autoencoder of this size, with SAELens' defaults for the rest.
    pub fn new(d_in: usize, d_sae: usize, architecture: Architecture) -> Self {
        Self {
            d_in,
            d_sae,
            architecture,
            apply_b_dec_to_input: true,
            normalize_activations: Normalize::None,
            reshape_activations: Reshape::None,
            metadata: Map::new(),
        }
    }

    /// The same with the name of the point that it is for.
    pub fn at_point(mut self, hook_name: &str) -> Self {
        self.metadata.insert("hook_name".to_string(), hook_name.into());
        self
    }

    /// The point that it is for, if it says so.
    pub fn hook_name(&self) -> Option<&str> {
        self.metadata.get("hook_name").and_then(Value::as_str)
    }

    /// The head that it is for, where it is for one alone.
    pub fn hook_head_index(&self) -> Option<i64> {
        self.metadata.get("hook_head_index").and_then(Value::as_i64)
    }

    /// What cannot be.
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        let mut check = |bad: bool, problem: String| {
            if bad {
                problems.add(|| problem);
            }
        };
        let (d_in, d_sae) = (self.d_in, self.d_sae);
        check(d_in == 0, "`d_in` is 0, it must be at least 1".to_string());
        check(d_sae == 0, "`d_sae` is 0, it must be at least 1".to_string());
        check(
            d_in.checked_mul(d_sae)
                .and_then(|size| size.checked_mul(8))
                .is_none_or(|size| size > isize::MAX as usize),
            format!("`d_in` {d_in} times `d_sae` {d_sae} is more than any memory holds"),
        );
        match self.architecture {
            Architecture::TopK { k, .. } => {
                check(k == 0 || k > d_sae, format!("`k` is {k}, it must be from 1 to the {d_sae} latents"));
            }
            Architecture::BatchTopK { k, .. } => {
                check(
                    !(k > 0.0 && k <= d_sae as f64),
                    format!("`k` is {k}, it must be above 0 and at most the {d_sae} latents"),
                );
            }
            _ => {}
        }
        check(
            self.reshape_activations == Reshape::HookZ
                && self.hook_name().is_some_and(|name| !name.ends_with("_z")),
            format!(
                "`reshape_activations` is hook_z, and the hook is {}, which has no heads",
                self.hook_name().unwrap_or_default()
            ),
        );
        problems
    }
}
