//! One autoencoder, ready for use.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use tenterhook_hooks::{HookManager, Pass, PointTable};
use tenterhook_nn::{Params, Scope, Weights};

use crate::config::SaeConfig;
use crate::layer::{Encoded, SaeLayer};

/// A sparse autoencoder: activations to latents and back.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use tenterhook_sae::{Architecture, FreshWeights, Sae, SaeConfig};
///
/// let config = SaeConfig::new(8, 32, Architecture::TopK { k: 4, rescale_acts_by_decoder_norm: false });
/// let fresh = FreshWeights { seed: 1, decoder_init_norm: Some(0.1), threshold: 0.01 };
/// let sae = Sae::new(config, fresh, DType::F32, &Device::Cpu)?;
/// let x = Tensor::randn(0f32, 1.0, (5, 8), &Device::Cpu)?;
/// let latents = sae.encode(&x)?;
/// assert_eq!((latents.acts.dims(), sae.decode(&latents)?.dims()), (&[5, 32][..], &[5, 8][..]));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Sae {
    layer: SaeLayer,
    points: Arc<PointTable>,
    params: Params,
}

impl Sae {
    /// An autoencoder with these weights.
    pub fn new(config: SaeConfig, weights: impl Weights, dtype: DType, device: &Device) -> Result<Self> {
        let scope = Scope::new(weights, dtype, device);
        let layer = SaeLayer::new(&scope, config)?;
        let (points, params) = scope.finish();
        Ok(Self { layer, points, params })
    }

    /// What it looks like.
    pub fn config(&self) -> &SaeConfig {
        self.layer.config()
    }

    /// The same, used somewhere else: its metadata can be changed, and nothing that decides what is computed.
    pub fn set_metadata(&mut self, key: &str, value: impl Into<serde_json::Value>) {
        self.layer.config_mut().metadata.insert(key.to_string(), value.into());
    }

    /// Its weights and what is computed with them.
    pub fn layer(&self) -> &SaeLayer {
        &self.layer
    }

    /// The weights by name.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The places hooks can be attached to: `hook_sae_input`, `hook_sae_acts_pre`, `hook_sae_acts_post`, `hook_sae_recons`,
    /// `hook_sae_error` and `hook_sae_output`.
    pub fn points(&self) -> &Arc<PointTable> {
        &self.points
    }

    /// Hooks for this autoencoder.
    pub fn hook_manager(&self) -> HookManager {
        HookManager::new(self.points.clone())
    }

    /// The latents of activations `[.., d_in]`, or `[.., heads, d_head]` where the configuration says so.
    pub fn encode(&self, x: &Tensor) -> Result<Encoded> {
        self.layer.encode(x, &Pass::default())
    }

    /// The activations that these latents stand for.
    pub fn decode(&self, latents: &Encoded) -> Result<Tensor> {
        self.layer.decode(latents, &Pass::default())
    }

    /// Latents and reconstruction in a pass, whose hooks see the points.
    pub fn forward(&self, x: &Tensor, pass: &Pass) -> Result<(Encoded, Tensor)> {
        pass.enter(&self.points)?;
        self.layer.forward(x, pass)
    }

    /// The direction of a latent: its row of the decoder.
    pub fn direction(&self, latent: usize) -> Result<Tensor> {
        self.layer.w_dec.value().get(latent)
    }
}
