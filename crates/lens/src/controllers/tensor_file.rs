//! Tensors that controllers read from files.

use std::path::Path;

use candle_core::{DType, Tensor};
use tenterhook_hooks::{AttachError, nearest};
use tenterhook_models::files::{read_tensors, save_tensors};

use crate::error::LensError;

/// The tensor of this name in a safetensors file, as f32.
pub fn read_tensor(path: &Path, key: &str) -> Result<Tensor, LensError> {
    let tensors = read_tensors(path)?;
    let found = tensors.iter().find(|(name, _)| name == key);
    let (_, tensor) = found.ok_or_else(|| {
        let names = || tensors.iter().map(|(name, _)| name.as_str());
        let near = nearest(key, names(), 3);
        let near = if near.is_empty() { names().take(3).map(str::to_string).collect() } else { near };
        LensError::BadInput(format!(
            "{} has no tensor `{key}` of real numbers; {}",
            path.display(),
            if near.is_empty() {
                "it has none at all".to_string()
            } else {
                format!("nearest: {}", near.join(", "))
            }
        ))
    })?;
    finite(path, key, tensor.to_dtype(DType::F32)?)
}

/// Writes one tensor to a safetensors file: the whole of it, or nothing.
pub fn save_tensor(path: &Path, key: &str, tensor: &Tensor) -> Result<(), LensError> {
    Ok(save_tensors(path, &[(key.to_string(), tensor.clone())])?)
}

fn finite(path: &Path, key: &str, tensor: Tensor) -> Result<Tensor, LensError> {
    let values = tensor.flatten_all()?.to_vec1::<f32>()?;
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(tensor),
        false => Err(LensError::BadInput(format!(
            "{}: the tensor `{key}` has values that are NaN or infinite",
            path.display()
        ))),
    }
}

/// A tensor in the type and place of another, so that both can be calculated with.
pub(super) fn like(tensor: &Tensor, x: &Tensor) -> candle_core::Result<Tensor> {
    tensor.to_device(x.device())?.to_dtype(x.dtype())
}

/// Refuses a tensor that does not broadcast to the tensor at a point.
pub(super) fn check_shape(tensor: &Tensor, x: &Tensor, at: &str) -> Result<(), tenterhook_hooks::Refused> {
    let (own, given) = (tensor.dims(), x.dims());
    let fits = own.len() <= given.len()
        && own.iter().rev().zip(given.iter().rev()).all(|(own, given)| own == given || *own == 1);
    match fits {
        true => Ok(()),
        false => Err(tenterhook_hooks::Refused(format!(
            "the tensor that is put in has the shape {own:?}, which does not go with {given:?} at `{at}`"
        ))),
    }
}

/// What went wrong with a file, as a problem of an option.
pub(super) fn problem(kind: &str, error: LensError) -> AttachError {
    AttachError::BadOptions { kind: kind.to_string(), problems: vec![error.to_string()] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn what_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.safetensors");
        assert!(read_tensor(&path, "vector").unwrap_err().to_string().contains("v.safetensors"));
        save_tensor(&path, "vector", &Tensor::new(&[1f32, 2.0], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(read_tensor(&path, "vector").unwrap().to_vec1::<f32>().unwrap(), [1.0, 2.0]);
        let error = read_tensor(&path, "vectors").unwrap_err().to_string();
        assert!(error.contains("has no tensor `vectors` of real numbers; nearest: vector"), "{error}");
        save_tensor(&path, "vector", &Tensor::new(&[1f32, f32::NAN], &Device::Cpu).unwrap()).unwrap();
        assert!(read_tensor(&path, "vector").unwrap_err().to_string().contains("NaN"));
    }
}
