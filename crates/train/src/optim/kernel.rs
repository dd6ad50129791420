//! The pass over the elements of one parameter: in place, in fixed chunks, in parallel.

use std::marker::PhantomData;
use std::sync::Mutex;

use candle_core::{CpuStorage, Error, InplaceOp1, Layout, Result, Storage, Tensor, WithDType};
use tenterhook_nn::ops::wide;
use tenterhook_nn::parallel::{self, Chunks};

/// Elements handled by one parallel task. Fixed, so that results do not depend on the thread count.
pub(super) const CHUNK: usize = 1 << 15;

/// f32 and f64.
pub(crate) trait Real: WithDType + std::ops::Neg<Output = Self> + std::ops::AddAssign {
    /// Values below this are far enough from overflow that rounding cannot matter.
    const SAFE: f64;
    fn sqrt(self) -> Self;
    /// The largest magnitude; NaN and infinity count as larger than all numbers.
    fn largest(values: &[Self]) -> f64;
    fn slice_mut(storage: &mut CpuStorage) -> Option<&mut [Self]>;
}

impl Real for f32 {
    const SAFE: f64 = 1e37;

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }

    // Magnitudes order as their bits do: a whole-number maximum needs no branch, and NaN is above infinity.
    fn largest(values: &[Self]) -> f64 {
        let bits = wide(
            #[inline(always)]
            || values.iter().fold(0, |most: u32, x| most.max(x.to_bits() & (u32::MAX >> 1))),
        );
        f64::from(f32::from_bits(bits))
    }

    fn slice_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
        match storage {
            CpuStorage::F32(values) => Some(values),
            _ => None,
        }
    }
}

impl Real for f64 {
    const SAFE: f64 = 1e307;

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }

    fn largest(values: &[Self]) -> f64 {
        let bits = values.iter().fold(0, |most: u64, x| most.max(x.to_bits() & (u64::MAX >> 1)));
        f64::from_bits(bits)
    }

    fn slice_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
        match storage {
            CpuStorage::F64(values) => Some(values),
            _ => None,
        }
    }
}

/// What happens to one element: its weight, its gradient and the `N` numbers kept for it.
pub(super) trait Rule<T, const N: usize>: Copy + Sync {
    /// The new weight and the new numbers.
    fn next(&self, weight: T, grad: T, state: [T; N]) -> (T, [T; N]);
}

/// What is done to a gradient on its way in.
#[derive(Clone, Copy)]
pub(super) struct Scaling<T> {
    pub(super) scale: T,
    /// Infinite where there is no clamp, so that the loop has no branch.
    pub(super) clamp: T,
}

impl<T: Real> Scaling<T> {
    #[inline(always)]
    fn apply(&self, grad: T) -> T {
        let grad = grad * self.scale;
        let grad = if grad > self.clamp { self.clamp } else { grad };
        if grad < -self.clamp { -self.clamp } else { grad }
    }
}

/// One pass over a parameter and its state, in place.
pub(super) fn update<T: Real, const N: usize>(
    rule: &impl Rule<T, N>,
    scaling: Scaling<T>,
    weight: &Tensor,
    grad: &Tensor,
    state: &[Tensor],
) -> Result<()> {
    let tensors: Vec<&Tensor> = std::iter::once(weight).chain(state).collect();
    read(grad, |grad: &[T]| {
        write(&tensors, Vec::new(), &mut |mut slices: Vec<&mut [T]>| {
            let weight = slices.remove(0);
            let state: [&mut [T]; N] =
                slices.try_into().map_err(|_| Error::msg("an optimizer's state is incomplete"))?;
            update_slices(rule, scaling, weight, grad, state);
            Ok(())
        })
    })
}

fn update_slices<T: Real, const N: usize>(
    rule: &impl Rule<T, N>,
    scaling: Scaling<T>,
    weight: &mut [T],
    grad: &[T],
    state: [&mut [T]; N],
) {
    let weights = Chunks::of(weight, CHUNK);
    let states = state.map(|values| Chunks::of(values, CHUNK));
    parallel::for_each(weights.count(), |i| {
        // SAFETY: every part is asked for once.
        let (weight, state) = unsafe { (weights.get(i), states.each_ref().map(|parts| parts.get(i))) };
        Chunk { grad: &grad[i * CHUNK..][..weight.len()], weight, state }.update(rule, scaling);
    });
}

struct Chunk<'a, T, const N: usize> {
    weight: &'a mut [T],
    grad: &'a [T],
    state: [&'a mut [T]; N],
}

