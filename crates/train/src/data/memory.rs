//! Tensors as a data set.

use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};
use tenterhook_hooks::Batch;

use super::fingerprint::Fnv;
use super::{DataError, Dataset};

/// Named tensors whose first axis is the example: any inputs and targets, not only tokens.
#[derive(Clone, Debug)]
pub struct InMemory {
    tensors: Vec<(String, Tensor)>,
    len: u64,
    /// Where `inputs` are token ids.
    vocab: Option<u64>,
}

impl InMemory {
    /// A set of these tensors. They must have names of their own and first axes of the same length.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// use tenterhook_train::data::{Dataset, InMemory};
    /// let x = Tensor::new(&[[0f32, 0.], [0., 1.], [1., 0.], [1., 1.]], &Device::Cpu)?;
    /// let y = Tensor::new(&[0i64, 1, 1, 0], &Device::Cpu)?;
    /// let xor = InMemory::new(vec![("inputs".into(), x), ("targets".into(), y)])?;
    /// let batch = xor.batch(&[2, 0], &Device::Cpu)?;
    /// assert_eq!(batch.get("inputs")?.to_vec2::<f32>()?, [[1., 0.], [0., 0.]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(tensors: Vec<(String, Tensor)>) -> Result<Self, DataError> {
        let mut problems = Vec::new();
        let length = |tensor: &Tensor| tensor.dims().first().copied();
        let expected = tensors.first().and_then(|(_, tensor)| length(tensor)).unwrap_or(0);
        if tensors.is_empty() {
            problems.push("there is no tensor; give at least `inputs`".to_string());
        }
        for (i, (name, tensor)) in tensors.iter().enumerate() {
            if tensors[..i].iter().any(|(other, _)| other == name) {
                problems.push(format!("two tensors are named `{name}`"));
            }
            match length(tensor) {
                None => problems.push(format!("`{name}` is a scalar; its first axis must be the example")),
                Some(other) if other != expected => problems.push(format!(
                    "`{name}` has {other} examples, and `{}` has {expected}; they must agree",
                    tensors[0].0
                )),
                // Rows are gathered with 32-bit indices.
                Some(other) if other == 0 || other > u32::MAX as usize => {
                    problems.push(format!("`{name}` has {other} examples; use 1 to {}", u32::MAX));
                }
                Some(_) => {}
            }
        }
        DataError::options("in memory", problems)?;
        let ids = tensors.iter().find(|(name, tensor)| name == "inputs" && tensor.dtype() == DType::U32);
        let vocab = match ids {
            Some((_, ids)) if ids.elem_count() > 0 => Some(u64::from(ids.max_all()?.to_scalar::<u32>()?) + 1),
            _ => None,
        };
        // Rows can only be gathered from what is contiguous, and data needs no tape.
        let tensors = tensors.into_iter().map(|(name, tensor)| Ok((name, tensor.detach().contiguous()?)));
        let tensors = tensors.collect::<Result<_, DataError>>()?;
        Ok(Self { tensors, len: expected as u64, vocab })
    }
}

impl Dataset for InMemory {
    fn len(&self) -> u64 {
        self.len
    }

    fn batch(&self, indices: &[u64], device: &Device) -> Result<Batch, DataError> {
        if let Some(index) = indices.iter().copied().find(|index| *index >= self.len) {
            return Err(DataError::NoExample { index, len: self.len });
        }
        let rows: Vec<u32> = indices.iter().map(|index| *index as u32).collect();
        let mut batch = Batch::new(indices.to_vec());
        for (name, tensor) in &self.tensors {
            let rows = Tensor::new(rows.as_slice(), tensor.device())?;
            batch = batch.with(name, tensor.index_select(&rows, 0)?.to_device(device)?);
        }
        Ok(batch)
    }

    fn fingerprint(&self) -> Value {
        let tensors = self.tensors.iter().map(|(name, tensor)| {
            let mut hash = Fnv::new();
            let hashed = tensor.to_device(&Device::Cpu).and_then(|tensor| tensor.write_bytes(&mut hash));
            json!({
                "name": name,
                "shape": tensor.dims(),
                "dtype": tensor.dtype().as_str(),
                "fnv1a": hashed.ok().map(|()| hash.hex()),
            })
        });
        json!({"kind": "in_memory", "tensors": tensors.collect::<Vec<_>>()})
    }

    fn vocab(&self) -> Option<u64> {
        self.vocab
    }

    fn sequence_length(&self) -> Option<usize> {
        let ids = self.vocab.and_then(|_| self.tensors.iter().find(|(name, _)| name == "inputs"));
        ids.and_then(|(_, ids)| ids.dims().get(1).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(tensors: Vec<(&str, Tensor)>) -> Result<InMemory, DataError> {
        InMemory::new(tensors.into_iter().map(|(name, tensor)| (name.to_string(), tensor)).collect())
    }

    fn floats(rows: usize, columns: usize) -> Tensor {
        Tensor::arange(0f32, (rows * columns) as f32, &Device::Cpu).unwrap().reshape((rows, columns)).unwrap()
    }

    #[test]
    fn rows_come_in_the_order_asked_for() {
        // A transposed view: rows are columns of what lies in memory.
        let inputs = floats(2, 5).t().unwrap();
        let targets = Tensor::new(&[9u8, 8, 7, 6, 5], &Device::Cpu).unwrap();
        let set = named(vec![("inputs", inputs), ("labels", targets)]).unwrap();
        assert_eq!((set.len(), set.vocab(), set.sequence_length()), (5, None, None));
        let batch = set.batch(&[4, 0, 4], &Device::Cpu).unwrap();
        assert_eq!(batch.get("inputs").unwrap().to_vec2::<f32>().unwrap(), [[4., 9.], [0., 5.], [4., 9.]]);
        assert_eq!(batch.get("labels").unwrap().to_vec1::<u8>().unwrap(), [5, 9, 5]);
        assert_eq!(batch.examples(), [4, 0, 4]);
        assert!(matches!(set.batch(&[5], &Device::Cpu), Err(DataError::NoExample { index: 5, len: 5 })));
    }

    #[test]
    fn token_inputs_tell_vocabulary_and_length() {
        let ids = Tensor::new(&[[1u32, 2, 3], [4, 11, 6]], &Device::Cpu).unwrap();
        let set = named(vec![("inputs", ids)]).unwrap();
        assert_eq!((set.vocab(), set.sequence_length()), (Some(12), Some(3)));
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let scalar = Tensor::new(1f32, &Device::Cpu).unwrap();
        let error =
            named(vec![("a", floats(3, 1)), ("a", floats(2, 1)), ("b", scalar)]).unwrap_err().to_string();
        for part in ["two tensors are named `a`", "`a` has 2 examples, and `a` has 3", "`b` is a scalar"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(named(vec![]).unwrap_err().to_string().contains("there is no tensor"));
        assert!(named(vec![("a", floats(0, 2))]).unwrap_err().to_string().contains("has 0 examples"));
    }

    #[test]
    fn the_fingerprint_sees_values() {
        let of = |tensor| named(vec![("inputs", tensor)]).unwrap().fingerprint();
        assert_eq!(of(floats(2, 2)), of(floats(2, 2)));
        assert_ne!(of(floats(2, 2)), of((floats(2, 2) + 1.0).unwrap()));
        assert_ne!(of(floats(2, 2)), of(floats(4, 1)));
    }
}
