//! Dropout whose mask is a function of a random stream: nothing is stored, and a resumed run drops the same elements.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, WithDType};
use tenterhook_hooks::random::Stream;

use super::cpu::{self, CHUNK, dispatch};
use super::real::Real;

/// Sets every element to zero with probability `p` and multiplies the others by `1 / (1 - p)`.
///
/// Element `i` (row-major) is kept when word `i % 4` of `stream.block(i / 4)` is at least `p * 2^32`. The same
/// stream gives the same mask on every device; use one stream per place and step. Where `x` is a part of a larger batch, its first row is
/// row `first_row` of that, and its mask that part of the batch's.
pub fn dropout(x: &Tensor, p: f64, stream: &Stream, first_row: usize) -> Result<Tensor> {
    if !(0.0..1.0).contains(&p) {
        candle_core::bail!("dropout: the probability must be in [0, 1), not {p}");
    }
    if p == 0.0 {
        return Ok(x.clone());
    }
    let row = x.elem_count() / x.dims().first().map_or(1, |rows| *rows).max(1);
    let mask = Mask {
        stream: *stream,
        first: first_row as u64 * row as u64,
        threshold: (p * 4_294_967_296.0).round() as u32,
        scale: 1.0 / (1.0 - p),
    };
    if cpu::fused(x) {
        return x.contiguous()?.apply_op1(mask);
    }
    let mask = cpu::tensor(mask.apply(&vec![1f32; x.elem_count()]), x.shape())?;
    x * mask.to_device(x.device())?.to_dtype(x.dtype())?
}

struct Mask {
    stream: Stream,
    /// Which element of the stream is the first of the tensor.
    first: u64,
    threshold: u32,
    scale: f64,
}

impl Mask {
    fn apply<T: Real>(&self, x: &[T]) -> Vec<T> {
        // Words per block, and blocks made at a time.
        const WORDS: usize = 4;
        const BLOCKS: usize = 8;
        const GROUP: usize = WORDS * BLOCKS;
        const { assert!(CHUNK.is_multiple_of(GROUP)) };
        let (first_block, skipped) = (self.first / WORDS as u64, (self.first % WORDS as u64) as usize);
        let scale = T::of(self.scale);
        // SAFETY: every element is written.
        let mut y = unsafe { cpu::uninit::<T>(x.len()) };
        cpu::for_chunks(&mut y, CHUNK, |start, y| {
            cpu::wide(
                #[inline(always)]
                || {
                    for (i, (y, x)) in y.chunks_mut(GROUP).zip(x[start..].chunks(GROUP)).enumerate() {
                        let block = first_block + (start / WORDS + i * BLOCKS) as u64;
                        // One more than is needed, where the first of them is used in part.
                        let blocks = self.stream.blocks::<{ BLOCKS + 1 }>(block);
                        for ((y, &x), word) in y.iter_mut().zip(x).zip(&blocks.as_flattened()[skipped..]) {
                            *y = if *word >= self.threshold { x * scale } else { T::zero() };
                        }
                    }
                },
            );
        });
        y
    }
}

impl CustomOp1 for Mask {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        dispatch!(x.dtype(), T => {
            let y = self.apply::<T>(cpu::slice(x, layout)?);
            Ok((T::to_cpu_storage_owned(y), layout.shape().clone()))
        })
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let dx = dispatch!(x.dtype(), T => {
            cpu::with_slice::<T, _>(g, |g| cpu::tensor(self.apply(g), x.shape()))
        });
        dx.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{assert_same_bits, check_gradients, random, values};
    use super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::*;
    use candle_core::{DType, Device, Var};

    #[test]
    fn keeps_the_mean_and_the_share() -> Result<()> {
        let n = 200_001;
        let x = Tensor::ones(n, DType::F32, &Device::Cpu)?;
        for p in [0.1, 0.5, 0.9] {
            let y = values(&dropout(&x, p, &Stream::new(3).named("test"), 0)?);
            let dropped = y.iter().filter(|&&y| y == 0.0).count() as f64 / n as f64;
            assert!((dropped - p).abs() < 4.0 * (p * (1.0 - p) / n as f64).sqrt(), "{p}: {dropped}");
            assert!(y.iter().all(|&y| y == 0.0 || (y - 1.0 / (1.0 - p)).abs() < 1e-6));
        }
        Ok(())
    }

    #[test]
    fn the_mask_is_that_of_the_stream_forward_and_backward() -> Result<()> {
        let stream = Stream::new(3).named("test").at(5);
        let x = Var::from_tensor(&Tensor::ones((7, 5), DType::F64, &Device::Cpu)?)?;
        let y = dropout(&x.t()?, 0.25, &stream, 0)?;
        let mask = values(&y);
        let kept = |i: usize| stream.block(i as u64 / 4)[i % 4] >= 1 << 30;
        assert!(mask.iter().enumerate().all(|(i, &y)| (y != 0.0) == kept(i)));
        let store = y.sum_all()?.backward()?;
        let Some(dx) = store.get(&x) else { panic!("no gradient") };
        assert_eq!(values(&dx.t()?), mask);
        let other = dropout(&x.t()?, 0.25, &stream.at(6), 0)?;
        assert_ne!(values(&other), mask);
        check_gradients("dropout", &[random((7, 5), 1, DType::F64)], |v| {
            dropout(&v[0].t()?, 0.25, &stream, 0)
        });
        Ok(())
    }

    #[test]
    fn fused_like_composed_on_any_threads() -> Result<()> {
        let stream = Stream::new(9);
        let x = [random((211, 307), 4, DType::F32)];
        fused_like_composed("dropout", &x, 1e-6, |v| dropout(&v[0], 0.3, &stream, 0))?;
        same_on_any_threads("dropout", &x, |v| dropout(&v[0].t()?, 0.3, &stream, 0))
    }

    #[test]
    fn the_probability_is_checked() -> Result<()> {
        let x = random(5, 4, DType::F32);
        assert_same_bits("p = 0", &dropout(&x, 0.0, &Stream::new(0), 0)?, &x);
        for p in [-0.1, 1.0, f64::NAN] {
            assert!(dropout(&x, p, &Stream::new(0), 0).is_err());
        }
        Ok(())
    }

    #[test]
    fn p25_parts_of_a_batch_have_the_mask_of_the_batch() -> Result<()> {
        let stream = Stream::new(3).named("test");
        let x = Tensor::ones((9, 7, 5), DType::F32, &Device::Cpu)?; // 35 elements a row: parts begin within a block of words
        let whole = dropout(&x, 0.5, &stream, 0)?;
        for first in 0..9 {
            let part = dropout(&x.narrow(0, first, 9 - first)?, 0.5, &stream, first)?;
            assert_same_bits("part", &part, &whole.narrow(0, first, 9 - first)?);
        }
        Ok(())
    }
}
