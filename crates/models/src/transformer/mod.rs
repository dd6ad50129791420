//! The decoder that all families share.

mod attention;
mod block;
mod cache;
mod head_weights;
mod mlp;
mod names;
mod padding;
mod split_input;
mod stages;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use serde_json::Value;
use tenterhook_hooks::{Gradients, HookManager, Pass, Point, PointTable};
use tenterhook_nn::layers::{Embedding, Input, Linear, LinearSpec, Norm, NormPoints, NormSpec};
use tenterhook_nn::ops::{RopeScaling, RopeSpec};
use tenterhook_nn::{Params, RandomWeights, Scope};

use crate::config::{NormKind, Positions, TransformerConfig};
use crate::error::ModelError;
use crate::files::{ModelFiles, named_tensors, save_model, with_dtype};
use crate::next_token::{IGNORED, next_token_targets};
use block::Block;
pub use cache::KvCache;
use cache::feeds_cache;
pub use head_weights::{HeadWeights, NormWeights};
use names::Names;

/// A decoder-only transformer of any supported family, with points at every place of interest.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use tenterhook_hooks::{Pass, PassSetup};
/// use tenterhook_models::{Transformer, config::TransformerConfig};
///
/// let model = Transformer::init(TransformerConfig::gpt2(50, 16, 8, 2, 2), 42, DType::F32, &Device::Cpu)?;
/// let hooks = model.hook_manager();
/// let id = hooks.register_capture_hook("blocks.*.hook_resid_post", None, None, false, true)?;
///
/// let ids = Tensor::new(&[[1u32, 2, 3]], &Device::Cpu)?;
/// let logits = model.forward(&ids, &hooks.pass(PassSetup::default()))?;
/// assert_eq!(logits.dims(), [1, 3, 50]);
/// assert_eq!(hooks.get_captured_states(&id)?.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct Transformer {
    config: TransformerConfig,
    /// The `config.json` it was read from, or one made for it: written back when it is saved.
    config_json: Value,
    tokenizer: Option<PathBuf>,
    points: Arc<PointTable>,
    params: Params,
    embed: Embedding,
    positions: Option<Embedding>,
    blocks: Vec<Block>,
    final_norm: Norm,
    head: Linear,
}

impl Transformer {
    /// Reads a Hugging Face model directory. All that is wrong with it is reported at once.
    pub fn load(dir: &Path, dtype: DType, device: &Device) -> std::result::Result<Self, ModelError> {
        Self::from_files(&ModelFiles::open(dir)?, dtype, device)
    }

    /// The same for a directory that is already open.
    pub fn from_files(
        files: &ModelFiles,
        dtype: DType,
        device: &Device,
    ) -> std::result::Result<Self, ModelError> {
        let mut weights = files.weights(dtype, device);
        let scope = Scope::new(&mut weights, dtype, device);
        let built = Self::build(files.config.clone(), files.config_json.clone(), scope);
        let model = weights.finish_with(built)?;
        Ok(Self { tokenizer: files.tokenizer().map(Path::to_path_buf), ..model })
    }

    /// The points of the model in a directory, and how many parameters it has, without reading a weight. The directory is checked
    /// as for [`load`](Self::load).
    pub fn outline(files: &ModelFiles) -> std::result::Result<(Arc<PointTable>, usize), ModelError> {
        let mut weights = files.weights(DType::F32, &Device::Cpu).headers_only();
        let scope = Scope::new(&mut weights, DType::F32, &Device::Cpu);
        let built = Self::build(files.config.clone(), files.config_json.clone(), scope);
        let parameters = weights.element_count();
        Ok((weights.finish_with(built)?.points, parameters))
    }

    /// A new model, as GPT-2 begins: normal weights, projections into the stream scaled down by the depth. A function of the seed.
    pub fn init(
        config: TransformerConfig,
        seed: u64,
        dtype: DType,
        device: &Device,
    ) -> std::result::Result<Self, ModelError> {
        config.validate()?;
        let json = config.to_hf();
        Ok(Self::build(config, json, Scope::new(RandomWeights { seed }, dtype, device))?)
    }

    fn build(config: TransformerConfig, config_json: Value, scope: Scope) -> Result<Self> {
        let names = Names::of(&config);
        let root = scope.pp(names.root);
        let hidden = |name: &str| scope.point(Point::new(name, "batch pos d_model"));
        let embed_out = hidden("hook_embed")?;
        let embed = Embedding::new(
            &root.pp(names.embed),
            config.vocab,
            config.width,
            config.init_std,
            Some(embed_out),
        )?;
        let positions = match config.positions {
            Positions::Rotary(_) => None,
            Positions::Learned => {
                let output = Some(hidden("hook_pos_embed")?);
                let path = root.pp(names.positions);
                Some(Embedding::new(&path, config.context, config.width, config.init_std, output)?)
            }
        };
        let blocks = (0..config.layers)
            .map(|i| Block::new(&root.pp(names.blocks).pp(i).in_block(i), &config, names, i))
            .collect::<Result<_>>()?;
        let norm_in = hidden("ln_final.hook_in")?;
        let inside = NormPoints::declare(&scope, "ln_final", "batch pos d_model")?;
        let norm_out = hidden("ln_final.hook_out")?;
        let norm = root.pp(names.final_norm);
        let final_norm = Norm::new(&norm, config.norm_spec(), Some(norm_in), Some(inside), Some(norm_out))?;
        let head = scope.pp(names.head);
        let head = match config.tied_embeddings {
            true => Linear::tied(&head, embed.weight(), Input::OutputOf(norm_out), None)?,
            false => {
                let spec = LinearSpec {
                    inputs: config.width,
                    outputs: config.vocab,
                    bias: false,
                    layout: tenterhook_nn::ops::WeightLayout::OutIn,
                    std: config.init_std,
                };
                Linear::new(&head, spec, Input::OutputOf(norm_out), None)?
            }
        };
        scope.for_each_point(|point| point.feeds_cache = feeds_cache(point, config.layers));
        let (points, params) = scope.finish();
        let tokenizer = None;
        Ok(Self {
            config,
            config_json,
            tokenizer,
            points,
            params,
            embed,
            positions,
            blocks,
            final_norm,
            head,
        })
    }

