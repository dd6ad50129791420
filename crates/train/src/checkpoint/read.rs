//! Reading a checkpoint back.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use tenterhook_nn::Params;

use super::snapshot::State;
use super::{HOOKS, MODEL, OPTIMIZER, STATE, STATE_FORMAT};
use crate::error::TrainError;

/// What was read from a checkpoint. The weights went into the model.
pub(crate) struct Loaded {
    pub(crate) state: State,
    pub(crate) optimizer: BTreeMap<String, Tensor>,
}

/// Reads a checkpoint that has been verified: the weights into `params`, the rest to the caller. Nothing is changed unless all of it fits.
pub(crate) fn read(dir: &Path, params: &Params, device: &Device) -> Result<Loaded, TrainError> {
    let mut state = read_state(&dir.join(STATE))?;
    let weights = read_tensors(&dir.join(MODEL), device)?;
    check_weights(&dir.join(MODEL), &weights, params)?;
    let optimizer = read_tensors(&dir.join(OPTIMIZER), device)?;
    if dir.join(HOOKS).is_file() {
        let mut tensors = read_tensors(&dir.join(HOOKS), device)?;
        for hook in &mut state.hooks {
            let prefix = format!("{}/", hook.id);
            let own = tensors.extract_if(.., |name, _| name.starts_with(&prefix));
            hook.tensors = own.map(|(name, tensor)| (name[prefix.len()..].to_string(), tensor)).collect();
        }
    }
    for param in params.iter() {
        param.var().set(&weights[param.name()])?;
    }
    Ok(Loaded { state, optimizer })
}

fn unfit(path: &Path, problem: impl Into<String>) -> TrainError {
    TrainError::Unfit { path: path.display().to_string(), problem: problem.into() }
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, TrainError> {
    std::fs::read(path).map_err(|error| unfit(path, format!("cannot be read: {error}")))
}

fn read_state(path: &Path) -> Result<State, TrainError> {
    let value: serde_json::Value =
        serde_json::from_slice(&read_bytes(path)?).map_err(|error| unfit(path, error.to_string()))?;
    // The version comes first: what follows may look different in another one.
    match value["format"].as_u64() {
        Some(STATE_FORMAT) => serde_json::from_value(value).map_err(|error| unfit(path, error.to_string())),
        found => Err(unfit(path, format!("has format {found:?}, this version reads format {STATE_FORMAT}"))),
    }
}

fn read_tensors(path: &Path, device: &Device) -> Result<BTreeMap<String, Tensor>, TrainError> {
    let tensors = candle_core::safetensors::load_buffer(&read_bytes(path)?, device);
    Ok(tensors.map_err(|error| unfit(path, error.to_string()))?.into_iter().collect())
}

fn check_weights(path: &Path, weights: &BTreeMap<String, Tensor>, params: &Params) -> Result<(), TrainError> {
    let mut problems = Vec::new();
    for param in params.iter() {
        let (name, value) = (param.name(), param.value());
        match weights.get(name) {
            None => problems.push(format!("`{name}` is missing")),
            Some(found) if found.shape() != value.shape() => {
                problems.push(format!(
                    "`{name}` has shape {:?}, the model's has {:?}",
                    found.dims(),
                    value.dims()
                ));
            }
            Some(found) if found.dtype() != value.dtype() => {
                problems.push(format!("`{name}` is {:?}, the model's is {:?}", found.dtype(), value.dtype()));
            }
            Some(_) => {}
        }
    }
    let extra = weights.keys().filter(|name| params.get(name).is_none());
    problems.extend(extra.map(|name| format!("`{name}` is not of this model")));
    problems.truncate(20);
    if problems.is_empty() { Ok(()) } else { Err(unfit(path, problems.join("; "))) }
}
