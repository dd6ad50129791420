//! Activation functions that keep the largest pre-activations.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor};
use std::sync::Arc;

use super::super::cpu::{self, dispatch};
use super::super::real::Real;
use super::select::{cut_of_batch, key, largest_of_row};
use crate::parallel;

/// How many elements are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keep {
    /// So many of every row.
    PerRow(usize),
    /// So many per row on average: the largest positive ones of the whole batch.
    PerBatch(f64),
}

/// What [`top_k`] keeps.
#[derive(Clone, Debug)]
pub struct TopKSpec {
    /// How many.
    pub keep: Keep,
    /// Positive factors per column, `[columns]`: elements are compared, and come out, multiplied by them. They are taken as constants.
    pub scale: Option<Tensor>,
    /// Only these columns take part.
    pub only: Option<Arc<Vec<bool>>>,
    /// Whether what is kept and negative becomes 0.
    pub relu: bool,
}

impl TopKSpec {
    /// Keeps so many, without factors, in all columns, with negative ones set to 0.
    pub fn new(keep: Keep) -> Self {
        Self { keep, scale: None, only: None, relu: true }
    }
}

impl TopKSpec {
    /// What is kept of a row: columns, ascending, and values.
    pub(super) fn of_row<T: Real>(&self, row: &[T], scale: Option<&[T]>, k: usize) -> Vec<(usize, T)> {
        let only = self.only.as_deref();
        let value = |column: usize| match (only, scale) {
            (Some(only), _) if !only[column] => T::neg_infinity(),
            (_, Some(scale)) => row[column] * scale[column],
            (_, None) => row[column],
        };
        let survives = |value: T| !self.relu || value > T::zero() || value.is_nan();
        let kept = largest_of_row(row.len(), k, value).into_iter().map(|column| (column, value(column)));
        kept.filter(|(_, value)| survives(*value) && *value != T::neg_infinity()).collect()
    }
}

/// Keeps the largest elements of `x [.., columns]` and sets all others to 0. Of equal ones those that come first are kept. The gradient
/// goes to what was kept.
pub fn top_k(x: &Tensor, spec: &TopKSpec) -> Result<Tensor> {
    let columns = *x.dims().last().unwrap_or(&0);
    match spec.keep {
        Keep::PerRow(k) if k == 0 || k > columns => {
            candle_core::bail!("top_k: {k} of {columns} elements cannot be kept")
        }
        Keep::PerBatch(k) if !(k > 0.0 && k <= columns as f64) => {
            candle_core::bail!("top_k: {k} of {columns} elements cannot be kept on average")
        }
        Keep::PerBatch(_) if !spec.relu || spec.only.is_some() => {
            candle_core::bail!("top_k: over a whole batch only positive elements of all columns are kept")
        }
        _ => {}
    }
    if spec.scale.as_ref().is_some_and(|scale| scale.dims() != [columns])
        || spec.only.as_ref().is_some_and(|only| only.len() != columns)
    {
        candle_core::bail!(
            "top_k: there must be one factor and one choice per column, and there are {columns}"
        );
    }
    let detached = || spec.scale.as_ref().map(Tensor::detach);
    if cpu::fused(x) {
        let scale = detached().map(|scale| scale.to_dtype(x.dtype())).transpose()?;
        return x.contiguous()?.apply_op1(TopKOp { spec: TopKSpec { scale, ..spec.clone() } });
    }
    // Elsewhere the choice is made on the CPU, and the gradient goes through a product.
    let on_cpu = x.detach().to_device(&Device::Cpu)?.to_dtype(DType::F32)?.contiguous()?;
    let scale = detached().map(|scale| scale.to_device(&Device::Cpu)?.to_dtype(DType::F32)).transpose()?;
    let chosen = cpu_choice(&on_cpu, &TopKSpec { scale, ..spec.clone() })?;
    let x = match detached() {
        Some(scale) => x.broadcast_mul(&scale.to_dtype(x.dtype())?)?,
        None => x.clone(),
    };
    &x * chosen.to_device(x.device())?.to_dtype(x.dtype())?
}

