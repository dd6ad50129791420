//! Sums over latents and over the rows of a decoder.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, DType, Layout, Result, Shape, Tensor};

use super::super::cpu::{self, dispatch};
use super::super::real::{Real, lane_sum};

/// The Euclidean norm of every row of `w [rows, columns]`.
pub fn row_norms(w: &Tensor) -> Result<Tensor> {
    w.dims2()?;
    match cpu::fused(w) {
        true => w.contiguous()?.apply_op1(RowNorms),
        false => w.sqr()?.sum(1)?.sqrt(),
    }
}

struct RowNorms;

impl RowNorms {
    fn forward<T: Real>(&self, w: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, columns) = layout.shape().dims2()?;
        let w = cpu::slice::<T>(w, layout)?;
        let mut norms = vec![T::zero(); rows];
        cpu::for_chunks(&mut norms, cpu::chunk_rows(columns), |start, norms| {
            for (row, norm) in (start..).zip(norms) {
                let row = &w[row * columns..(row + 1) * columns];
                *norm = lane_sum(columns, |i| row[i] * row[i]).sqrt();
            }
        });
        Ok((T::to_cpu_storage_owned(norms), Shape::from(rows)))
    }

    /// A row of zeros has no direction, and gets no gradient.
    fn backward<T: Real>(&self, w: &Tensor, norms: &Tensor, g: &Tensor) -> Result<Tensor> {
        let (_, columns) = w.dims2()?;
        let mut dw = vec![T::zero(); w.elem_count()];
        cpu::with_slice::<T, _>(w, |w| {
            cpu::with_slice::<T, _>(norms, |norms| {
                cpu::with_slice::<T, _>(g, |g| {
                    cpu::for_chunks(&mut dw, cpu::chunk_rows(columns) * columns, |start, dw| {
                        for (row, dw) in (start / columns..).zip(dw.chunks_exact_mut(columns)) {
                            if norms[row] > T::zero() {
                                let factor = g[row] / norms[row];
                                let w = &w[row * columns..(row + 1) * columns];
                                dw.iter_mut().zip(w).for_each(|(dw, w)| *dw = factor * *w);
                            }
                        }
                    });
                    Ok(())
                })
            })
        })?;
        cpu::tensor(dw, w.shape())
    }
}

impl CustomOp1 for RowNorms {
    fn name(&self) -> &'static str {
        "row_norms"
    }

    fn cpu_fwd(&self, w: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        dispatch!(w.dtype(), T => self.forward::<T>(w, layout))
    }

    fn bwd(&self, w: &Tensor, norms: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        dispatch!(w.dtype(), T => self.backward::<T>(w, norms, g)).map(Some)
    }
}

/// The sum of all elements of `x [rows, columns]`, each multiplied by the weight `[columns]` of its column.
pub fn weighted_sum(x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let (_, columns) = x.dims2()?;
    if weights.dims() != [columns] {
        candle_core::bail!("weighted_sum: {:?} weights for {columns} columns", weights.shape());
    }
    match cpu::fused(x) {
        true => x.contiguous()?.apply_op2(&weights.contiguous()?, WeightedSum),
        false => x.broadcast_mul(weights)?.sum_all(),
    }
}

struct WeightedSum;

impl WeightedSum {
    fn forward<T: Real>(
        &self,
        (x, xl): (&CpuStorage, &Layout),
        (w, wl): (&CpuStorage, &Layout),
    ) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (cpu::slice::<T>(x, xl)?, cpu::slice::<T>(w, wl)?);
        let columns = w.len().max(1);
        let of_rows = |_, rows: &[T]| {
            rows.chunks_exact(columns).fold(T::zero(), |sum, row| sum + lane_sum(columns, |i| row[i] * w[i]))
        };
        let parts = cpu::map_chunks(x, cpu::chunk_rows(columns) * columns, of_rows);
        let sum = parts.into_iter().fold(T::zero(), |sum, part| sum + part);
        Ok((T::to_cpu_storage_owned(vec![sum]), Shape::from(())))
    }

    fn backward<T: Real>(&self, x: &Tensor, w: &Tensor, g: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let columns = w.elem_count();
        let g: T = g.to_vec0()?;
        let dx = match x.track_op() {
            false => None,
            true => Some(cpu::with_slice::<T, _>(w, |w| {
                let mut dx = vec![T::zero(); x.elem_count()];
                cpu::for_chunks(&mut dx, cpu::chunk_rows(columns) * columns, |_, dx| {
                    for row in dx.chunks_exact_mut(columns) {
                        row.iter_mut().zip(w).for_each(|(dx, w)| *dx = g * *w);
                    }
                });
                cpu::tensor(dx, x.shape())
            })?),
        };
        let dw = match w.track_op() {
            false => None,
            true => Some(cpu::with_slice::<T, _>(x, |x| {
                let mut sums = vec![T::zero(); columns];
                cpu::add_column_sums(&mut sums, x, columns);
                cpu::tensor(sums.into_iter().map(|sum| g * sum).collect(), w.shape())
            })?),
        };
        Ok([dx, dw])
    }
}

