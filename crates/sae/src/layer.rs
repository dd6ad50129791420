//! An autoencoder's weights and points, and what it computes.

use std::sync::Arc;

use candle_core::{D, Result, Tensor};
use tenterhook_hooks::{Pass, Point, PointId};
use tenterhook_nn::ops::sparse::{
    Activity, AutoencodeSpec, AutoencoderWeights, DecodeSpec, EncodeGrads, JumpSpec, Keep, TopKSpec,
    activity, autoencode, decode, encode, jump_relu, row_norms, top_k,
};
use tenterhook_nn::ops::{Activation, activate};
use tenterhook_nn::{Init, Param, Scope};

use crate::config::{Architecture, Normalize, Reshape, SaeConfig};
use crate::normalize::Undo;

/// The weights and points of one autoencoder, under the names that SAELens gives them.
///
/// Several of them can be parts of one model, each under a path of its own.
#[derive(Clone, Debug)]
pub struct SaeLayer {
    config: SaeConfig,
    /// How thresholds are trained.
    pub(crate) jump: JumpSpec,
    pub(crate) w_enc: Param,
    pub(crate) w_dec: Param,
    pub(crate) b_dec: Param,
    pub(crate) bias: Bias,
    points: Points,
}

/// What else the encoder has, by architecture.
#[derive(Clone, Debug)]
pub(crate) enum Bias {
    /// `b_enc`.
    Plain(Param),
    /// `b_enc` and `threshold`.
    Jump { b_enc: Param, threshold: Param },
    /// `b_gate`, `b_mag` and `r_mag`.
    Gated { b_gate: Param, b_mag: Param, r_mag: Param },
}

#[derive(Clone, Copy, Debug)]
struct Points {
    input: PointId,
    acts_pre: PointId,
    acts_post: PointId,
    recons: PointId,
    error: PointId,
    output: PointId,
}

/// The latents of some activations, and what is needed to decode them.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// The activations of the latents, `[.., d_sae]`.
    pub acts: Tensor,
    /// Before the activation function; for `topk` before any rescaling, for `gated` the magnitudes.
    pub(crate) pre: Tensor,
    /// For `gated`: before it is decided which latents are active.
    pub(crate) gate: Option<Tensor>,
    pub(crate) undo: Undo,
    /// The shape of what was encoded.
    shape: Vec<usize>,
}

/// What a step of training came to.
pub(crate) struct Step {
    pub(crate) output: Tensor,
    pub(crate) activity: Activity,
    /// What dead latents make of the input.
    pub(crate) also: Option<Tensor>,
    /// The latents, unless nobody has to know them.
    pub(crate) encoded: Option<Encoded>,
}

impl Encoded {
    /// The same with other activations.
    pub fn with_acts(&self, acts: Tensor) -> Self {
        Self { acts, ..self.clone() }
    }
}

impl SaeLayer {
    /// Declares weights and points in this scope.
    pub fn new(scope: &Scope, config: SaeConfig) -> Result<Self> {
        let problems = config.problems();
        if !problems.is_empty() {
            candle_core::bail!("{problems}");
        }
        let (d_in, d_sae) = (config.d_in, config.d_sae);
        let param = |name: &str, shape: &[usize]| scope.param(name, shape, Init::Zeros);
        let bias = match config.architecture {
            Architecture::Standard | Architecture::TopK { .. } | Architecture::BatchTopK { .. } => {
                Bias::Plain(param("b_enc", &[d_sae])?)
            }
            Architecture::JumpRelu => {
                Bias::Jump { b_enc: param("b_enc", &[d_sae])?, threshold: param("threshold", &[d_sae])? }
            }
            Architecture::Gated => Bias::Gated {
                b_gate: param("b_gate", &[d_sae])?,
                b_mag: param("b_mag", &[d_sae])?,
                r_mag: param("r_mag", &[d_sae])?,
            },
        };
        let point = |name: &str, axes: &str| {
            let path = scope.pp(name);
            scope.point(Point::new(path.path(), axes))
        };
        let points = Points {
            input: point("hook_sae_input", "token d_in")?,
            acts_pre: point("hook_sae_acts_pre", "token d_sae")?,
            acts_post: point("hook_sae_acts_post", "token d_sae")?,
            recons: point("hook_sae_recons", "token d_in")?,
            error: point("hook_sae_error", "token d_in")?,
            output: point("hook_sae_output", "token d_in")?,
        };
        Ok(Self {
            w_enc: param("W_enc", &[d_in, d_sae])?,
            w_dec: param("W_dec", &[d_sae, d_in])?,
            b_dec: param("b_dec", &[d_in])?,
            jump: JumpSpec { bandwidth: 0.05, to_input: false },
            config,
            bias,
            points,
        })
    }

    /// What it looks like.
    pub fn config(&self) -> &SaeConfig {
        &self.config
    }

    pub(crate) fn config_mut(&mut self) -> &mut SaeConfig {
        &mut self.config
    }

