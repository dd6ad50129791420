//! The layers of a model, and hooks by layer.

use serde::Serialize;
use tenterhook_hooks::{AttachError, Hook, HookInfo, HookManager, HookOptions, Point, Selector, Site};

/// The layers and points of a model, and the hooks on them.
pub struct Layers<'a> {
    hooks: &'a HookManager,
}

/// A place that hooks can be attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerInfo {
    /// Its canonical name.
    pub name: String,
    /// Its other names.
    pub aliases: Vec<String>,
    /// The axes of the tensor.
    pub axes: String,
    /// The transformer block.
    pub block: Option<usize>,
    /// Whether controllers may replace the value.
    pub writable: bool,
    /// Whether a gradient passes there.
    pub has_gradient: bool,
}

impl<'a> Layers<'a> {
    pub(crate) fn new(hooks: &'a HookManager) -> Self {
        Self { hooks }
    }

    /// Every place, in the order in which the model declares them.
    pub fn list_layers(&self) -> Vec<LayerInfo> {
        let describe = |(_, point): (_, &Point)| LayerInfo {
            name: point.name.clone(),
            aliases: point.aliases.clone(),
            axes: point.axes.clone(),
            block: point.block,
            writable: point.writable,
            has_gradient: point.differentiable,
        };
        self.hooks.points().iter().map(describe).collect()
    }

    /// Attaches a hook to a layer's dotted path, a point, a glob or a block's index, and returns its id. Whether it looks or edits is the
    /// hook's own business; where it does is said here.
    pub fn register_hook(
        &self,
        signature: impl Into<Selector>,
        hook: impl Hook,
    ) -> Result<String, AttachError> {
        self.hooks.register_at(signature, hook, HookOptions::default())
    }

    /// Removes a hook.
    pub fn unregister_hook(&self, id: &str) -> Result<(), AttachError> {
        self.hooks.remove_hook(id)
    }

    /// Switches a hook on.
    pub fn enable_hook(&self, id: &str) -> Result<(), AttachError> {
        self.hooks.enable_hook(id)
    }

    /// Switches a hook off; it keeps its place and its state.
    pub fn disable_hook(&self, id: &str) -> Result<(), AttachError> {
        self.hooks.disable_hook(id)
    }

    /// Switches every hook off.
    pub fn disable_all(&self) -> Result<(), AttachError> {
        self.hooks.list_hooks().iter().try_for_each(|hook| self.hooks.disable_hook(&hook.id))
    }

    /// The hooks that listen at this layer or these points.
    pub fn get_hooks(&self, layer: impl Into<Selector>) -> Result<Vec<HookInfo>, AttachError> {
        let table = self.hooks.points();
        let layer = layer.into();
        let mut found = layer.resolve(table, Site::Forward)?;
        found.extend(layer.resolve(table, Site::PreForward).unwrap_or_default()); // a point has no input
        let names: Vec<&str> = found.iter().flat_map(|one| table.point(one.point).names()).collect();
        let listens = |hook: &HookInfo| hook.matched.iter().any(|name| names.contains(&name.as_str()));
        Ok(self.hooks.list_hooks().into_iter().filter(listens).collect())
    }
}
