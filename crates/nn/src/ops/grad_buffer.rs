//! Where a fused op adds a parameter's gradient.

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
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

    /// Hands the buffer to `write`, empty when it is told `fresh`: it must then fill it. Otherwise it must add to what is there.
    fn accumulate<T: Real>(&self, write: impl FnOnce(&mut Vec<T>, bool)) -> Result<()> {
        let mut values = self.lock();
        let fresh = matches!(*values, Values::Empty);
        if fresh {
            *values = match T::DTYPE {
                DType::F32 => Values::F32(Vec::new()),
                _ => Values::F64(Vec::new()),
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

    /// Adds a gradient, or keeps it where none is there yet.
    fn add_owned<T: Real>(&self, mut gradient: Vec<T>) -> Result<()> {
        self.accumulate(|values: &mut Vec<T>, fresh| match fresh {
            true => *values = std::mem::take(&mut gradient),
            false => cpu::for_chunks(values, cpu::CHUNK, |start, values| {
                cpu::wide(
                    #[inline(always)]
                    || cpu::add_to(values, &gradient[start..]),
                );
            }),
        })
    }

    fn misfit(&self, param: &Tensor) -> Error {
        Error::msg(format!(
            "a gradient buffer of shape {:?} for a parameter of shape {:?}",
            self.shape,
            param.shape()
        ))
    }

    fn lock(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Brings the gradient of `param` where it belongs: nowhere when the parameter is not tracked (`write` is not even
/// called), into its buffer when it is a `Var` that has one, and to candle's tape otherwise.
/// `write` adds to what is there, which is zero when it is told that it is fresh.
pub(crate) fn deliver<T: Real>(
    param: &Tensor,
    buffer: Option<&Arc<GradBuffer>>,
    write: impl FnOnce(&mut [T], bool),
) -> Result<Option<Tensor>> {
    deliver_into(param, buffer, |len| vec![T::zero(); len], write)
}

/// The same for a `write` that sets every element of a fresh target: its zeros are spared.
pub(crate) fn deliver_written<T: Real>(
    param: &Tensor,
    buffer: Option<&Arc<GradBuffer>>,
    write: impl FnOnce(&mut [T], bool),
) -> Result<Option<Tensor>> {
    // SAFETY: `write` sets every element.
    deliver_into(param, buffer, |len| unsafe { cpu::uninit(len) }, write)
}

fn deliver_into<T: Real>(
    param: &Tensor,
    buffer: Option<&Arc<GradBuffer>>,
    fresh_values: impl FnOnce(usize) -> Vec<T>,
    write: impl FnOnce(&mut [T], bool),
) -> Result<Option<Tensor>> {
    if !param.track_op() {
        return Ok(None);
    }
    match buffer.filter(|_| param.is_variable()) {
        Some(buffer) if buffer.shape != *param.shape() => Err(buffer.misfit(param)),
        Some(buffer) => {
            let fill = |values: &mut Vec<T>, fresh| match fresh {
                // Moved in when it is complete: a panic leaves nothing half-written.
                true => {
                    let mut new = fresh_values(param.elem_count());
                    write(&mut new, true);
                    *values = new;
                }
                false => write(values, false),
            };
            buffer.accumulate(fill).map(|()| None)
        }
        None => {
            let mut values = fresh_values(param.elem_count());
            write(&mut values, true);
            cpu::tensor(values, param.shape()).map(Some)
        }
    }
}

/// The same for a gradient that is complete already: it moves to where nothing is yet.
pub(crate) fn deliver_owned<T: Real>(
    param: &Tensor,
    buffer: Option<&Arc<GradBuffer>>,
    gradient: Vec<T>,
) -> Result<Option<Tensor>> {
    match buffer.filter(|_| param.is_variable()) {
        Some(buffer) if buffer.shape == *param.shape() => buffer.add_owned(gradient).map(|()| None),
        Some(buffer) => Err(buffer.misfit(param)),
        None => cpu::tensor(gradient, param.shape()).map(Some),
    }
}