impl CustomOp2 for WeightedSum {
    fn name(&self) -> &'static str {
        "weighted_sum"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        dispatch!(x.dtype(), T => self.forward::<T>((x, xl), (w, wl)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [dx, dw] = dispatch!(x.dtype(), T => self.backward::<T>(x, w, g))?;
        Ok((dx, dw))
    }
}

/// What the latents of a batch did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activity {
    /// In how many rows each latent was not zero.
    pub fired: Vec<u64>,
    /// The smallest positive activation, if there is one.
    pub least: Option<f64>,
}

impl Activity {
    /// How many activations were not zero.
    pub fn total(&self) -> u64 {
        self.fired.iter().sum()
    }
}

/// Which latents of `acts [rows, columns]` are not zero, and how often.
pub fn activity(acts: &Tensor) -> Result<Activity> {
    let (_, columns) = acts.dims2()?;
    let acts = acts.detach().to_device(&candle_core::Device::Cpu)?;
    let acts = if acts.dtype() == DType::F64 { acts } else { acts.to_dtype(DType::F32)? };
    dispatch!(acts.dtype(), T => cpu::with_slice::<T, _>(&acts, |acts| Ok(count::<T>(acts, columns))))
}

fn count<T: Real>(acts: &[T], columns: usize) -> Activity {
    // Few, large parts: each of them has a count for every latent.
    const PARTS: usize = 16;
    let rows = acts.len() / columns.max(1);
    let part = rows.div_ceil(PARTS).max(1) * columns.max(1);
    let of_rows = |_, rows: &[T]| {
        let (mut fired, mut least) = (vec![0u64; columns], T::infinity());
        for row in rows.chunks_exact(columns.max(1)) {
            for (fired, value) in fired.iter_mut().zip(row) {
                *fired += u64::from(*value != T::zero());
                least = if *value > T::zero() && *value < least { *value } else { least };
            }
        }
        (fired, least)
    };
    let parts = cpu::map_chunks(acts, part, of_rows);
    let (mut fired, mut least) = (vec![0; columns], T::infinity());
    for (part, smallest) in parts {
        fired.iter_mut().zip(part).for_each(|(sum, count)| *sum += count);
        least = if smallest < least { smallest } else { least };
    }
    let least = candle_core::WithDType::to_f64(least);
    Activity { fired, least: least.is_finite().then_some(least) }
}

#[cfg(test)]
mod tests {
    use super::super::super::check::{check_gradients, random};
    use super::super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::*;
    use candle_core::Device;

    #[test]
    fn gradients_are_those_of_finite_differences() {
        check_gradients("row_norms", &[random((7, 19), 1, DType::F64)], |v| row_norms(&v[0]));
        check_gradients("weighted_sum", &[random((7, 19), 1, DType::F64), random(19, 2, DType::F64)], |v| {
            weighted_sum(&v[0], &v[1])
        });
    }

    #[test]
    fn fused_like_composed_on_any_threads() -> Result<()> {
        let (x, w) = (random((300, 130), 1, DType::F32), random(130, 2, DType::F32));
        fused_like_composed("row_norms", std::slice::from_ref(&x), 1e-6, |v| row_norms(&v[0]))?;
        same_on_any_threads("row_norms", std::slice::from_ref(&x), |v| row_norms(&v[0]))?;
        fused_like_composed("weighted_sum", &[x.clone(), w.clone()], 1e-5, |v| weighted_sum(&v[0], &v[1]))?;
        same_on_any_threads("weighted_sum", &[x, w], |v| weighted_sum(&v[0], &v[1]))
    }

    #[test]
    fn activity_counts_what_is_not_zero() -> Result<()> {
        let acts = Tensor::new(&[[0f32, 2., -1.], [0., 0.5, 0.]], &Device::Cpu)?;
        let told = activity(&acts)?;
        assert_eq!((told.total(), told.least), (3, Some(0.5)));
        assert_eq!(told.fired, [0, 2, 1]);
        assert_eq!(activity(&acts.zeros_like()?)?, Activity { fired: vec![0; 3], least: None });
        Ok(())
    }
}
