//! What a hook is.

use std::any::Any;

use candle_core::{Tensor, TensorId};

use crate::cx::Cx;
use crate::error::HookResult;
use crate::event::{BatchInfo, CheckpointInfo, ClipInfo, Metrics, MetricsRow, RunStatus};
use crate::grads::NamedGrads;
use crate::plan::Listener;
use crate::point::{Point, PointId, PointTable};
use crate::selector::Selector;
use crate::statistics::Hits;
use crate::tensors::keepable;

/// Something attached to named places of a model.
///
/// Every method has a default that does nothing. A hook says in [`wants`](Hook::wants) where it listens; only what it
/// asked for is called. An error or a panic is caught, counted and reported, and by default the pass goes on as
/// if the hook had not been there (see [`OnError`](crate::OnError)).
///
/// ```
/// use candle_core::Tensor;
/// use tenterhook_hooks::{At, Cx, Hook, HookResult, Want};
///
/// /// Remembers the largest value it has seen in the residual stream.
/// struct Peak(f32);
///
/// impl Hook for Peak {
///     fn kind(&self) -> &str {
///         "peak"
///     }
///     fn wants(&self) -> Vec<Want> {
///         vec![Want::observe("blocks.*.hook_resid_post")]
///     }
///     fn observe(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult {
///         self.0 = self.0.max(x.flatten_all()?.max(0)?.to_scalar()?);
///         cx.log(format!("peak/{}", at.name()), f64::from(self.0));
///         Ok(())
///     }
/// }
/// ```
pub trait Hook: Any + Send {
    /// The registered name of this sort of hook, such as `capture`.
    fn kind(&self) -> &str;

    /// Whether it has to do with what there is only one of, such as a log, a screen or the checkpoints: where several processes train
    /// together it is then switched off on all but rank 0. Hooks that listen in the model, or decide how training goes on, are not like that: every rank
    /// needs them.
    fn only_on_first_rank(&self) -> bool {
        false
    }

    /// Where it listens. Asked once, when the hook is registered.
    fn wants(&self) -> Vec<Want> {
        Vec::new()
    }

    /// Whether it can work at a point that it asked for. Asked once, when the hook is registered; a reason against it is an error.
    fn fits(&self, _point: &Point) -> HookResult {
        Ok(())
    }