    /// The activations with one axis for all of their elements; where there is a head axis it is folded in.
    fn flat(&self, x: &Tensor) -> Result<Tensor> {
        let width = x.dim(D::Minus1)?;
        let folded = match self.config.reshape_activations {
            Reshape::HookZ if x.rank() > 1 && width != self.config.d_in => x.flatten_from(x.rank() - 2)?,
            _ => x.clone(),
        };
        if folded.dim(D::Minus1)? != self.config.d_in {
            candle_core::bail!(
                "activations of shape {:?} for an autoencoder of width {}",
                x.dims(),
                self.config.d_in
            );
        }
        folded.to_dtype(self.w_dec.value().dtype())
    }

    /// The latents of activations `[.., d_in]`, or `[.., heads, d_head]` where the configuration says so.
    pub fn encode(&self, x: &Tensor, pass: &Pass) -> Result<Encoded> {
        self.encode_input(&self.input(x, pass)?, x.dims(), pass)
    }

    fn input(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        pass.tap_shared(self.points.input, None, self.flat(x)?)
    }

    fn encode_input(&self, input: &Tensor, shape: &[usize], pass: &Pass) -> Result<Encoded> {
        let (input, undo) = self.config.normalize_activations.apply(input)?;
        let (pre, gate) = self.pre_activations(&input, pass)?;
        let pre = pass.tap(self.points.acts_pre, pre)?;
        let acts = self.activate(&pre, gate.as_ref(), pass)?;
        let acts = pass.tap(self.points.acts_post, acts)?;
        Ok(Encoded { acts, pre, gate, undo, shape: shape.to_vec() })
    }

    /// Before the activation function: the pre-activations, and for `gated` what decides on top of them.
    fn pre_activations(&self, input: &Tensor, pass: &Pass) -> Result<(Tensor, Option<Tensor>)> {
        let center = self.config.apply_b_dec_to_input.then(|| self.b_dec.at(pass));
        let grads = EncodeGrads { weight: self.w_enc.buffer(pass) };
        let product = |bias: Option<&Tensor>| encode(input, self.w_enc.at(pass), bias, center, &grads);
        match &self.bias {
            Bias::Plain(b_enc) | Bias::Jump { b_enc, .. } => Ok((product(Some(b_enc.at(pass)))?, None)),
            Bias::Gated { b_gate, b_mag, r_mag } => {
                let shared = product(None)?;
                let gate = shared.broadcast_add(b_gate.at(pass))?;
                let magnitude =
                    shared.broadcast_mul(&r_mag.at(pass).exp()?)?.broadcast_add(b_mag.at(pass))?;
                Ok((magnitude, Some(gate)))
            }
        }
    }

    fn activate(&self, pre: &Tensor, gate: Option<&Tensor>, pass: &Pass) -> Result<Tensor> {
        match (&self.bias, self.config.architecture) {
            (_, Architecture::TopK { k, .. }) => top_k(pre, &self.top_k_spec(Keep::PerRow(k), pass)?),
            (_, Architecture::BatchTopK { k, .. }) => top_k(pre, &self.top_k_spec(Keep::PerBatch(k), pass)?),
            (Bias::Jump { threshold, .. }, _) if pass.tracks_parameters() => {
                jump_relu(pre, threshold.at(pass), self.jump)
            }
            // A threshold below 0, which training never leaves, would let negative activations through.
            (Bias::Jump { threshold, .. }, _) => {
                jump_relu(&activate(pre, Activation::Relu)?, threshold.at(pass), self.jump)
            }
            _ => {
                let acts = activate(pre, Activation::Relu)?;
                match gate {
                    None => Ok(acts),
                    Some(gate) => acts * gate.detach().gt(0.0)?.to_dtype(pre.dtype())?,
                }
            }
        }
    }

    pub(crate) fn top_k_spec(&self, keep: Keep, pass: &Pass) -> Result<TopKSpec> {
        let scale = self.decoder_norms(pass)?;
        Ok(TopKSpec { scale, ..TopKSpec::new(keep) })
    }

    /// The norms that activations carry as a factor, where the architecture has that.
    pub(crate) fn decoder_norms(&self, pass: &Pass) -> Result<Option<Tensor>> {
        let rescales = self.config.architecture.rescales();
        rescales.then(|| row_norms(&self.w_dec.at(pass).detach())).transpose()
    }

