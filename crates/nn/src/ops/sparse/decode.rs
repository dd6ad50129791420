//! The decoder's product.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use std::sync::Arc;

use super::super::GradBuffer;
use super::super::cpu::{self, dispatch};
use super::super::grad_buffer::deliver;
use super::super::linear::with_last;
use super::super::product::{Mat, MatMut, Product};
use super::super::real::{Real, lane_sum};
use super::rows::{Nonzeros, add_times};

/// How latents are decoded.
#[derive(Clone, Debug, Default)]
pub struct DecodeSpec {
    /// What activations are divided by first, `[latents]`, taken as constants.
    pub divide_by: Option<Tensor>,
    /// Whether nobody asks for the gradient at latents that are zero. They get none then, which saves a matrix product.
    pub active_only: bool,
    /// Where the gradient of the matrix is added up; without a buffer it goes to candle's tape.
    pub weight_grad: Option<Arc<GradBuffer>>,
}

/// `acts / divide_by @ w + bias` for `acts [.., latents]` and `w [latents, out]`. What is zero in `acts` costs nothing.
pub fn decode(acts: &Tensor, w: &Tensor, bias: Option<&Tensor>, spec: &DecodeSpec) -> Result<Tensor> {
    let (latents, outputs) = w.dims2()?;
    if acts.dims().last() != Some(&latents) {
        candle_core::bail!(
            "decode: the last axis of {:?} is not the {latents} latents of the weight",
            acts.shape()
        );
    }
    if bias.is_some_and(|bias| bias.dims() != [outputs])
        || spec.divide_by.as_ref().is_some_and(|by| by.dims() != [latents])
    {
        candle_core::bail!("decode: a bias needs {outputs} elements and divisors {latents}");
    }
    if !cpu::fused(acts) {
        let divide = |by: &Tensor| acts.broadcast_div(&by.detach().to_dtype(acts.dtype())?);
        let acts = spec.divide_by.as_ref().map_or_else(|| Ok(acts.clone()), divide)?;
        let y = acts.reshape(((), latents))?.matmul(w)?;
        let y = bias.map_or_else(|| Ok(y.clone()), |bias| y.broadcast_add(bias))?;
        return y.reshape(with_last(acts.dims(), outputs));
    }
    let bias =
        bias.map_or_else(|| Tensor::zeros(outputs, acts.dtype(), acts.device()), |bias| Ok(bias.clone()))?;
    let divide_by = spec.divide_by.as_ref().map(|by| by.detach().to_dtype(acts.dtype())).transpose()?;
    let op = DecodeOp { spec: DecodeSpec { divide_by, ..spec.clone() } };
    acts.contiguous()?.apply_op3(&w.contiguous()?, &bias.contiguous()?, op)
}

struct DecodeOp {
    spec: DecodeSpec,
}

impl DecodeOp {
    /// Calls `f` with the factors of the latents; without divisors there are none.
    fn with_factors<T: Real, R>(&self, f: impl FnOnce(&[T]) -> Result<R>) -> Result<R> {
        match &self.spec.divide_by {
            None => f(&[]),
            Some(by) => {
                cpu::with_slice::<T, _>(by, |by| f(&by.iter().map(|by| T::one() / *by).collect::<Vec<T>>()))
            }
        }
    }

    fn forward<T: Real>(
        &self,
        (acts, al): (&CpuStorage, &Layout),
        (w, wl): (&CpuStorage, &Layout),
        (bias, bl): (&CpuStorage, &Layout),
    ) -> Result<(CpuStorage, Shape)> {
        let (latents, outputs) = wl.shape().dims2()?;
        let (acts, w) = (cpu::slice::<T>(acts, al)?, cpu::slice::<T>(w, wl)?);
        let bias = cpu::slice::<T>(bias, bl)?;
        let rows = acts.len() / latents.max(1);
        let mut y = vec![T::zero(); rows * outputs];
        self.with_factors(|factors: &[T]| {
            let nonzeros = Nonzeros::find(acts, latents);
            cpu::for_chunks(&mut y, outputs * ROWS_PER_TASK, |start, y| {
                for (row, y) in (start / outputs..).zip(y.chunks_exact_mut(outputs)) {
                    y.copy_from_slice(bias);
                    for latent in nonzeros.iter().flat_map(|nonzeros| nonzeros.row(row)) {
                        let latent = *latent as usize;
                        let act = times(acts[row * latents + latent], factors, latent);
                        add_times(y, act, &w[latent * outputs..(latent + 1) * outputs]);
                    }
                }
            });
            if nonzeros.is_none() {
                let scaled = scaled(acts, factors);
                let (acts, w) = (Mat::new(&scaled, rows, latents), Mat::new(w, latents, outputs));
                Product::of(acts, w).add_to(MatMut::new(&mut y, rows, outputs));
            }
            Ok(())
        })?;
        Ok((T::to_cpu_storage_owned(y), with_last(al.dims(), outputs)))
    }

