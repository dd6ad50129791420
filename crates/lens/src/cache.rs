//! Running a model and keeping what passes at its points.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Tensor};
use tenterhook_hooks::{
    At, Cx, Gradients, Hook, HookOptions, HookResult, PassSetup, Positions, Report, Rows, Selector, Want,
};
use tenterhook_models::next_token_loss;

use crate::error::LensError;
use crate::language_model::LanguageModel;

/// What [`LanguageModel::run_with_cache`] keeps, and how much of the model it runs.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// The points; by default all that are not costly.
    pub points: Selector,
    /// Only these positions, negative ones from the end; of the queries at attention scores and patterns.
    pub positions: Option<Positions>,
    /// Keeps values in this type.
    pub dtype: Option<DType>,
    /// Keeps the gradient of the next-token loss at the same points, under `grad.<name>`.
    pub gradients: bool,
    /// Where the texts stand, when some of the batch is padding.
    pub rows: Option<Arc<Rows>>,
    /// Begins at this block: the input is then the residual stream before it, `[batch, pos, d_model]`, in place of token ids.
    pub start_at_block: Option<usize>,
    /// Ends before this block: there are no logits then, but the residual stream.
    pub stop_at_block: Option<usize>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            points: "*".into(),
            positions: None,
            dtype: None,
            gradients: false,
            rows: None,
            start_at_block: None,
            stop_at_block: None,
        }
    }
}

impl CacheOptions {
    /// Everything at these points.
    pub fn points(points: impl Into<Selector>) -> Self {
        Self { points: points.into(), ..Self::default() }
    }
}

/// Tensors by the name of their point, in the order in which they passed; gradients under `grad.<name>`.
#[derive(Clone, Debug, Default)]
pub struct ActivationCache {
    entries: Vec<(String, Tensor)>,
}

impl ActivationCache {
    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Result<&Tensor, LensError> {
        let found = self.entries.iter().find(|(other, _)| other == name).map(|(_, tensor)| tensor);
        found.ok_or_else(|| {
            let near = tenterhook_hooks::nearest(name, self.names(), 3);
            LensError::BadInput(format!("nothing was kept under `{name}`; nearest: {}", near.join(", ")))
        })
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    /// Names and tensors, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.entries.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing was kept.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl LanguageModel {
    /// Runs the model and keeps what passes at its points. The hooks that are registered take part; what is kept is what the model really
    /// uses. The input is token ids `[batch, pos]`, or the residual stream where it begins later. Returns the logits, or the residual
    /// stream where it ends early.
    pub fn run_with_cache(
        &self,
        input: &Tensor,
        options: &CacheOptions,
    ) -> Result<(Tensor, ActivationCache, Report), LensError> {
        let branch = self.branch();
        let kept = Arc::new(Mutex::new(Vec::new()));
        let recorder = Recorder { options: options.clone(), kept: kept.clone() };
        let recording = HookOptions {
            on_error: tenterhook_hooks::OnError::Abort,
            builtin: true,
            ..HookOptions::default()
        };
        let id = branch.hooks().register_with(recorder, recording)?;
        let gradients = if options.gradients { Gradients::Activations } else { Gradients::Off };
        let setup = PassSetup { rows: options.rows.clone(), ..PassSetup::default().gradients(gradients) };
        let pass = branch.hooks().pass(setup);
        let run = || -> candle_core::Result<Tensor> {
            let (model, blocks) = (self.model(), self.model().config().layers);
            let (start, stop) = (options.start_at_block, options.stop_at_block);
            if options.gradients && (start.is_some() || stop.is_some()) {
                candle_core::bail!("a run without the tokens or the logits has no loss, and so no gradients");
            }
            if options.gradients && options.rows.is_some() {
                candle_core::bail!(
                    "the loss of a padded batch would count its padding: take gradients of one text at a time"
                );
            }
            let stream = match start {
                Some(_) => input.clone(),
                None => model.embed(input, &pass)?,
            };
            let stream = model.blocks(start.unwrap_or(0)..stop.unwrap_or(blocks), stream, &pass)?;
            if stop.is_some() {
                return Ok(stream);
            }
            let logits = model.unembed(&stream, &pass)?;
            if options.gradients {
                next_token_loss(&logits, input)?.backward()?;
            }
            Ok(logits.detach())
        };
        let output = run().map_err(|error| LensError::of_pass(error, &pass))?;
        let mut report = pass.report();
        report.hooks.retain(|hook| hook.id != id);
        let entries = std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((output, ActivationCache { entries }, report))
    }
}

/// Keeps what passes.
struct Recorder {
    options: CacheOptions,
    kept: Arc<Mutex<Vec<(String, Tensor)>>>,
}

impl Hook for Recorder {
    fn kind(&self) -> &str {
        "activation_cache"
    }

    fn wants(&self) -> Vec<Want> {
        let points = &self.options.points;
        let mut wants = vec![Want::observe(points.clone())];
        if self.options.gradients {
            wants.push(Want::observe_gradient(points.clone()));
        }
        wants
    }

    fn observe(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult {
        let kept = match &self.options.positions {
            Some(positions) => positions.pick(at, x, cx)?.ok_or("no position is in this pass")?,
            None => at.owned(x)?,
        };
        let kept = match self.options.dtype {
            Some(dtype) if kept.dtype().is_float() => kept.to_dtype(dtype)?,
            _ => kept,
        };
        let name =
            if at.site().is_gradient() { format!("grad.{}", at.name()) } else { at.name().to_string() };
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push((name, kept));
        Ok(())
    }
}
