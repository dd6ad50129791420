//! How autoencoders are trained.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::{Architecture, Normalize, SaeConfig};
use crate::error::SaeError;

/// What JumpReLU is penalised for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SparsityLoss {
    /// The number of active latents.
    #[default]
    Step,
    /// The hyperbolic tangent of each activation times its decoder row's norm: nearly their number.
    Tanh,
    /// The square of the distance between their number and a target.
    Quadratic,
}

/// How autoencoders are trained. Names and defaults are those of SAELens; each architecture looks at what concerns it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SaeTraining {
    /// The norm that the decoder's rows begin with; `None` leaves them as they are drawn.
    pub decoder_init_norm: Option<f64>,
    /// How much the activations cost, each times the norm of its decoder row (standard, gated).
    pub l1_coefficient: f64,
    /// The cost grows from 0 over so many steps.
    pub l1_warm_up_steps: u64,
    /// How much an active latent costs (jumprelu).
    pub l0_coefficient: f64,
    /// The cost grows from 0 over so many steps.
    pub l0_warm_up_steps: u64,
    /// What thresholds begin with (jumprelu).
    pub jumprelu_init_threshold: f64,
    /// How far around a threshold pre-activations move it (jumprelu).
    pub jumprelu_bandwidth: f64,
    /// What is counted as sparsity (jumprelu).
    pub jumprelu_sparsity_loss_mode: SparsityLoss,
    /// How steep the tangent is.
    pub jumprelu_tanh_scale: f64,
    /// Whether the pseudo-derivative goes to the encoder too.
    pub jumprelu_ste_to_input: bool,
    /// How much dead latents pay for being below their threshold (jumprelu).
    pub pre_act_loss_coefficient: Option<f64>,
    /// How many latents should be active, for the quadratic loss.
    pub target_l0: Option<f64>,
    /// How much dead latents learn from what the others miss (topk, batchtopk).
    pub aux_loss_coefficient: f64,
    /// How fast the threshold that a BatchTopK is saved with follows the smallest activations.
    pub topk_threshold_lr: f64,
    /// Keeps the norm of the decoder's rows at 1, so that activations alone are what the penalty sees.
    pub unit_norm_decoder: bool,
    /// A latent that has not fired on more than so many activations is dead.
    pub dead_after_tokens: u64,
    /// Gives dead latents a new start after every so many steps: the direction of an input that is reconstructed badly.
    pub resample_every: Option<u64>,
    /// Gradients of each autoencoder are clipped to this norm.
    pub clip_norm: Option<f64>,
    /// Metrics are published on every so many steps.
    pub metrics_every: u64,
}

impl Default for SaeTraining {
    fn default() -> Self {
        Self {
            decoder_init_norm: Some(0.1),
            l1_coefficient: 1.0,
            l1_warm_up_steps: 0,
            l0_coefficient: 1.0,
            l0_warm_up_steps: 0,
            jumprelu_init_threshold: 0.01,
            jumprelu_bandwidth: 0.05,
            jumprelu_sparsity_loss_mode: SparsityLoss::Step,
            jumprelu_tanh_scale: 4.0,
            jumprelu_ste_to_input: false,
            pre_act_loss_coefficient: None,
            target_l0: None,
            aux_loss_coefficient: 1.0,
            topk_threshold_lr: 0.01,
            unit_norm_decoder: false,
            dead_after_tokens: 4_096_000,
            resample_every: None,
            clip_norm: Some(1.0),
            metrics_every: 1,
        }
    }
}

impl SaeTraining {
    /// An error names everything that cannot be, for an autoencoder of this configuration.
    pub fn check(&self, config: &SaeConfig) -> Result<(), SaeError> {
        let mut problems = config.problems();
        let mut check = |bad: bool, problem: &str| {
            if bad {
                problems.add(|| problem.to_string());
            }
        };
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let not_negative = |value: f64| value.is_finite() && value >= 0.0;
        check(
            self.decoder_init_norm.is_some_and(|norm| !positive(norm)),
            "`decoder_init_norm` must be above 0",
        );
        check(!not_negative(self.l1_coefficient), "`l1_coefficient` must be 0 or more");
        check(!not_negative(self.l0_coefficient), "`l0_coefficient` must be 0 or more");
        check(!not_negative(self.jumprelu_init_threshold), "`jumprelu_init_threshold` must be 0 or more");
        check(!positive(self.jumprelu_bandwidth), "`jumprelu_bandwidth` must be above 0");
        check(!not_negative(self.aux_loss_coefficient), "`aux_loss_coefficient` must be 0 or more");
        check(!(0.0..=1.0).contains(&self.topk_threshold_lr), "`topk_threshold_lr` must be between 0 and 1");
        check(self.clip_norm.is_some_and(|norm| !positive(norm)), "`clip_norm` must be above 0");
        check(self.metrics_every == 0, "`metrics_every` must be at least 1");
        check(self.resample_every == Some(0), "`resample_every` must be at least 1");
        let quadratic = self.jumprelu_sparsity_loss_mode == SparsityLoss::Quadratic;
        check(
            quadratic
                && !self.target_l0.is_some_and(|target| positive(target) && target <= config.d_sae as f64),
            "the quadratic sparsity loss needs a `target_l0` above 0 and at most the number of latents",
        );
        let per_input =
            matches!(config.normalize_activations, Normalize::ConstantNormRescale | Normalize::LayerNorm);
        check(
            per_input && self.aux_loss_coefficient > 0.0 && is_top_k(config.architecture),
            "dead latents of a top-k autoencoder cannot learn from what is missed when every input is normalised by itself: \
             set `aux_loss_coefficient` to 0, or normalise otherwise",
        );
        if problems.is_empty() { Ok(()) } else { Err(SaeError::bad(problems.to_string())) }
    }

    /// A cost at this step.
    pub(crate) fn warmed_up(coefficient: f64, warm_up_steps: u64, step: u64) -> f64 {
        match warm_up_steps {
            0 => coefficient,
            steps => coefficient * (step as f64 / steps as f64).min(1.0),
        }
    }

    /// What is worth knowing about how an autoencoder was trained, under SAELens' names.
    pub(crate) fn details(&self, config: &SaeConfig) -> Map<String, Value> {
        let all = serde_json::to_value(self).unwrap_or_default();
        let names: &[&str] = match config.architecture {
            Architecture::Standard | Architecture::Gated => &["l1_coefficient", "l1_warm_up_steps"],
            Architecture::TopK { .. } => &["aux_loss_coefficient"],
            Architecture::BatchTopK { .. } => &["aux_loss_coefficient", "topk_threshold_lr"],
            Architecture::JumpRelu => &[
                "jumprelu_init_threshold",
                "jumprelu_bandwidth",
                "jumprelu_sparsity_loss_mode",
                "l0_coefficient",
                "l0_warm_up_steps",
                "pre_act_loss_coefficient",
                "jumprelu_tanh_scale",
                "jumprelu_ste_to_input",
                "target_l0",
            ],
        };
        let mut details: Map<String, Value> = ["decoder_init_norm"]
            .iter()
            .chain(names)
            .map(|name| (name.to_string(), all[name].clone()))
            .collect();
        if let Architecture::BatchTopK { k, rescale_acts_by_decoder_norm } = config.architecture {
            details.insert("k".to_string(), k.into());
            details.insert("rescale_acts_by_decoder_norm".to_string(), rescale_acts_by_decoder_norm.into());
        }
        details
    }
}

pub(crate) fn is_top_k(architecture: Architecture) -> bool {
    matches!(architecture, Architecture::TopK { .. } | Architecture::BatchTopK { .. })
}
