//! A language model with its tokenizer and its hooks.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use tenterhook_hooks::{Hook, HookManager, PassSetup, Report};
use tenterhook_models::Transformer;
use tenterhook_models::hub::Hub;
use tenterhook_models::tokenizer::Tokenizer;

use crate::error::LensError;
use crate::layers::Layers;
use crate::store::LocalStore;

/// A language model with its tokenizer and its hooks. Clones share everything.
#[derive(Clone)]
pub struct LanguageModel {
    model: Arc<Transformer>,
    tokenizer: Option<Arc<Tokenizer>>,
    hooks: HookManager,
    store: Option<LocalStore>,
}

impl LanguageModel {
    /// Reads a model, in f32 on the CPU: a Hugging Face model directory, or a name on the hub, which is looked for in the cache and then downloaded
    /// (see [`Hub`]).
    pub fn from_pretrained(name: &str) -> Result<Self, LensError> {
        Self::from_pretrained_with(name, DType::F32, &Device::Cpu)
    }

    /// The same in another type or on another device.
    pub fn from_pretrained_with(name: &str, dtype: DType, device: &Device) -> Result<Self, LensError> {
        Self::new(Transformer::load(&Hub::from_env().find(name)?, dtype, device)?)
    }

    /// A model that is there already, with the tokenizer it came with.
    pub fn new(model: Transformer) -> Result<Self, LensError> {
        let tokenizer = model.tokenizer().map(Tokenizer::load).transpose()?.map(Arc::new);
        let hooks = model.hook_manager();
        Ok(Self { model: Arc::new(model), tokenizer, hooks, store: None })
    }

    /// The same model with a store, where [`capture`](Self::capture) keeps activations.
    pub fn with_store(self, store: LocalStore) -> Self {
        Self { store: Some(store), ..self }
    }

    /// Its store; an error says what to do where it has none.
    pub fn store(&self) -> Result<&LocalStore, LensError> {
        self.store.as_ref().ok_or_else(|| {
            LensError::BadInput(
                "the model has no store: give it one with `with_store(LocalStore::new(..))`".to_string(),
            )
        })
    }

    /// The same weights with the same hooks, to which others can be added without this one noticing: for another thread, or another question.
    pub fn branch(&self) -> Self {
        Self { hooks: self.hooks.branch(), ..self.clone() }
    }

    /// The same weights and no hooks.
    pub fn without_hooks(&self) -> Self {
        Self { hooks: self.model.hook_manager(), ..self.clone() }
    }

    /// The same weights with the hooks that only look.
    pub(crate) fn with_observers(&self) -> Self {
        Self { hooks: self.hooks.branch_of_observers(), ..self.clone() }
    }

    /// The model.
    pub fn model(&self) -> &Transformer {
        &self.model
    }

    /// The tokenizer; an error says what to do where there is none.
    pub fn tokenizer(&self) -> Result<&Tokenizer, LensError> {
        self.tokenizer.as_deref().ok_or_else(|| {
            LensError::BadInput(
                "the model has no tokenizer.json: give token ids in place of text".to_string(),
            )
        })
    }

    /// The hooks.
    pub fn hooks(&self) -> &HookManager {
        &self.hooks
    }

    /// The layers, and hooks by layer.
    pub fn layers(&self) -> Layers<'_> {
        Layers::new(&self.hooks)
    }

    /// The logits `[batch, pos, vocab]` of token ids `[batch, pos]`, and what the hooks did.
    pub fn forward(&self, ids: &Tensor) -> Result<(Tensor, Report), LensError> {
        self.forward_with(ids, PassSetup::default())
    }

    /// The same in a pass of this setup.
    pub fn forward_with(&self, ids: &Tensor, setup: PassSetup) -> Result<(Tensor, Report), LensError> {
        let pass = self.hooks.pass(setup);
        let logits = self.model.forward(ids, &pass).map_err(|error| LensError::of_pass(error, &pass))?;
        Ok((logits, pass.report()))
    }

    /// One forward with further hooks, which are gone afterwards.
    pub fn run_with_hooks(
        &self,
        ids: &Tensor,
        hooks: Vec<Box<dyn Hook>>,
    ) -> Result<(Tensor, Report), LensError> {
        let branch = self.branch();
        for hook in hooks {
            branch.hooks.register_boxed(hook, Default::default())?;
        }
        branch.forward(ids)
    }

    /// Token ids of one sequence as a batch `[1, pos]` on the model's device.
    pub fn batch_of(&self, ids: &[u32]) -> Result<Tensor, LensError> {
        Ok(Tensor::new(ids, &self.device())?.unsqueeze(0)?)
    }

    /// Where the model is.
    pub fn device(&self) -> Device {
        self.model.embedding_weights().device().clone()
    }
}