    fn backward<T: Real>(
        &self,
        acts: &Tensor,
        w: &Tensor,
        bias: &Tensor,
        g: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let (latents, outputs) = w.dims2()?;
        cpu::with_slice::<T, _>(acts, |a| {
            cpu::with_slice::<T, _>(w, |w_values| {
                cpu::with_slice::<T, _>(g, |g| {
                    self.with_factors(|factors: &[T]| {
                        let nonzeros = Nonzeros::find(a, latents);
                        let sizes = (latents, outputs);
                        let da = match acts.track_op() {
                            false => None,
                            true => {
                                let da = self.act_grad(nonzeros.as_ref(), g, w_values, factors, sizes);
                                Some(cpu::tensor(da, acts.shape())?)
                            }
                        };
                        let dw = deliver(w, self.spec.weight_grad.as_ref(), |dw, fresh| {
                            weight_grad(dw, fresh, nonzeros.as_ref(), a, g, factors, sizes);
                        })?;
                        let db = deliver(bias, None, |db, _| cpu::add_column_sums(db, g, outputs))?;
                        Ok([da, dw, db])
                    })
                })
            })
        })
    }

    fn act_grad<T: Real>(
        &self,
        nonzeros: Option<&Nonzeros>,
        g: &[T],
        w: &[T],
        factors: &[T],
        (latents, outputs): (usize, usize),
    ) -> Vec<T> {
        let rows = g.len() / outputs.max(1);
        let mut da = vec![T::zero(); rows * latents];
        if nonzeros.is_none() || !self.spec.active_only {
            let (g, w) = (Mat::new(g, rows, outputs), Mat::new(w, latents, outputs).t());
            Product::of(g, w).write(MatMut::new(&mut da, rows, latents));
            if !factors.is_empty() {
                cpu::for_chunks(&mut da, latents * ROWS_PER_TASK, |_, da| {
                    for row in da.chunks_exact_mut(latents) {
                        row.iter_mut().zip(factors).for_each(|(da, factor)| *da *= *factor);
                    }
                });
            }
        }
        // Where latents are active, the same numbers come out however many others are asked for.
        if let Some(nonzeros) = nonzeros {
            cpu::for_chunks(&mut da, latents * ROWS_PER_TASK, |start, da| {
                for (row, da) in (start / latents..).zip(da.chunks_exact_mut(latents)) {
                    let g = &g[row * outputs..(row + 1) * outputs];
                    for latent in nonzeros.row(row) {
                        let latent = *latent as usize;
                        let w = &w[latent * outputs..(latent + 1) * outputs];
                        let dot = cpu::wide(
                            #[inline(always)]
                            || lane_sum(outputs, |i| g[i] * w[i]),
                        );
                        da[latent] = times(dot, factors, latent);
                    }
                }
            });
        }
        da
    }
}

/// `dw += (acts * factors)^T @ g`.
fn weight_grad<T: Real>(
    dw: &mut [T],
    fresh: bool,
    nonzeros: Option<&Nonzeros>,
    acts: &[T],
    g: &[T],
    factors: &[T],
    (latents, outputs): (usize, usize),
) {
    let rows = g.len() / outputs.max(1);
    let Some(nonzeros) = nonzeros else {
        let scaled = scaled(acts, factors);
        let (acts, g) = (Mat::new(&scaled, rows, latents).t(), Mat::new(g, rows, outputs));
        return match fresh {
            true => Product::of(acts, g).write(MatMut::new(dw, latents, outputs)),
            false => Product::of(acts, g).add_to(MatMut::new(dw, latents, outputs)),
        };
    };
    let by_latent = nonzeros.by_column(latents);
    cpu::for_chunks(dw, outputs * LATENTS_PER_TASK, |start, dw| {
        for (latent, dw) in (start / outputs..).zip(dw.chunks_exact_mut(outputs)) {
            for (row, _) in by_latent.column(latent) {
                let act = times(acts[row * latents + latent], factors, latent);
                add_times(dw, act, &g[row * outputs..(row + 1) * outputs]);
            }
        }
    });
}

