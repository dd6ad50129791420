//! The state of an optimizer: read while it trains, saved and restored.

use std::collections::BTreeMap;

use candle_core::{DType, Result as TensorResult, Tensor};
use serde_json::{Map, Value, json};

use super::Optimizer;
use super::error::OptimError;
use super::kernel;
use super::slot::Slot;

/// What an optimizer knows about one parameter: copies, which later steps do not change.
#[derive(Clone, Debug)]
pub struct ParamState {
    /// Steps that updated it.
    pub steps: u64,
    /// What is kept, by name: `exp_avg` and `exp_avg_sq`, or `momentum_buffer`.
    pub tensors: Vec<(&'static str, Tensor)>,
}

impl Optimizer {
    /// What is kept about one parameter; none if it is another optimizer's.
    pub fn inspect(&self, param: &str) -> TensorResult<Option<ParamState>> {
        let Some(slot) = self.slots.get(param) else { return Ok(None) };
        Ok(Some(ParamState { steps: slot.steps, tensors: slot.copies()? }))
    }

    /// Copies of everything kept, under names such as `adamw.0/exp_avg/<parameter>`. A parameter that was never updated has nothing.
    pub fn state_tensors(&self) -> TensorResult<Vec<(String, Tensor)>> {
        let mut tensors = Vec::new();
        for slot in self.slots.values() {
            let copies = slot.copies()?;
            tensors.extend(copies.into_iter().map(|(kept, tensor)| (self.key(kept, &slot.name), tensor)));
        }
        Ok(tensors)
    }

    /// What is not a tensor: learning rates by group and steps by parameter.
    pub fn state_json(&self) -> Value {
        let groups: Vec<Value> = self
            .groups
            .iter()
            .map(|group| json!({"name": group.name, "lr": group.lr, "base_lr": group.base_lr}))
            .collect();
        let steps: Map<String, Value> =
            self.slots.values().map(|slot| (slot.name.clone(), slot.steps.into())).collect();
        json!({"name": self.name, "groups": groups, "steps": steps})
    }

    /// Restores what [`state_tensors`](Self::state_tensors) and [`state_json`](Self::state_json) gave. What is missing, too much or
    /// of another shape is an error, and then nothing is changed. Tensors under other optimizers' names are left alone.
    pub fn load_state(&mut self, tensors: &BTreeMap<String, Tensor>, json: &Value) -> Result<(), OptimError> {
        let rates = self.saved_rates(json)?;
        let steps = self.saved_steps(json)?;
        let mut used = Vec::new();
        let mut restored = Vec::new();
        for (slot, steps) in self.slots.values().zip(&steps) {
            let (mut state, mut bounds) = (Vec::new(), Vec::new());
            // Before the first step there is nothing.
            for kept in slot.state_names.iter().filter(|_| *steps > 0) {
                let key = self.key(kept, &slot.name);
                let tensor = tensors.get(&key).ok_or_else(|| self.misfit(format!("`{key}` is missing")))?;
                let (tensor, bound) = restore(slot, kept, tensor)
                    .map_err(|problem| self.misfit(format!("`{key}` {problem}")))?;
                state.push(tensor);
                bounds.push(bound);
                used.push(key);
            }
            restored.push((state, bounds));
        }
        let prefix = format!("{}/", self.name);
        if let Some(extra) = tensors.keys().find(|key| key.starts_with(&prefix) && !used.contains(key)) {
            return Err(self.misfit(format!("`{extra}` belongs to no parameter that it updated")));
        }
        for ((slot, steps), (state, bounds)) in self.slots.values_mut().zip(steps).zip(restored) {
            (slot.steps, slot.state, slot.bounds) = (steps, state, bounds);
        }
        for (group, (lr, base_lr)) in self.groups.iter_mut().zip(rates) {
            (group.lr, group.base_lr) = (lr, base_lr);
        }
        Ok(())
    }

    fn saved_rates(&self, json: &Value) -> Result<Vec<(f64, f64)>, OptimError> {
        if json["name"] != self.name.as_str() {
            return Err(self.misfit(format!("it was saved by {}", json["name"])));
        }
        let saved = json["groups"].as_array().map(Vec::as_slice).unwrap_or_default();
        let names: Vec<&str> = saved.iter().filter_map(|group| group["name"].as_str()).collect();
        let own: Vec<&str> = self.groups.iter().map(|group| group.name.as_str()).collect();
        if names != own {
            return Err(self.misfit(format!("its groups are {names:?}, this optimizer has {own:?}")));
        }
        let rate = |group: &Value, key: &str| {
            let problem =
                || self.misfit(format!("`{key}` of group {} is {}, not a number", group["name"], group[key]));
            group[key].as_f64().ok_or_else(problem)
        };
        saved.iter().map(|group| Ok((rate(group, "lr")?, rate(group, "base_lr")?))).collect()
    }

    /// In the order of the slots.
    fn saved_steps(&self, json: &Value) -> Result<Vec<u64>, OptimError> {
        let none = Map::new();
        let saved = json["steps"].as_object().unwrap_or(&none);
        if let Some(extra) = saved.keys().find(|name| !self.slots.contains_key(*name)) {
            return Err(
                self.misfit(format!("it has steps of `{extra}`, which this optimizer does not update"))
            );
        }
        let steps = |name: &String| {
            // No run counts further, and one more is still a number.
            let found = saved.get(name).and_then(Value::as_u64).filter(|steps| *steps <= 1 << 60);
            found.ok_or_else(|| self.misfit(format!("it has no usable count of steps of `{name}`")))
        };
        self.slots.keys().map(steps).collect()
    }

    fn key(&self, kept: &str, param: &str) -> String {
        format!("{}/{kept}/{param}", self.name)
    }

    fn misfit(&self, problem: String) -> OptimError {
        OptimError::State { optimizer: self.name.clone(), problem }
    }
}

/// A copy on the parameter's device, and the largest magnitude in it.
fn restore(slot: &Slot, kept: &str, saved: &Tensor) -> Result<(Tensor, f64), String> {
    if saved.shape() != &slot.shape || saved.dtype() != slot.dtype {
        let (shape, wanted) = (saved.dims(), slot.shape.dims());
        let (dtype, wanted_dtype) = (saved.dtype().as_str(), slot.dtype.as_str());
        return Err(format!("is {dtype} {shape:?}, the parameter is {wanted_dtype} {wanted:?}"));
    }
    let read = || -> TensorResult<(Tensor, f64, bool)> {
        let host = saved.to_device(&candle_core::Device::Cpu)?.detach();
        let bound = match slot.dtype {
            DType::F64 => kernel::largest::<f64>(&host)?,
            _ => kernel::largest::<f32>(&host)?,
        };
        let negative = host.lt(0f64)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()? > 0.0;
        Ok((saved.detach().copy()?.to_device(&slot.device)?, bound, negative))
    };
    let (tensor, bound, negative) = read().map_err(|error| error.to_string())?;
    if !bound.is_finite() {
        return Err("has NaN or infinity".into());
    }
    // It is a mean of squares, and its root is taken.
    if negative && kept == "exp_avg_sq" {
        return Err("has negative elements".into());
    }
    Ok((tensor, bound))
}
