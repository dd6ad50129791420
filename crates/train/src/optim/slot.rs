//! What an optimizer keeps for one parameter.

use candle_core::{DType, Device, Result, Shape, Tensor};

use super::error::OptimError;

/// One parameter's count of steps and the tensors kept for it.
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) dtype: DType,
    pub(super) device: Device,
    /// A frozen parameter's count stands still, as in torch.
    pub(super) steps: u64,
    pub(super) state_names: &'static [&'static str],
    /// Made at the first step: parameters that stay frozen cost nothing.
    pub(super) state: Vec<Tensor>,
    /// For every tensor, a number that no element's magnitude exceeds. Nobody else writes them, so it is known.
    pub(super) bounds: Vec<f64>,
}

impl Slot {
    pub(super) fn new(name: &str, weight: &Tensor, state_names: &'static [&'static str]) -> Self {
        Self {
            name: name.to_string(),
            shape: weight.shape().clone(),
            dtype: weight.dtype(),
            device: weight.device().clone(),
            steps: 0,
            state_names,
            state: Vec::new(),
            bounds: Vec::new(),
        }
    }

    /// Zeros, before the first step.
    pub(super) fn allocate(&mut self) -> Result<()> {
        if self.state.is_empty() {
            let zeros = |_: &&str| Tensor::zeros(&self.shape, self.dtype, &self.device);
            self.state = self.state_names.iter().map(zeros).collect::<Result<_>>()?;
            self.bounds = vec![0.0; self.state.len()];
        }
        Ok(())
    }

    /// A copy of everything kept, with the names; nothing before the first step.
    pub(super) fn copies(&self) -> Result<Vec<(&'static str, Tensor)>> {
        if self.steps == 0 {
            return Ok(Vec::new());
        }
        self.state_names.iter().zip(&self.state).map(|(name, tensor)| Ok((*name, tensor.copy()?))).collect()
    }

    /// An error if a tensor cannot take this slot's place.
    pub(super) fn check_fits(&self, what: &Tensor) -> std::result::Result<(), OptimError> {
        let describe = |shape: &Shape, dtype: DType, device: &Device| {
            format!("{} {:?} on {:?}", dtype.as_str(), shape.dims(), device.location())
        };
        match what.shape() == &self.shape
            && what.dtype() == self.dtype
            && what.device().same_device(&self.device)
        {
            true => Ok(()),
            false => Err(OptimError::Mismatch {
                param: self.name.clone(),
                found: describe(what.shape(), what.dtype(), what.device()),
                wanted: describe(&self.shape, self.dtype, &self.device),
            }),
        }
    }

    /// The error for the weight (0) or one of the tensors kept (from 1).
    pub(super) fn non_finite(&self, index: usize) -> OptimError {
        let what = match index.checked_sub(1).and_then(|i| self.state_names.get(i)) {
            Some(name) => format!("`{name}`"),
            None => "the weight".to_string(),
        };
        OptimError::NonFinite { param: self.name.clone(), what }
    }
}