    /// Looks at a tensor: the value that the model will really use, after all controllers, or its gradient. The tensor is detached.
    fn observe(&mut self, _at: &At, _x: &Tensor, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// Replaces a tensor, or leaves it (`None`). Shape, dtype and device must stay; finite values must stay finite.
    fn edit(&mut self, _at: &At, _x: &Tensor, _cx: &mut Cx) -> HookResult<Option<Tensor>> {
        Ok(None)
    }

    /// Transforms the gradients between backward and the optimizer step; what it leaves is what the optimizer uses. All or nothing: when it
    /// fails, the gradients stay as they were.
    fn update(&mut self, _grads: &mut NamedGrads, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// Training begins, or goes on after a restart.
    fn on_train_start(&mut self, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// An epoch begins.
    fn on_epoch_start(&mut self, _epoch: u64, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// A training batch is about to go through the model.
    fn on_train_batch_start(&mut self, _batch: &BatchInfo, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// The forward is done and its points have fired; there is no loss yet.
    fn on_after_forward(&mut self, _batch: &BatchInfo, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// The loss of the batch is known, the backward comes next.
    fn on_before_backward(&mut self, _loss: f64, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// The backward of the batch is done and the gradients' points have fired. With accumulation, these are the sums so far.
    fn on_after_backward(&mut self, _grads: &NamedGrads, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// The gradients are about to be clipped: their norm before and after.
    fn on_gradient_clip(&mut self, _clip: ClipInfo, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// The optimizer with this number is about to change its parameters.
    fn on_before_optimizer_step(&mut self, _optimizer_idx: usize, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// The optimizer with this number has changed its parameters.
    fn on_after_optimizer_step(&mut self, _optimizer_idx: usize, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// A training batch is done, with its step if it made one.
    fn on_train_batch_end(&mut self, _batch: &BatchInfo, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// Validation begins.
    fn on_validation_start(&mut self, _epoch: u64, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// A validation batch is about to go through the model.
    fn on_validation_batch_start(&mut self, _batch: &BatchInfo, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// A validation batch is done.
    fn on_validation_batch_end(&mut self, _batch: &BatchInfo, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// Validation is done: `val/loss` and its like.
    fn on_validation_end(&mut self, _metrics: &Metrics, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// A checkpoint is complete on the disk. What a hook changes in itself here is not part of that checkpoint; a run that goes on from
    /// it hears of it again.
    fn on_checkpoint_save(&mut self, _checkpoint: &CheckpointInfo, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// A run goes on from a checkpoint. Comes before [`on_train_start`](Hook::on_train_start).
    fn on_checkpoint_load(&mut self, _checkpoint: &CheckpointInfo, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// An epoch is done.
    fn on_epoch_end(&mut self, _epoch: u64, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// A line of the record is complete: everything that was published at this step, by whichever hook. This is where logs are written.
    fn on_metrics(&mut self, _row: &MetricsRow, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// The run fails. [`on_train_end`](Hook::on_train_end) follows.
    fn on_exception(&mut self, _error: &str, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// The run ends, whatever happened.
    fn on_train_end(&mut self, _status: RunStatus, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// Weights that validation is to use in place of the model's, and that are saved beside them, by parameter name.
    fn validation_weights(&self) -> Option<Vec<(String, Tensor)>> {
        None
    }

    /// What must survive a restart, if anything.
    fn save_state(&self) -> HookResult<Option<serde_json::Value>> {
        Ok(None)
    }

    /// Takes back what [`save_state`](Hook::save_state) gave.
    fn load_state(&mut self, _state: serde_json::Value) -> HookResult {
        Ok(())
    }

    /// Tensors that must survive a restart, by name: for what would be too large for [`save_state`](Hook::save_state).
    fn save_tensors(&self) -> HookResult<Vec<(String, Tensor)>> {
        Ok(Vec::new())
    }

    /// Takes back what [`save_tensors`](Hook::save_tensors) gave.
    fn load_tensors(&mut self, _tensors: Vec<(String, Tensor)>) -> HookResult {
        Ok(())
    }
}

/// Which tensor of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Site {
    /// The value at a point; for a layer, its output.
    Forward,
    /// A layer's input.
    PreForward,
    /// The gradient of the loss at a point; for a layer, at its output.
    Gradient,
    /// The gradient of the loss at a layer's input.
    PreGradient,
}

impl Site {
    /// The word used in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Site::Forward => "forward",
            Site::PreForward => "pre_forward",
            Site::Gradient => "gradient",
            Site::PreGradient => "pre_gradient",
        }
    }

    /// Whether it is a layer's input, or the gradient there.
    pub fn is_input(self) -> bool {
        matches!(self, Site::PreForward | Site::PreGradient)
    }

    /// Whether it is a gradient.
    pub fn is_gradient(self) -> bool {
        matches!(self, Site::Gradient | Site::PreGradient)
    }
}

/// Whether a hook looks at a tensor or may replace it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Calls [`Hook::observe`].
    Observe,
    /// Calls [`Hook::edit`].
    Edit,
}

/// One thing a hook listens to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Which tensor.
    pub site: Site,
    /// At which points.
    pub select: Selector,
    /// To look or to replace.
    pub access: Access,
}

impl Want {
    /// To look at values.
    pub fn observe(select: impl Into<Selector>) -> Self {
        Self { site: Site::Forward, select: select.into(), access: Access::Observe }
    }

    /// To replace values.
    pub fn edit(select: impl Into<Selector>) -> Self {
        Self { site: Site::Forward, select: select.into(), access: Access::Edit }
    }

    /// To look at gradients.
    pub fn observe_gradient(select: impl Into<Selector>) -> Self {
        Self { site: Site::Gradient, ..Self::observe(select) }
    }

    /// To replace gradients.
    pub fn edit_gradient(select: impl Into<Selector>) -> Self {
        Self { site: Site::Gradient, ..Self::edit(select) }
    }

    /// The same for the input of a layer.
    pub fn before(self) -> Self {
        let site = if self.site.is_gradient() { Site::PreGradient } else { Site::PreForward };
        Self { site, ..self }
    }
}

/// Where a hook is being called.
pub struct At<'a> {
    pub(crate) table: &'a PointTable,
    pub(crate) id: PointId,
    pub(crate) name: &'a str,
    pub(crate) site: Site,
    pub(crate) input: Option<&'a Tensor>,
    /// This tensor owns its storage and nobody will write to it: it may be kept without a copy. Any other one may not, such as
    /// the layer's input or something that a hook made of a parameter.
    pub(crate) owned: Option<TensorId>,
}

impl<'a> At<'a> {
    pub(crate) fn listener(
        table: &'a PointTable,
        id: PointId,
        listener: &'a Listener,
        input: Option<&'a Tensor>,
        owned: Option<TensorId>,
    ) -> Self {
        Self { table, id, name: &listener.name, site: listener.site, input, owned }
    }

    /// The name that matched, under which values are stored.
    pub fn name(&self) -> &str {
        self.name
    }

    /// The point itself: its canonical name, aliases, axes and block.
    pub fn point(&self) -> &Point {
        self.table.point(self.id)
    }

    /// The value, a layer's input, or the gradient.
    pub fn site(&self) -> Site {
        self.site
    }

    /// The tensor in memory of its own, to be kept: the one that was given where nothing else holds its storage, else a copy.
    pub fn owned(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        keepable(x, self.owned == Some(x.id()))
    }

    /// How many values are NaN or infinite and should not be: at masked scores, minus infinity is how it should be.
    pub fn non_finite(&self, x: &Tensor) -> candle_core::Result<u64> {
        Ok(Hits::find(x, |value| !value.is_finite() && !self.is_mask(value))?.count)
    }

    /// Whether a value means that there is none.
    pub(crate) fn is_mask(&self, value: f64) -> bool {
        value == f64::NEG_INFINITY && self.point().masked && !self.site.is_gradient()
    }

    /// The input of the layer whose output this is. `None` at points that are not a layer's output.
    pub fn input(&self) -> Option<&Tensor> {
        self.input
    }
}
