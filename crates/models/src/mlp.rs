//! An MLP over a window of tokens: the smallest language model that everything else can be tried on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use serde_json::Value;
use tenterhook_hooks::{HookManager, Pass, Point, PointId, PointTable};
use tenterhook_nn::layers::{Embedding, Input, Linear, LinearSpec};
use tenterhook_nn::ops::{WeightLayout, activate, dropout};
use tenterhook_nn::{Params, RandomWeights, Scope};

use crate::config::MlpConfig;
use crate::error::ModelError;
use crate::files::{StoredModel, named_tensors, read_config, save_model, with_dtype};

/// Embeds a window of tokens, concatenates the embeddings and sends them through hidden layers, to the logits of the token after the
/// window.
///
/// Its points are `hook_embed`, `layers.N.hook_in`, `hook_pre` and `hook_post` (before and after the activation; the latter after
/// dropout, as the next layer reads it) and `logits`. Its layers are the blocks that hooks choose by number.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use tenterhook_hooks::PassSetup;
/// use tenterhook_models::{Mlp, config::MlpConfig};
/// use tenterhook_nn::ops::Activation;
///
/// let config = MlpConfig {
///     vocab: 27, context: 3, d_model: 10, d_mlp: 32, n_layers: 2, activation: Activation::Relu, dropout: 0.0,
/// };
/// let model = Mlp::init(config, 42, DType::F32, &Device::Cpu)?;
/// let hooks = model.hook_manager();
/// let id = hooks.register_capture_hook("layers.*.hook_post", None, None, false, true)?;
///
/// let windows = Tensor::new(&[[0u32, 5, 13], [5, 13, 13]], &Device::Cpu)?;
/// let logits = model.forward(&windows, &hooks.pass(PassSetup::default()))?;
/// assert_eq!(logits.dims(), [2, 27]);
/// assert_eq!(hooks.get_captured_states(&id)?.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct Mlp {
    config: MlpConfig,
    tokenizer: Option<PathBuf>,
    points: Arc<PointTable>,
    params: Params,
    embed: Embedding,
    /// The embeddings side by side.
    layers_in: PointId,
    layers: Vec<Layer>,
    head: Linear,
}

struct Layer {
    fc: Linear,
    post: PointId,
}

impl Mlp {
    /// Reads a directory that [`save`](Self::save) wrote. All that is wrong with it is reported at once.
    pub fn load(dir: &Path, dtype: DType, device: &Device) -> std::result::Result<Self, ModelError> {
        let (path, json) = read_config(dir)?;
        let config = MlpConfig::from_json(&json).map_err(|source| ModelError::Config { path, source })?;
        Self::from_stored(config, &StoredModel::open(dir)?, dtype, device)
    }

    pub(crate) fn from_stored(
        config: MlpConfig,
        stored: &StoredModel,
        dtype: DType,
        device: &Device,
    ) -> std::result::Result<Self, ModelError> {
        let mut weights = stored.weights(false, dtype, device);
        let built = Self::build(config, Scope::new(&mut weights, dtype, device));
        let model = weights.finish_with(built)?;
        Ok(Self { tokenizer: stored.tokenizer().map(Path::to_path_buf), ..model })
    }

    /// A new model: embeddings of unit size, hidden layers that keep it, and logits near 0. A function of the seed.
    pub fn init(
        config: MlpConfig,
        seed: u64,
        dtype: DType,
        device: &Device,
    ) -> std::result::Result<Self, ModelError> {
        config.validate()?;
        Ok(Self::build(config, Scope::new(RandomWeights { seed }, dtype, device))?)
    }

    fn build(config: MlpConfig, scope: Scope) -> Result<Self> {
        let hidden = |inputs: usize| LinearSpec {
            inputs,
            outputs: config.d_mlp,
            bias: true,
            layout: WeightLayout::OutIn,
            // An activation that is 0 for half of its inputs halves the mean square.
            std: (2.0 / inputs as f64).sqrt(),
        };
        let vectors = scope.point(Point::new("hook_embed", "batch pos d_model"))?;
        let embed = Embedding::new(&scope.pp("embed"), config.vocab, config.d_model, 1.0, Some(vectors))?;
        let first = scope.pp("layers").pp(0).in_block(0);
        let layers_in = first.point(Point::new("layers.0.hook_in", "batch d_in"))?;
        let (mut input, mut inputs) = (layers_in, config.context * config.d_model);
        let mut layers = Vec::with_capacity(config.n_layers);
        for i in 0..config.n_layers {
            let layer = scope.pp("layers").pp(i).in_block(i);
            let point = |end: &str| layer.point(Point::new(format!("layers.{i}.{end}"), "batch d_mlp"));
            let (pre, post) = (point("hook_pre")?, point("hook_post")?);
            let fc = Linear::new(&layer.pp("fc"), hidden(inputs), Input::OutputOf(input), Some(pre))?;
            layer.block_layer(input, post)?;
            layers.push(Layer { fc, post });
            (input, inputs) = (post, config.d_mlp);
        }
        let logits = scope.point(Point::new("logits", "batch vocab"))?;
        let spec = LinearSpec { outputs: config.vocab, std: 0.02, ..hidden(inputs) };
        let head = Linear::new(&scope.pp("head"), spec, Input::OutputOf(input), Some(logits))?;
        let (points, params) = scope.finish();
        Ok(Self { config, tokenizer: None, points, params, embed, layers_in, layers, head })
    }

    /// Writes `config.json`, `model.safetensors` and, when given, the tokenizer.
    pub fn save(&self, dir: &Path, tokenizer: Option<&Path>) -> std::result::Result<(), ModelError> {
        save_model(dir, &self.config_json(), &named_tensors(&self.params), tokenizer)
    }

    /// What [`save`](Self::save) writes as `config.json`.
    pub fn config_json(&self) -> Value {
        with_dtype(self.config.to_json(), self.embed.weight().value().dtype())
    }

    /// The description it was built from.
    pub fn config(&self) -> &MlpConfig {
        &self.config
    }

    /// The `tokenizer.json` it came with.
    pub fn tokenizer(&self) -> Option<&Path> {
        self.tokenizer.as_deref()
    }

    pub(crate) fn set_tokenizer(&mut self, path: PathBuf) {
        self.tokenizer = Some(path);
    }

    /// All points and layers.
    pub fn points(&self) -> &Arc<PointTable> {
        &self.points
    }

    /// All parameters, by the names they have in the model file.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// A hook manager for this model.
    pub fn hook_manager(&self) -> HookManager {
        HookManager::new(self.points.clone())
    }

    /// The logits `[batch, vocab]` of the token after each window of ids `[batch, context]`.
    pub fn forward(&self, ids: &Tensor, pass: &Pass) -> Result<Tensor> {
        pass.enter(&self.points)?;
        let (_, count) = ids.dims2()?;
        if count != self.config.context {
            let context = self.config.context;
            candle_core::bail!("windows of {count} tokens were given; this MLP reads exactly {context}");
        }
        let vectors = self.embed.forward(ids, None, pass)?;
        let mut x = pass.tap(self.layers_in, vectors.flatten_from(1)?)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let mut y = activate(&layer.fc.forward(&x, pass)?, self.config.activation)?;
            if self.config.dropout > 0.0 && pass.is_training() {
                y = dropout(
                    &y,
                    self.config.dropout,
                    &pass.random().named(&format!("layers.{i}")),
                    pass.first_row(),
                )?;
            }
            x = pass.tap_output(layer.post, &x, y)?;
        }
        self.head.forward(&x, pass)
    }
}
