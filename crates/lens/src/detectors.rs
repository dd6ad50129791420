//! Hooks that look and remember, as handles that can be asked afterwards.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::Tensor;
use tenterhook_hooks::{At, Cx, Hook, HookResult, Selector, Site, Want};
use tenterhook_nn::ops::soft_cap;

use crate::error::LensError;
use crate::language_model::LanguageModel;

/// Remembers what passed at a layer in the latest forward. A clone is another handle to the same detector, so one can be registered and
/// the other asked.
///
/// ```
/// # use candle_core::{DType, Device};
/// # use tenterhook_models::{Transformer, config::TransformerConfig};
/// use tenterhook_lens::{InferenceOptions, LanguageModel, LayerActivationDetector};
///
/// # let lm = LanguageModel::new(Transformer::init(TransformerConfig::gpt2(50, 16, 8, 2, 2), 42, DType::F32, &Device::Cpu)?)?;
/// let detector = LayerActivationDetector::new("transformer.h.0.attn.c_attn");
/// let id = lm.layers().register_hook("transformer.h.0.attn.c_attn", detector.clone())?;
/// lm.infer_tokens(vec![vec![1, 2, 3]], &InferenceOptions::default())?;
/// assert_eq!(detector.tensor_metadata("activations").unwrap().dims(), [1, 3, 24]);
/// lm.layers().unregister_hook(&id)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct LayerActivationDetector {
    layer: Selector,
    /// What [`tensor_metadata`](Self::tensor_metadata) calls it.
    key: &'static str,
    site: Site,
    every_pass: bool,
    /// Some models bend their logits behind the last point.
    cap: Option<f64>,
    kept: Arc<Mutex<Kept>>,
    enabled: Arc<AtomicBool>,
}

#[derive(Default)]
struct Kept {
    pass: Option<(u64, usize)>,
    tensors: Vec<(String, Tensor)>,
}

impl LayerActivationDetector {
    /// What these layers or points put out.
    pub fn new(layer: impl Into<Selector>) -> Self {
        Self::keyed(layer, "activations")
    }

    /// The token ids that go into a model, as `tensor_metadata("input_ids")`.
    pub fn model_input(lm: &LanguageModel) -> Result<Self, LensError> {
        let points = lm.hooks().points();
        let ids = points.iter().map(|(_, point)| point).find(|point| point.axes == "batch pos");
        let ids =
            ids.ok_or_else(|| LensError::BadInput("the model has no point for token ids".to_string()))?;
        Ok(Self::keyed(ids.name.as_str(), "input_ids"))
    }

    /// The logits that come out of a model, as `tensor_metadata("logits")`.
    pub fn model_output(lm: &LanguageModel) -> Result<Self, LensError> {
        let points = lm.hooks().points();
        let last = points.iter().last();
        let (_, last) = last.ok_or_else(|| LensError::BadInput("the model has no points".to_string()))?;
        Ok(Self { cap: lm.model().config().logit_soft_cap, ..Self::keyed(last.name.as_str(), "logits") })
    }

    fn keyed(layer: impl Into<Selector>, key: &'static str) -> Self {
        Self {
            layer: layer.into(),
            key,
            site: Site::Forward,
            every_pass: false,
            cap: None,
            kept: Arc::default(),
            enabled: Arc::new(true.into()),
        }
    }

    /// What goes into the layers, in place of what comes out: PRE_FORWARD.
    pub fn before(mut self) -> Self {
        self.site = Site::PreForward;
        self
    }

    /// Remembers every forward until it is cleared, and not only the latest.
    pub fn keeping_every_pass(mut self) -> Self {
        self.every_pass = true;
        self
    }

    /// The last tensor it remembers, under the name of its sort: `activations`, `input_ids`, `logits`.
    pub fn tensor_metadata(&self, key: &str) -> Option<Tensor> {
        let kept = self.lock();
        kept.tensors.last().filter(|_| key == self.key).map(|(_, tensor)| tensor.clone())
    }

    /// Everything it remembers, by the name that matched, oldest first.
    pub fn get_captured(&self) -> Vec<(String, Tensor)> {
        self.lock().tensors.clone()
    }

    /// Forgets everything.
    pub fn clear_captured(&self) {
        *self.lock() = Kept::default();
    }

    /// Switches it on.
    pub fn enable(&self) {
        self.enabled.store(true, Relaxed);
    }

    /// Switches it off; it stays registered and keeps what it remembers.
    pub fn disable(&self) {
        self.enabled.store(false, Relaxed);
    }

    /// Whether it is on.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hook for LayerActivationDetector {
    fn kind(&self) -> &str {
        "layer_activation_detector"
    }

    fn wants(&self) -> Vec<Want> {
        let want = Want::observe(self.layer.clone());
        vec![if self.site.is_input() { want.before() } else { want }]
    }

    fn observe(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult {
        if !self.is_enabled() {
            return Ok(());
        }
        let tensor = match self.cap {
            Some(cap) => soft_cap(x, cap)?,
            None => at.owned(x)?,
        };
        let mut kept = self.lock();
        let pass = Some((cx.pass_number(), cx.first_position()));
        if kept.pass != pass && !self.every_pass {
            kept.tensors.clear();
        }
        kept.pass = pass;
        kept.tensors.push((at.name().to_string(), tensor));
        Ok(())
    }
}
