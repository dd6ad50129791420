//! Where a fused op adds a parameter's gradient.

use candle_core::{DType, Device, Result, Shape, Tensor};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{cpu, real::Real};

/// The gradient of one parameter, added up in place.
///
/// candle's tape makes a fresh tensor of zeros and a sum for every use of a parameter. A fused op that is given
/// a buffer adds its contribution here instead and hands nothing to the tape.
#[derive(Debug)]
pub struct GradBuffer {
    shape: Shape,
    values: Mutex<Values>,
}

#[derive(Debug)]
enum Values {
    Empty,
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl GradBuffer {
    /// An empty buffer for a parameter of this shape; nothing is allocated before the first gradient arrives.
    pub fn new(shape: impl Into<Shape>) -> Self {
        Self { shape: shape.into(), values: Mutex::new(Values::Empty) }
    }

    /// Takes the gradient out, if one arrived, and leaves the buffer empty.
    pub fn take(&self) -> Result<Option<Tensor>> {
        match std::mem::replace(&mut *self.lock(), Values::Empty) {
            Values::Empty => Ok(None),
            Values::F32(values) => Tensor::from_vec(values, self.shape.clone(), &Device::Cpu).map(Some),
            Values::F64(values) => Tensor::from_vec(values, self.shape.clone(), &Device::Cpu).map(Some),
        }
    }

    /// Hands the buffer to `write`, which must set every element when told `fresh` and add to it otherwise.
    pub(crate) fn accumulate<T: Real>(&self, write: impl FnOnce(&mut [T], bool)) -> Result<()> {
        let mut values = self.lock();
        let fresh = matches!(*values, Values::Empty);
        if fresh {
            *values = match T::DTYPE {
                DType::F32 => Values::F32(vec![0.0; self.shape.elem_count()]),
                _ => Values::F64(vec![0.0; self.shape.elem_count()]),
            };
        }
        // The two arms are the same code for the two types; `Any` finds out which one `T` is.
        let slice: &mut dyn std::any::Any = match &mut *values {
            Values::F32(values) => values,
            Values::F64(values) => values,
            Values::Empty => return Ok(()),
        };
        match slice.downcast_mut::<Vec<T>>() {
            Some(slice) => write(slice, fresh),
            None => candle_core::bail!("gradient of another dtype than the one already in the buffer"),
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Brings the gradient of `param` where it belongs: nowhere when the parameter is not tracked (`write` is not even
/// called), into its buffer when it is a `Var` that has one, and to candle's tape otherwise.
/// `write` keeps the promise of [`GradBuffer::accumulate`]; a fresh target holds zeros.
pub(crate) fn deliver<T: Real>(
    param: &Tensor,
    buffer: Option<&Arc<GradBuffer>>,
    write: impl FnOnce(&mut [T], bool),
) -> Result<Option<Tensor>> {
    if !param.track_op() {
        return Ok(None);
    }
    match buffer.filter(|_| param.is_variable()) {
        Some(buffer) if buffer.shape != *param.shape() => candle_core::bail!(
            "a gradient buffer of shape {:?} for a parameter of shape {:?}",
            buffer.shape,
            param.shape()
        ),
        Some(buffer) => buffer.accumulate(write).map(|()| None),
        None => {
            let mut values = vec![T::zero(); param.elem_count()];
            write(&mut values, true);
            cpu::tensor(values, param.shape()).map(Some)
        }
    }
}