    /// Activations of latents times the decoder, as encoded activations are: without undoing the normalisation.
    pub(crate) fn recons(&self, acts: &Tensor, pass: &Pass, with_bias: bool) -> Result<Tensor> {
        let listens = pass.listens(self.points.acts_post);
        let intervened = listens.edited() || listens.gradient_edited();
        let trains_threshold = matches!(self.bias, Bias::Jump { .. }) && pass.tracks_parameters();
        let mut spec = DecodeSpec {
            divide_by: self.decoder_norms(pass)?,
            active_only: !trains_threshold && !intervened && !listens.gradient_observed(),
            weight_grad: self.w_dec.buffer(pass),
        };
        // Unless a hook changed the activations, the norms cancel out, and so do their gradients.
        let divided = match spec.divide_by.is_some() && intervened && pass.tracks_parameters() {
            true => {
                spec.divide_by = None;
                acts.broadcast_mul(&row_norms(self.w_dec.at(pass))?.recip()?)?
            }
            false => acts.clone(),
        };
        let bias = with_bias.then(|| self.b_dec.at(pass));
        decode(&divided, self.w_dec.at(pass), bias, &spec)
    }

    /// The activations that these latents stand for, in the shape of those that were encoded.
    pub fn decode(&self, encoded: &Encoded, pass: &Pass) -> Result<Tensor> {
        let recons = self.recons(&encoded.acts, pass, true)?;
        let recons = pass.tap(self.points.recons, recons)?;
        encoded.undo.apply(recons)?.reshape(encoded.shape.as_slice())
    }

    /// Encodes and decodes.
    pub fn forward(&self, x: &Tensor, pass: &Pass) -> Result<(Encoded, Tensor)> {
        let encoded = self.encode(x, pass)?;
        let output = self.decode(&encoded, pass)?;
        let output = self.output(x, output, pass)?;
        Ok((encoded, output))
    }

    fn output(&self, x: &Tensor, output: Tensor, pass: &Pass) -> Result<Tensor> {
        if pass.armed(self.points.error) {
            pass.tap(self.points.error, (x.detach() - output.detach())?)?;
        }
        pass.tap_shared(self.points.output, None, output)
    }

    /// The same for a step of training, in one op where the architecture allows it and nobody looks at the latents. The bits are the same
    /// either way. `dead` are latents that a top-k autoencoder decodes once more by themselves, so many of them.
    pub(crate) fn step(
        &self,
        x: &Tensor,
        dead: Option<(Arc<Vec<bool>>, usize)>,
        pass: &Pass,
    ) -> Result<Step> {
        let input = self.input(x, pass)?;
        let Points { acts_pre, acts_post, recons, .. } = self.points;
        let alone = !pass.armed(acts_pre) && !pass.armed(acts_post) && pass.tracks_parameters();
        let plain =
            matches!(self.config.normalize_activations, Normalize::None | Normalize::ExpectedAverageOnlyIn);
        if let (Architecture::TopK { k, .. }, Bias::Plain(b_enc), true) =
            (self.config.architecture, &self.bias, alone && plain)
        {
            let (encoder_grad, decoder_grad) = (self.w_enc.buffer(pass), self.w_dec.buffer(pass));
            let weights = AutoencoderWeights {
                w_enc: self.w_enc.at(pass),
                b_enc: b_enc.at(pass),
                w_dec: self.w_dec.at(pass),
                b_dec: self.b_dec.at(pass),
                encoder_grad: encoder_grad.as_ref(),
                decoder_grad: decoder_grad.as_ref(),
            };
            let scale = self.decoder_norms(pass)?;
            let spec =
                AutoencodeSpec { k, scale, also: dead.clone(), centered: self.config.apply_b_dec_to_input };
            if let Some(done) = autoencode(&input, weights, &spec)? {
                let output = pass.tap_shared(recons, None, done.recons)?.reshape(x.dims())?;
                let output = self.output(x, output, pass)?;
                return Ok(Step { output, activity: done.activity, also: done.also, encoded: None });
            }
        }
        let encoded = self.encode_input(&input, x.dims(), pass)?;
        let output = self.decode(&encoded, pass)?;
        let output = self.output(x, output, pass)?;
        let also = match dead {
            None => None,
            Some((only, k)) => {
                let spec =
                    TopKSpec { only: Some(only), relu: false, ..self.top_k_spec(Keep::PerRow(k), pass)? };
                Some(self.recons(&top_k(&encoded.pre, &spec)?, pass, false)?)
            }
        };
        Ok(Step { output, activity: activity(&encoded.acts)?, also, encoded: Some(encoded) })
    }

    /// By how much a reconstruction changes when these latents change by so much, `changes [.., latents.len()]`.
    pub(crate) fn effect(&self, encoded: &Encoded, latents: &[u32], changes: &Tensor) -> Result<Tensor> {
        let device = changes.device();
        let chosen = Tensor::new(latents, device)?;
        let mut rows = self.w_dec.value().index_select(&chosen, 0)?;
        if self.config.architecture.rescales() {
            rows = rows.broadcast_div(&row_norms(&rows)?.unsqueeze(1)?)?;
        }
        let flat = changes.reshape(((), latents.len()))?.matmul(&rows)?;
        let mut dims = changes.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = self.config.d_in;
        }
        encoded.undo.apply_to_difference(flat.reshape(dims)?)?.reshape(encoded.shape.as_slice())
    }
}
