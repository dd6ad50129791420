//! Hooks in the backward pass.

use std::sync::{Arc, Weak};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Error, Layout, MetalStorage, Result, Shape, Tensor};

use crate::cx::Facts;
use crate::guard;
use crate::hook::{At, Site};
use crate::plan::{Listener, Listeners};
use crate::point::PointId;
use crate::slot::Slot;

/// The gradient hooks at one point. Hooks are held weakly: a hook may keep a tensor whose tape holds this.
pub(crate) struct GradientHooks {
    facts: Arc<Facts>,
    point: PointId,
    edit: Vec<GradientListener>,
    observe: Vec<GradientListener>,
}

struct GradientListener {
    slot: Weak<Slot>,
    name: Arc<str>,
    site: Site,
}

impl GradientListener {
    fn new(listener: &Listener) -> Self {
        Self { slot: Arc::downgrade(&listener.slot), name: listener.name.clone(), site: listener.site }
    }
}

impl GradientHooks {
    pub(crate) fn new(facts: Arc<Facts>, point: PointId, listeners: &Listeners) -> Self {
        let weak = |list: &[Listener]| list.iter().map(GradientListener::new).collect();
        Self {
            facts,
            point,
            edit: weak(&listeners.edit_gradient),
            observe: weak(&listeners.observe_gradient),
        }
    }

    fn at<'a>(&'a self, listener: &'a GradientListener) -> At<'a> {
        let GradientListener { name, site, .. } = listener;
        // Never `owned`: candle goes on adding to gradients.
        At { table: &self.facts.table, id: self.point, name, site: *site, input: None, owned: None }
    }

    pub(crate) fn edit(&self, gradient: &Tensor) -> Result<Tensor> {
        let mut gradient = gradient.clone();
        for listener in &self.edit {
            if let Some(slot) = listener.slot.upgrade()
                && let Some(edited) = guard::edit(&slot, &self.facts, &self.at(listener), &gradient)?
            {
                gradient = edited.detach();
            }
        }
        Ok(gradient)
    }

    pub(crate) fn observe(&self, gradient: &Tensor) -> Result<()> {
        for listener in &self.observe {
            if let Some(slot) = listener.slot.upgrade() {
                guard::observe(&slot, &self.facts, &self.at(listener), gradient)?;
            }
        }
        Ok(())
    }
}

/// The identity in the forward; in the backward the gradient goes through the hooks.
pub(crate) struct GradientTap(pub(crate) GradientHooks);

impl CustomOp1 for GradientTap {
    fn name(&self) -> &'static str {
        "gradient-tap"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        // candle wants new storage of every op, so the value is copied once.
        let (start, end) = layout
            .contiguous_offsets()
            .ok_or_else(|| Error::msg("a gradient tap needs a contiguous value"))?;
        let copy = match storage {
            CpuStorage::F32(values) => CpuStorage::F32(values[start..end].to_vec()),
            CpuStorage::F64(values) => CpuStorage::F64(values[start..end].to_vec()),
            CpuStorage::F16(values) => CpuStorage::F16(values[start..end].to_vec()),
            CpuStorage::BF16(values) => CpuStorage::BF16(values[start..end].to_vec()),
            _ => return Err(Error::msg("only floating point values have gradients")),
        };
        Ok((copy, layout.shape().clone()))
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        Ok((storage.try_clone(layout)?, layout.shape().clone()))
    }

    fn metal_fwd(&self, storage: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, Shape)> {
        Ok((storage.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let gradient = self.0.edit(gradient)?;
        self.0.observe(&gradient)?;
        Ok(Some(gradient)) // candle panics on `None` here
    }
}
