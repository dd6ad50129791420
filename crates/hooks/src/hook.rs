//! What a hook is.

use std::any::Any;

use candle_core::{Tensor, TensorId};

use crate::cx::Cx;
use crate::error::HookResult;
use crate::plan::Listener;
use crate::point::{Point, PointId, PointTable};
use crate::selector::Selector;

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

    /// Where it listens. Asked once, when the hook is registered.
    fn wants(&self) -> Vec<Want> {
        Vec::new()
    }

    /// Looks at a tensor: the value that the model will really use, after all controllers, or its gradient. The tensor is detached.
    fn observe(&mut self, _at: &At, _x: &Tensor, _cx: &mut Cx) -> HookResult {
        Ok(())
    }

    /// Replaces a tensor, or leaves it (`None`). Shape, dtype and device must stay; finite values must stay finite.
    fn edit(&mut self, _at: &At, _x: &Tensor, _cx: &mut Cx) -> HookResult<Option<Tensor>> {
        Ok(None)
    }

    /// What must survive a restart, if anything.
    fn save_state(&self) -> HookResult<Option<serde_json::Value>> {
        Ok(None)
    }

    /// Takes back what [`save_state`](Hook::save_state) gave.
    fn load_state(&mut self, _state: serde_json::Value) -> HookResult {
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

    /// The input of the layer whose output this is. `None` at points that are not a layer's output.
    pub fn input(&self) -> Option<&Tensor> {
        self.input
    }
}
