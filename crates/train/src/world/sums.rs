//! Sums over ranks, in buckets and in a fixed order.
//!
//! Every rank sends the `i`-th part of a bucket to rank `i`, which adds up what it got, rank 0's first, and sends the sum to all. That moves
//! as much as a ring does, and the order of the additions is that of the ranks, whatever the machinery below chooses: all ranks get the same bits,
//! and so does the next run.

use bytemuck::Pod;
use candle_core::{DType, Error, Result, Tensor};
use tenterhook_nn::ops::wide;
use tenterhook_nn::parallel;

use super::World;
use crate::optim::{Real, read};

/// Elements that one task adds up.
const CHUNK: usize = 1 << 15;

/// The sums of tensors over all ranks, which have the same ones in the same order. At most `bucket` bytes are on their way at a time.
pub(crate) fn sum_all(world: &World, tensors: &[Tensor], bucket: usize) -> Result<Vec<Tensor>> {
    if let Some(other) = tensors.iter().find(|tensor| !matches!(tensor.dtype(), DType::F32 | DType::F64)) {
        return Err(Error::msg(format!(
            "gradients of {:?} cannot be summed, only f32 and f64",
            other.dtype()
        )));
    }
    let mut sums: Vec<Option<Tensor>> = vec![None; tensors.len()];
    sum_of_type::<f32>(world, tensors, DType::F32, bucket, &mut sums)?;
    sum_of_type::<f64>(world, tensors, DType::F64, bucket, &mut sums)?;
    Ok(sums.into_iter().flatten().collect())
}

fn sum_of_type<T: Real + Pod>(
    world: &World,
    tensors: &[Tensor],
    dtype: DType,
    bucket: usize,
    sums: &mut [Option<Tensor>],
) -> Result<()> {
    let of_type = tensors.iter().enumerate().filter(|(_, tensor)| tensor.dtype() == dtype);
    let of_type: Vec<(usize, Tensor)> =
        of_type.map(|(i, tensor)| Ok((i, tensor.contiguous()?))).collect::<Result<_>>()?;
    let mut buckets = Buckets::<T>::new(world, bucket);
    let mut open = Vec::new();
    for (i, tensor) in &of_type {
        open.push((*i, Vec::with_capacity(tensor.elem_count())));
        read(tensor, |values: &[T]| {
            let mut rest = values;
            while !rest.is_empty() {
                rest = buckets.fill(rest);
                if buckets.is_full() {
                    buckets.sum();
                    take(&buckets.sums, &mut open, tensors);
                }
            }
            Ok(())
        })?;
    }
    if !buckets.send.is_empty() {
        buckets.sum();
        take(&buckets.sums, &mut open, tensors);
    }
    for (i, values) in open {
        sums[i] = Some(Tensor::from_vec(values, tensors[i].shape(), tensors[i].device())?);
    }
    Ok(())
}

/// Gives a bucket's sums to the tensors that they belong to: one behind the other, as they went in.
fn take<T: Copy>(mut sums: &[T], open: &mut [(usize, Vec<T>)], tensors: &[Tensor]) {
    for (i, values) in open {
        let missing = tensors[*i].elem_count() - values.len();
        let (own, rest) = sums.split_at(missing.min(sums.len()));
        values.extend_from_slice(own);
        sums = rest;
    }
}

struct Buckets<'w, T> {
    world: &'w World,
    elements: usize,
    send: Vec<T>,
    received: Vec<T>,
    mine: Vec<T>,
    sums: Vec<T>,
}

impl<'w, T: Real + Pod> Buckets<'w, T> {
    fn new(world: &'w World, bytes: usize) -> Self {
        let elements = (bytes / size_of::<T>()).max(world.size());
        Self { world, elements, send: Vec::new(), received: Vec::new(), mine: Vec::new(), sums: Vec::new() }
    }

    /// Takes as many as there is room for, and returns the rest.
    fn fill<'v>(&mut self, values: &'v [T]) -> &'v [T] {
        let (now, later) = values.split_at(values.len().min(self.elements - self.send.len()));
        self.send.extend_from_slice(now);
        later
    }

    fn is_full(&self) -> bool {
        self.send.len() == self.elements
    }

    /// Sums up what is in the bucket, and empties it.
    fn sum(&mut self) {
        let (len, size) = (self.send.len(), self.world.size());
        let part = len.div_ceil(size);
        self.send.resize(part * size, T::zero());
        self.received.resize(part * size, T::zero());
        self.mine.resize(part, T::zero());
        self.sums.resize(part * size, T::zero());
        let transport = self.world.transport();
        transport.all_to_all(bytemuck::cast_slice(&self.send), bytemuck::cast_slice_mut(&mut self.received));
        let received = &self.received;
        parallel::for_chunks(&mut self.mine, CHUNK, |start, sums| {
            sums.copy_from_slice(&received[start..][..sums.len()]);
            for rank in 1..size {
                add(sums, &received[rank * part + start..][..sums.len()]);
            }
        });
        transport.all_gather(bytemuck::cast_slice(&self.mine), bytemuck::cast_slice_mut(&mut self.sums));
        self.sums.truncate(len);
        self.send.clear();
    }
}

fn add<T: Real>(sums: &mut [T], more: &[T]) {
    wide(
        #[inline(always)]
        || {
            for (sum, x) in sums.iter_mut().zip(more) {
                *sum += *x;
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::world::threads::in_threads;

    fn tensors(rank: usize) -> Vec<Tensor> {
        let of = |shape: &[usize], dtype| {
            let n: usize = shape.iter().product();
            let values: Vec<f64> =
                (0..n).map(|i| ((i * 7 + rank * 13) % 101) as f64 * 0.37 + 0.1 * rank as f64).collect();
            Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
        };
        vec![
            of(&[3, 5], DType::F32),
            of(&[1000], DType::F64),
            of(&[41, 17], DType::F32).t().unwrap(),
            of(&[], DType::F32),
            of(&[7], DType::F64),
        ]
    }

    #[test]
    fn p25_sums_are_those_of_the_ranks_in_order_whatever_the_bucket() {
        for size in [1, 2, 3, 4] {
            let expected: Vec<Tensor> = (1..size).fold(tensors(0), |sums, rank| {
                sums.iter().zip(tensors(rank)).map(|(sum, x)| (sum + x).unwrap()).collect()
            });
            for bucket in [1, 40, 1000, 1 << 20] {
                let all = in_threads(size, |world| sum_all(&world, &tensors(world.rank()), bucket).unwrap());
                for sums in all {
                    assert_eq!(sums.len(), expected.len());
                    for (sum, expected) in sums.iter().zip(&expected) {
                        assert_eq!((sum.shape(), sum.dtype()), (expected.shape(), expected.dtype()));
                        let bits = |x: &Tensor| -> Vec<u64> {
                            let x = x.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
                            x.to_vec1::<f64>().unwrap().iter().map(|x| x.to_bits()).collect()
                        };
                        assert_eq!(bits(sum), bits(expected), "{size} ranks, {bucket} bytes");
                    }
                }
            }
        }
    }

    #[test]
    fn other_numbers_are_refused() {
        let x = Tensor::zeros(3, DType::BF16, &Device::Cpu).unwrap();
        assert!(sum_all(&World::alone(), &[x], 100).unwrap_err().to_string().contains("BF16"));
    }
}