/// 1 where something is kept, else 0, for an f32 tensor on the CPU.
fn cpu_choice(x: &Tensor, spec: &TopKSpec) -> Result<Tensor> {
    let op = TopKOp { spec: spec.clone() };
    let columns = *x.dims().last().unwrap_or(&1);
    let mut chosen = vec![0f32; x.elem_count()];
    cpu::with_slice::<f32, _>(x, |x| {
        op.with_scale(|scale| {
            op.select(x, scale, columns, &mut chosen, |_| 1.0);
            Ok(())
        })
    })?;
    cpu::tensor(chosen, x.shape())
}

struct TopKOp {
    spec: TopKSpec,
}

impl TopKOp {
    fn with_scale<T: Real, R>(&self, f: impl FnOnce(Option<&[T]>) -> Result<R>) -> Result<R> {
        match &self.spec.scale {
            None => f(None),
            Some(scale) => cpu::with_slice::<T, _>(scale, |scale| f(Some(scale))),
        }
    }

    /// Writes what is kept to `out`, which holds zeros.
    fn select<T: Real, U: Send>(
        &self,
        x: &[T],
        scale: Option<&[T]>,
        columns: usize,
        out: &mut [U],
        write: impl Fn(T) -> U + Sync,
    ) {
        let at = |row: &[T], column: usize| match scale {
            Some(scale) => row[column] * scale[column],
            None => row[column],
        };
        match self.spec.keep {
            Keep::PerRow(k) => {
                cpu::for_chunks(out, columns, |start, out| {
                    for (column, value) in self.spec.of_row(&x[start..start + columns], scale, k) {
                        out[column] = write(value);
                    }
                });
            }
            Keep::PerBatch(k) => {
                let rows = x.len() / columns.max(1);
                let count = (k * rows as f64) as usize;
                if count == 0 {
                    return;
                }
                let value = |i: usize| at(&x[i / columns * columns..], i % columns);
                let cut = cut_of_batch(x.len(), count, value);
                // Ties go to those that come first: every row has to know how many there are before it.
                let is_tie = |i: &usize| cut.ties > 0 && key(value(*i)) == cut.key;
                let ties = |row: usize| (row * columns..(row + 1) * columns).filter(is_tie).count();
                let ties: Vec<usize> = parallel::map(rows, ties);
                let before: Vec<usize> = ties
                    .iter()
                    .scan(0, |sum, ties| {
                        let before = *sum;
                        *sum += ties;
                        Some(before)
                    })
                    .collect();
                cpu::for_chunks(out, columns, |start, out| {
                    let row = start / columns;
                    let mut left = cut.ties.saturating_sub(before[row]);
                    for (column, out) in out.iter_mut().enumerate() {
                        let value = at(&x[start..], column);
                        let rank = key(value);
                        let tie = rank == cut.key && left > 0;
                        if rank > cut.key || tie {
                            left -= usize::from(tie);
                            *out = write(value);
                        }
                    }
                });
            }
        }
    }

    fn forward<T: Real>(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = cpu::slice::<T>(x, layout)?;
        let columns = *layout.dims().last().unwrap_or(&1);
        let mut y = vec![T::zero(); x.len()];
        self.with_scale(|scale| {
            self.select(x, scale, columns, &mut y, |value| value);
            Ok(())
        })?;
        Ok((T::to_cpu_storage_owned(y), layout.shape().clone()))
    }

    fn backward<T: Real>(&self, y: &Tensor, g: &Tensor) -> Result<Tensor> {
        let columns = *y.dims().last().unwrap_or(&1);
        let mut dx = vec![T::zero(); y.elem_count()];
        cpu::with_slice::<T, _>(y, |y| {
            cpu::with_slice::<T, _>(g, |g| {
                self.with_scale(|scale: Option<&[T]>| {
                    cpu::for_chunks(&mut dx, cpu::chunk_rows(columns) * columns, |start, dx| {
                        for (i, dx) in dx.iter_mut().enumerate() {
                            if y[start + i] != T::zero() {
                                *dx = match scale {
                                    Some(scale) => g[start + i] * scale[(start + i) % columns],
                                    None => g[start + i],
                                };
                            }
                        }
                    });
                    Ok(())
                })
            })
        })?;
        cpu::tensor(dx, y.shape())
    }
}

