//! What a data loader hands to a model.

use candle_core::{DType, Result, Tensor};

/// Targets that do not count have this value.
pub const IGNORED: i64 = -100;

/// Named tensors whose first axis is the example, and which examples they are.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// use tenterhook_hooks::Batch;
/// let ids = Tensor::new(&[[1u32, 2, 3]], &Device::Cpu)?;
/// let next = Tensor::new(&[[2i64, 3, -100]], &Device::Cpu)?;
/// let batch = Batch::new(vec![41]).with("inputs", ids).with("targets", next);
/// assert_eq!(batch.get("inputs")?.dims(), [1, 3]);
/// assert!(batch.get("labels").is_err());
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batch {
    tensors: Vec<(String, Tensor)>,
    examples: Vec<u64>,
}

impl Batch {
    /// A batch of these examples, by their index in the data set.
    pub fn new(examples: Vec<u64>) -> Self {
        Self { tensors: Vec::new(), examples }
    }

    /// Token ids `[batch, pos]` and what comes next, [`IGNORED`] where nothing counts.
    pub fn tokens(inputs: Tensor, targets: Tensor, examples: Vec<u64>) -> Self {
        Self::new(examples).with("inputs", inputs).with("targets", targets)
    }

    /// The same with another tensor.
    pub fn with(mut self, name: impl Into<String>, tensor: Tensor) -> Self {
        self.tensors.push((name.into(), tensor));
        self
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        let found = self.tensors.iter().find(|(other, _)| other == name).map(|(_, tensor)| tensor);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.iter().map(|(name, _)| name).collect();
            candle_core::Error::Msg(format!("the batch has no `{name}`; it has {}", names.join(", ")))
        })
    }

    /// All tensors.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The examples it holds, by their index in the data set.
    pub fn examples(&self) -> &[u64] {
        &self.examples
    }

    /// How many tokens it holds: the elements of its integer inputs, or its examples where there are none.
    pub fn token_count(&self) -> usize {
        let inputs = self.get("inputs").ok().filter(|inputs| inputs.dtype() == DType::U32);
        inputs.map_or(self.examples.len(), Tensor::elem_count)
    }
}
