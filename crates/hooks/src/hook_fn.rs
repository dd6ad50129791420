//! Hooks made of closures.

use candle_core::Tensor;

use crate::cx::Cx;
use crate::error::HookResult;
use crate::hook::{At, Hook, Want};
use crate::selector::Selector;

/// One closure, for one want.
struct HookFn<F> {
    kind: &'static str,
    want: Want,
    call: F,
}

/// A hook that looks at values.
pub struct ObserveFn<F>(HookFn<F>);

/// A hook that replaces values.
pub struct EditFn<F>(HookFn<F>);

/// Looks at the values at these points.
pub fn observe<F>(select: impl Into<Selector>, call: F) -> ObserveFn<F>
where
    F: FnMut(&At, &Tensor, &mut Cx) -> HookResult + Send + 'static,
{
    ObserveFn(HookFn { kind: "observe_fn", want: Want::observe(select), call })
}

/// Replaces the values at these points.
pub fn edit<F>(select: impl Into<Selector>, call: F) -> EditFn<F>
where
    F: FnMut(&At, &Tensor, &mut Cx) -> HookResult<Option<Tensor>> + Send + 'static,
{
    EditFn(HookFn { kind: "edit_fn", want: Want::edit(select), call })
}

/// Looks at the gradients at these points.
pub fn observe_gradient<F>(select: impl Into<Selector>, call: F) -> ObserveFn<F>
where
    F: FnMut(&At, &Tensor, &mut Cx) -> HookResult + Send + 'static,
{
    ObserveFn(HookFn { kind: "observe_gradient_fn", want: Want::observe_gradient(select), call })
}

/// Replaces the gradients at these points.
pub fn edit_gradient<F>(select: impl Into<Selector>, call: F) -> EditFn<F>
where
    F: FnMut(&At, &Tensor, &mut Cx) -> HookResult<Option<Tensor>> + Send + 'static,
{
    EditFn(HookFn { kind: "edit_gradient_fn", want: Want::edit_gradient(select), call })
}

impl<F> ObserveFn<F> {
    /// The same for the inputs of the chosen layers.
    pub fn before(mut self) -> Self {
        self.0.want = self.0.want.before();
        self
    }
}

impl<F> EditFn<F> {
    /// The same for the inputs of the chosen layers.
    pub fn before(mut self) -> Self {
        self.0.want = self.0.want.before();
        self
    }
}

impl<F> Hook for ObserveFn<F>
where
    F: FnMut(&At, &Tensor, &mut Cx) -> HookResult + Send + 'static,
{
    fn kind(&self) -> &str {
        self.0.kind
    }

    fn wants(&self) -> Vec<Want> {
        vec![self.0.want.clone()]
    }

    fn observe(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult {
        (self.0.call)(at, x, cx)
    }
}

impl<F> Hook for EditFn<F>
where
    F: FnMut(&At, &Tensor, &mut Cx) -> HookResult<Option<Tensor>> + Send + 'static,
{
    fn kind(&self) -> &str {
        self.0.kind
    }

    fn wants(&self) -> Vec<Want> {
        vec![self.0.want.clone()]
    }

    fn edit(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult<Option<Tensor>> {
        (self.0.call)(at, x, cx)
    }
}