    /// Writes a directory that `transformers` loads: `config.json`, `model.safetensors` and, when given, the tokenizer.
    ///
    /// A model without MLPs has no counterpart there: it is written as one that `transformers` refuses and [`load`](Self::load) reads.
    pub fn save(&self, dir: &Path, tokenizer: Option<&Path>) -> std::result::Result<(), ModelError> {
        save_model(dir, &self.config_json(), &named_tensors(&self.params), tokenizer)
    }

    /// What [`save`](Self::save) writes as `config.json`: the one it was read from or one made for it, with the type of its weights.
    pub fn config_json(&self) -> Value {
        with_dtype(self.config_json.clone(), self.embed.weight().value().dtype())
    }

    /// The `tokenizer.json` it came with.
    pub fn tokenizer(&self) -> Option<&Path> {
        self.tokenizer.as_deref()
    }

    pub(crate) fn set_tokenizer(&mut self, path: PathBuf) {
        self.tokenizer = Some(path);
    }

    /// The description it was built from.
    pub fn config(&self) -> &TransformerConfig {
        &self.config
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

    /// The logits `[batch, pos, vocab]` of token ids `[batch, pos]`.
    pub fn forward(&self, ids: &Tensor, pass: &Pass) -> Result<Tensor> {
        self.run(ids, None, pass)
    }

    /// The logits of the next tokens of a sequence whose earlier ones are in the cache, to which these are added.
    /// The pass must say where they begin: `first_position` is the length of the cache.
    pub fn forward_cached(&self, ids: &Tensor, cache: &mut KvCache, pass: &Pass) -> Result<Tensor> {
        if pass.setup().gradients != Gradients::Off {
            candle_core::bail!(
                "gradients do not reach back into a cache: run the whole sequence with `forward`"
            );
        }
        if pass.setup().first_position != cache.len() {
            let (given, len) = (pass.setup().first_position, cache.len());
            candle_core::bail!("the pass says that its first position is {given}, and the cache holds {len}");
        }
        self.check_cached_rotation(cache.len(), ids.dim(1)?)?;
        let logits = self.run(ids, Some(cache), pass)?;
        cache.advance(ids.dim(1)?);
        Ok(logits)
    }

    /// The mean cross entropy of the targets `[batch, pos]`; `ignore_index` marks places that do not count.
    pub fn loss(
        &self,
        ids: &Tensor,
        targets: &Tensor,
        ignore_index: Option<i64>,
        pass: &Pass,
    ) -> Result<Tensor> {
        self.loss_of(&self.forward_to_loss(ids, pass)?, targets, ignore_index, pass)
    }

    /// The mean cross entropy of every token after the first of its sequence.
    pub fn next_token_loss(&self, ids: &Tensor, pass: &Pass) -> Result<Tensor> {
        let targets = next_token_targets(ids)?;
        self.loss(ids, &targets, Some(IGNORED), pass)
    }

    /// LongRoPE rotates a long sequence by other angles than a short one: keys that are already in the cache would be wrong.
    fn check_cached_rotation(&self, cached: usize, count: usize) -> Result<()> {
        let Positions::Rotary(RopeSpec { scaling: RopeScaling::LongRope { original_context, .. }, .. }) =
            &self.config.positions
        else {
            return Ok(());
        };
        if (1..=*original_context).contains(&cached) && cached + count > *original_context {
            candle_core::bail!(
                "the sequence grows past {original_context} positions, where this model's rotation changes: \
                 the {cached} cached keys no longer fit, begin again with an empty cache and the whole sequence"
            );
        }
        Ok(())
    }
}

impl TransformerConfig {
    pub(crate) fn norm_spec(&self) -> NormSpec {
        NormSpec {
            width: self.width,
            eps: self.norm_eps,
            centered: self.norm == NormKind::LayerNorm,
            gain_offset: self.norm_weight_offset,
        }
    }

    /// New projections into the stream begin smaller, by the number of them, so that the stream does not grow with depth.
    pub(crate) fn residual_std(&self) -> f64 {
        let per_block = if self.mlp_width == 0 { 1.0 } else { 2.0 };
        self.init_std / (per_block * self.layers.max(1) as f64).sqrt()
    }
}
