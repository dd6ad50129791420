//! Who listens where: made when hooks change, shared by passes, never changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::hook::{Access, Site};
use crate::point::{PointId, PointTable};
use crate::slot::Slot;

/// Who listens at a point: one bit for each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listens(u8);

impl Listens {
    const OBSERVE: u8 = 1;
    const EDIT: u8 = 2;
    const OBSERVE_GRADIENT: u8 = 4;
    const EDIT_GRADIENT: u8 = 8;
    const VALUES: u8 = Self::OBSERVE | Self::EDIT;

    pub(crate) fn from_byte(byte: u8) -> Self {
        Self(byte)
    }

    /// Somebody listens, in whatever way.
    pub fn any(self) -> bool {
        self.0 != 0
    }

    /// Somebody looks at the value.
    pub fn observed(self) -> bool {
        self.0 & Self::OBSERVE != 0
    }

    /// Somebody may replace the value.
    pub fn edited(self) -> bool {
        self.0 & Self::EDIT != 0
    }

    /// Somebody looks at the gradient.
    pub fn gradient_observed(self) -> bool {
        self.0 & Self::OBSERVE_GRADIENT != 0
    }

    /// Somebody may replace the gradient.
    pub fn gradient_edited(self) -> bool {
        self.0 & Self::EDIT_GRADIENT != 0
    }

    /// Somebody may replace the value or the gradient: a fused kernel has to be taken apart here.
    pub fn intervenes(self) -> bool {
        self.edited() || self.gradient_edited()
    }
}

#[derive(Clone)]
pub(crate) struct Listener {
    pub(crate) slot: Arc<Slot>,
    pub(crate) name: Arc<str>,
    pub(crate) site: Site,
}

/// The listeners at one point, each list in the order in which they run.
#[derive(Default)]
pub(crate) struct Listeners {
    pub(crate) observe_before: Vec<Listener>,
    pub(crate) edit: Vec<Listener>,
    pub(crate) observe: Vec<Listener>,
    pub(crate) edit_gradient: Vec<Listener>,
    pub(crate) observe_gradient: Vec<Listener>,
}

pub(crate) struct Plan {
    pub(crate) table: Arc<PointTable>,
    /// One byte per point: [`Listens`].
    pub(crate) armed: Arc<[u8]>,
    /// The same without gradients, for passes that have no backward.
    pub(crate) armed_values: Arc<[u8]>,
    pub(crate) listeners: BTreeMap<PointId, Listeners>,
    /// All slots of the manager, active or not: the report names them all.
    pub(crate) slots: Vec<Arc<Slot>>,
    /// Which of them take part.
    pub(crate) active: Vec<bool>,
}

impl Plan {
    /// A plan in which nobody listens.
    pub(crate) fn empty(table: Arc<PointTable>, slots: Vec<Arc<Slot>>) -> Self {
        let none: Arc<[u8]> = Arc::from([]);
        let active = vec![false; slots.len()];
        Self { table, armed: none.clone(), armed_values: none, listeners: BTreeMap::new(), slots, active }
    }

    pub(crate) fn new(table: Arc<PointTable>, slots: Vec<Arc<Slot>>, active: Vec<bool>) -> Self {
        if !active.contains(&true) {
            return Self::empty(table, slots);
        }
        let mut armed = vec![0u8; table.len()];
        let mut listeners: BTreeMap<PointId, Listeners> = BTreeMap::new();
        for (slot, _) in slots.iter().zip(&active).filter(|(_, active)| **active) {
            for wire in &slot.wiring {
                let here = listeners.entry(wire.found.point).or_default();
                let (list, bit) = match (wire.site.is_gradient(), wire.access) {
                    (true, Access::Edit) => (&mut here.edit_gradient, Listens::EDIT_GRADIENT),
                    (true, Access::Observe) => (&mut here.observe_gradient, Listens::OBSERVE_GRADIENT),
                    (false, Access::Edit) => (&mut here.edit, Listens::EDIT),
                    (false, Access::Observe) if slot.options.observe_before_edits => {
                        (&mut here.observe_before, Listens::OBSERVE)
                    }
                    (false, Access::Observe) => (&mut here.observe, Listens::OBSERVE),
                };
                list.push(Listener { slot: slot.clone(), name: wire.found.name.clone(), site: wire.site });
                armed[wire.found.point.0 as usize] |= bit;
            }
        }
        let armed_values = armed.iter().map(|byte| byte & Listens::VALUES).collect();
        Self { table, armed: armed.into(), armed_values, listeners, slots, active }
    }
}
