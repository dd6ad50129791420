//! What passes at the points of a model, into a store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::Tensor;
use tenterhook_hooks::{At, Cx, Hook, HookResult, Selector, Want};

use super::batch::StoreBatch;
use super::error::StoreError;

/// An observer that puts what passes at its points into the batch that is open. Clones are the same one: register one, keep another.
///
/// ```
/// use candle_core::{DType, Device};
/// use tenterhook_lens::{LanguageModel, LocalStore, StoreCapture, StoreOptions};
/// use tenterhook_models::{Transformer, config::TransformerConfig};
///
/// # let dir = tempfile::tempdir()?;
/// let lm = LanguageModel::new(Transformer::init(TransformerConfig::gpt2(50, 16, 8, 2, 2), 42, DType::F32, &Device::Cpu)?)?;
/// let mut writer = LocalStore::new(dir.path()).create("by-hand", StoreOptions::default())?;
/// let capture = StoreCapture::new("blocks.*.hook_resid_post");
/// lm.hooks().register(capture.clone())?;
///
/// capture.begin(writer.batch(vec![vec![1, 2, 3]])?);
/// lm.forward(&lm.batch_of(&[1, 2, 3])?)?;
/// let batch = capture.take().ok_or("no batch is open")?;
/// writer.append(batch)?;
/// assert_eq!(writer.finish()?.rows, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct StoreCapture {
    points: Selector,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    batch: Option<StoreBatch>,
    failure: Option<StoreError>,
}

impl StoreCapture {
    /// For these points.
    pub fn new(points: impl Into<Selector>) -> Self {
        Self { points: points.into(), open: Arc::default() }
    }

    /// What passes from now on belongs to this batch.
    pub fn begin(&self, batch: StoreBatch) {
        *self.open() = Open { batch: Some(batch), failure: None };
    }

    /// The batch with what has passed. Nothing may pass until another one is begun.
    pub fn take(&self) -> Option<StoreBatch> {
        self.open().batch.take()
    }

    /// Why the batch could not take what passed, if that is so.
    pub fn failure(&self) -> Option<StoreError> {
        self.open().failure.take()
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hook for StoreCapture {
    fn kind(&self) -> &str {
        "store"
    }

    fn wants(&self) -> Vec<Want> {
        vec![Want::observe(self.points.clone())]
    }

    fn observe(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult {
        let mut open = self.open();
        let batch = open.batch.as_mut().ok_or("no batch is open: call `begin` before the forward")?;
        if let Err(error) = batch.add(at.name(), &at.point().axes, x) {
            // The end of the pass, and not a failure of a hook: it is told once, by whoever asks for it.
            cx.abort(error.to_string());
            open.failure = Some(error);
        }
        Ok(())
    }
}