const ROWS_PER_TASK: usize = 16;
const LATENTS_PER_TASK: usize = 64;

#[inline(always)]
pub(super) fn times<T: Real>(value: T, factors: &[T], latent: usize) -> T {
    factors.get(latent).map_or(value, |factor| value * *factor)
}

fn scaled<'a, T: Real>(acts: &'a [T], factors: &[T]) -> std::borrow::Cow<'a, [T]> {
    if factors.is_empty() {
        return acts.into();
    }
    let mut out = acts.to_vec();
    cpu::for_chunks(&mut out, factors.len() * ROWS_PER_TASK, |_, out| {
        for row in out.chunks_exact_mut(factors.len()) {
            row.iter_mut().zip(factors).for_each(|(act, factor)| *act *= *factor);
        }
    });
    out.into()
}

impl CustomOp3 for DecodeOp {
    fn name(&self) -> &'static str {
        "decode"
    }

    fn cpu_fwd(
        &self,
        acts: &CpuStorage,
        al: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        bias: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        dispatch!(acts.dtype(), T => self.forward::<T>((acts, al), (w, wl), (bias, bl)))
    }

    fn bwd(
        &self,
        acts: &Tensor,
        w: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [da, dw, db] = dispatch!(acts.dtype(), T => self.backward::<T>(acts, w, bias, g))?;
        Ok((da, dw, db))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::check::{assert_same_bits, check_gradients, gradients, random};
    use super::super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::super::top_k::{Keep, TopKSpec, top_k};
    use super::*;
    use candle_core::{DType, Var};

    fn inputs(rows: usize, latents: usize, outputs: usize, dtype: DType) -> [Tensor; 3] {
        [random((rows, latents), 1, dtype), random((latents, outputs), 2, dtype), random(outputs, 3, dtype)]
    }

    fn spec(latents: usize, dtype: DType, divided: bool, active_only: bool) -> Result<DecodeSpec> {
        let divide_by = (random(latents, 7, dtype).abs()? + 0.5)?;
        Ok(DecodeSpec { divide_by: divided.then_some(divide_by), active_only, weight_grad: None })
    }

    /// Few latents per row, or all of them.
    fn run(v: &[Var], spec: &DecodeSpec, sparse: bool) -> Result<Tensor> {
        let acts = match sparse {
            true => top_k(&v[0], &TopKSpec::new(Keep::PerRow(2)))?,
            false => v[0].as_tensor().clone(),
        };
        decode(&acts, &v[1], Some(&v[2]), spec)
    }

    #[test]
    fn gradients_are_those_of_finite_differences() -> Result<()> {
        for divided in [false, true] {
            let spec = spec(40, DType::F64, divided, true)?;
            for sparse in [false, true] {
                check_gradients("decode", &inputs(9, 40, 7, DType::F64), |v| run(v, &spec, sparse));
            }
        }
        Ok(())
    }

    #[test]
    fn fused_like_composed_on_any_threads() -> Result<()> {
        for (divided, active_only) in [(false, true), (true, true), (true, false)] {
            for sparse in [false, true] {
                let spec = spec(300, DType::F32, divided, active_only)?;
                let inputs = inputs(130, 300, 33, DType::F32);
                fused_like_composed("decode", &inputs, 5e-6, |v| run(v, &spec, sparse))?;
                same_on_any_threads("decode", &inputs, |v| run(v, &spec, sparse))?;
            }
        }
        Ok(())
    }

    #[test]
    fn who_asks_for_all_gradients_gets_the_same_ones_where_latents_are_active() -> Result<()> {
        let inputs = inputs(20, 64, 16, DType::F32);
        let all = gradients(&inputs, |v| run(v, &spec(64, DType::F32, true, false)?, true))?;
        let active = gradients(&inputs, |v| run(v, &spec(64, DType::F32, true, true)?, true))?;
        for (a, b) in all.1.iter().zip(&active.1) {
            assert_same_bits("gradient", a, b);
        }
        Ok(())
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        let [acts, w, b] = inputs(3, 5, 4, DType::F32);
        let none = DecodeSpec::default();
        assert!(decode(&w, &acts, Some(&b), &none).is_err());
        assert!(decode(&acts, &w, Some(&random(5, 1, DType::F32)), &none).is_err());
        assert!(decode(&acts, &w, None, &DecodeSpec { divide_by: Some(b), ..none }).is_err());
    }
}