impl CustomOp1 for TopKOp {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        dispatch!(x.dtype(), T => self.forward::<T>(x, layout))
    }

    fn bwd(&self, _x: &Tensor, y: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        dispatch!(y.dtype(), T => self.backward::<T>(y, g)).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::check::{check_gradients, random, values};
    use super::super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::*;

    fn specs(columns: usize, dtype: DType) -> Result<Vec<TopKSpec>> {
        let scale = Some((random(columns, 9, dtype).abs()? + 0.5)?);
        let only: Vec<bool> = (0..columns).map(|i| i % 3 != 0).collect();
        let row = TopKSpec::new(Keep::PerRow(5));
        let batch = TopKSpec::new(Keep::PerBatch(3.5));
        Ok(vec![
            row.clone(),
            TopKSpec { scale: scale.clone(), ..row.clone() },
            TopKSpec { only: Some(Arc::new(only)), relu: false, scale: scale.clone(), ..row },
            batch.clone(),
            TopKSpec { scale, ..batch },
        ])
    }

    #[test]
    fn gradients_are_those_of_finite_differences() -> Result<()> {
        // Numbers whose choice is so clear that no difference changes it.
        let x = random((4, 3, 23), 247, DType::F64);
        for spec in specs(23, DType::F64)? {
            check_gradients("top_k", std::slice::from_ref(&x), |v| top_k(&v[0], &spec));
        }
        Ok(())
    }

    #[test]
    fn fused_like_composed_on_any_threads() -> Result<()> {
        for spec in specs(700, DType::F32)? {
            let x = [random((60, 700), 1, DType::F32)];
            fused_like_composed("top_k", &x, 1e-6, |v| top_k(&v[0], &spec))?;
            same_on_any_threads("top_k", &x, |v| top_k(&v[0], &spec))?;
        }
        Ok(())
    }

    #[test]
    fn the_largest_are_kept_and_of_equal_ones_the_first() -> Result<()> {
        let x = Tensor::new(&[[1f32, 3., 2., 3., -1.], [-1., -2., -3., -4., -5.]], &Device::Cpu)?;
        let keep = |keep| top_k(&x, &TopKSpec::new(keep));
        assert_eq!(values(&keep(Keep::PerRow(2))?), [0., 3., 0., 3., 0., 0., 0., 0., 0., 0.]);
        assert_eq!(values(&keep(Keep::PerRow(1))?)[..5], [0., 3., 0., 0., 0.]);
        assert_eq!(values(&keep(Keep::PerBatch(0.5))?)[..5], [0., 3., 0., 0., 0.]);
        assert_eq!(values(&keep(Keep::PerBatch(1.5))?)[..5], [0., 3., 2., 3., 0.]);
        assert_eq!(values(&keep(Keep::PerBatch(5.0))?)[..5], [1., 3., 2., 3., 0.]);
        let signed = TopKSpec { relu: false, ..TopKSpec::new(Keep::PerRow(2)) };
        assert_eq!(values(&top_k(&x, &signed)?)[5..], [-1., -2., 0., 0., 0.]);
        let last = TopKSpec { only: Some(Arc::new(vec![false, false, false, false, true])), ..signed };
        assert_eq!(values(&top_k(&x, &last)?), [0., 0., 0., 0., -1., 0., 0., 0., 0., -5.]);
        Ok(())
    }

    #[test]
    fn impossible_choices_are_errors() {
        let x = random((2, 5), 1, DType::F32);
        for keep in [
            Keep::PerRow(0),
            Keep::PerRow(6),
            Keep::PerBatch(0.0),
            Keep::PerBatch(5.5),
            Keep::PerBatch(f64::NAN),
        ] {
            assert!(top_k(&x, &TopKSpec::new(keep)).is_err(), "{keep:?}");
        }
        let scale = Some(random(4, 1, DType::F32));
        assert!(top_k(&x, &TopKSpec { scale, ..TopKSpec::new(Keep::PerRow(2)) }).is_err());
    }
}