impl<T: Real, const N: usize> Chunk<'_, T, N> {
    fn update(&mut self, rule: &impl Rule<T, N>, scaling: Scaling<T>) {
        /// Elements that are worked on together: a vector of f32, two of f64.
        const LANES: usize = 16;
        let len = self.weight.len();
        assert!(self.grad.len() == len && self.state.iter().all(|values| values.len() == len));
        let whole = len / LANES * LANES;
        // A rule behind a reference could change with every store, for all that the compiler knows.
        let rule = *rule;
        wide(
            #[inline(always)]
            || {
                for start in (0..whole).step_by(LANES) {
                    // SAFETY: there are so many elements from here on, in all of them.
                    unsafe { self.update_lanes::<LANES>(rule, scaling, start) };
                }
                for start in whole..len {
                    // SAFETY: there is one more.
                    unsafe { self.update_lanes::<1>(rule, scaling, start) };
                }
            },
        );
    }

    /// In arrays, which become vectors: the compiler does not see that slices in an array are as long as each other and lie apart, and would take
    /// one element after the other.
    ///
    /// # Safety
    /// There must be `L` elements from `start` on.
    #[inline(always)]
    unsafe fn update_lanes<const L: usize>(
        &mut self,
        rule: impl Rule<T, N>,
        scaling: Scaling<T>,
        start: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let weight_at: *mut [T; L] = self.weight.as_mut_ptr().add(start).cast();
            let state_at: [*mut [T; L]; N] =
                self.state.each_mut().map(|values| values.as_mut_ptr().add(start).cast());
            let grad: [T; L] = *self.grad.as_ptr().add(start).cast();
            let (mut weight, mut state) = (*weight_at, state_at.map(|values| *values));
            for lane in 0..L {
                let old = std::array::from_fn(|k| state[k][lane]);
                let (new_weight, new) = rule.next(weight[lane], scaling.apply(grad[lane]), old);
                weight[lane] = new_weight;
                for k in 0..N {
                    state[k][lane] = new[k];
                }
            }
            *weight_at = weight;
            for k in 0..N {
                *state_at[k] = state[k];
            }
        }
    }
}

/// The largest magnitude in a tensor; not finite if any element is not.
pub(super) fn largest<T: Real>(tensor: &Tensor) -> Result<f64> {
    read(tensor, |values: &[T]| {
        let parts = parallel::map_chunks(values, CHUNK, |_, part| T::largest(part));
        // Compared by bits, as within a chunk: `max` would lose NaN.
        Ok(f64::largest(&parts))
    })
}

/// Calls `f` with the elements of a CPU tensor in row-major order (copied first where it is a strided view).
pub(crate) fn read<T: Real, R>(tensor: &Tensor, f: impl FnOnce(&[T]) -> Result<R>) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(storage), Some((start, end))) => f(&storage.as_slice::<T>()?[start..end]),
        _ => Err(Error::msg("an in-place optimizer needs a tensor on the CPU")),
    }
}

/// Whether two CPU tensors share memory: one must then be copied, or writing one would wait for reading the other.
pub(super) fn share_memory(a: &Tensor, b: &Tensor) -> bool {
    let address = |tensor: &Tensor| match &*tensor.storage_and_layout().0 {
        Storage::Cpu(CpuStorage::F32(values)) => values.as_ptr().addr(),
        Storage::Cpu(CpuStorage::F64(values)) => values.as_ptr().addr(),
        _ => 0,
    };
    address(a) == address(b)
}

/// Calls `f` with the elements of all tensors, to be written. candle hands out one tensor at a time, inside an op:
/// hence one level of calls for each.
fn write<T: Real>(
    tensors: &[&Tensor],
    slices: Vec<&mut [T]>,
    f: &mut dyn FnMut(Vec<&mut [T]>) -> Result<()>,
) -> Result<()> {
    let Some((first, rest)) = tensors.split_first() else { return f(slices) };
    let inner = |slice: &mut [T]| {
        let mut slices = slices;
        slices.push(slice);
        write(rest, slices, f)
    };
    first.inplace_op1(&Write { f: Mutex::new(Some(inner)), of: PhantomData })
}

struct Write<T, F> {
    f: Mutex<Option<F>>,
    of: PhantomData<T>,
}

impl<T: Real, F: FnOnce(&mut [T]) -> Result<()>> InplaceOp1 for Write<T, F> {
    fn name(&self) -> &'static str {
        "optimizer step"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let wrong = || Error::msg("an in-place optimizer needs contiguous tensors of one number type");
        let (start, end) = layout.contiguous_offsets().ok_or_else(wrong)?;
        let values = T::slice_mut(storage).ok_or_else(wrong)?;
        let f = self.f.lock().ok().and_then(|mut f| f.take()).ok_or_else(wrong)?;
        f(&mut values[start..end])
    }
}
