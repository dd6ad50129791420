//! The encoder's product.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use std::sync::Arc;

use super::super::GradBuffer;
use super::super::cpu::{self, dispatch};
use super::super::grad_buffer::deliver;
use super::super::linear::with_last;
use super::super::product::{Mat, MatMut, Product};
use super::super::real::Real;
use super::rows::{ByColumn, Nonzeros, add_times};

/// Where the gradient of the encoder's matrix is added up; without a buffer it goes to candle's tape.
#[derive(Clone, Debug, Default)]
pub struct EncodeGrads {
    /// For the matrix.
    pub weight: Option<Arc<GradBuffer>>,
}

/// `(x - center) @ w + bias` for `x [.., in]` and `w [in, out]`; center and bias may be left out.
///
/// In the backward, what is zero in the gradient costs nothing: after a sparse activation function that is nearly everything. The gradient
/// of the center comes from the sums over all rows, so that `x` needs none.
pub fn encode(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    center: Option<&Tensor>,
    grads: &EncodeGrads,
) -> Result<Tensor> {
    let (inputs, outputs) = w.dims2()?;
    if x.dims().last() != Some(&inputs) {
        candle_core::bail!(
            "encode: the last axis of {:?} is not the {inputs} inputs of the weight",
            x.shape()
        );
    }
    if bias.is_some_and(|bias| bias.dims() != [outputs])
        || center.is_some_and(|center| center.dims() != [inputs])
    {
        candle_core::bail!("encode: a bias needs {outputs} elements and a center {inputs}");
    }
    if !cpu::fused(x) {
        let x = center.map_or_else(|| Ok(x.clone()), |center| x.broadcast_sub(center))?;
        let y = x.reshape(((), inputs))?.matmul(w)?;
        let y = bias.map_or_else(|| Ok(y.clone()), |bias| y.broadcast_add(bias))?;
        return y.reshape(with_last(x.dims(), outputs));
    }
    let bias = bias.map_or_else(|| Tensor::zeros(outputs, x.dtype(), x.device()), |bias| Ok(bias.clone()))?;
    // The engine's ops take three tensors at most, so the two vectors go in as one.
    let vectors = center.map_or_else(|| Ok(bias.clone()), |center| Tensor::cat(&[&bias, center], 0))?;
    x.contiguous()?.apply_op3(&w.contiguous()?, &vectors.contiguous()?, EncodeOp { grads: grads.clone() })
}

struct EncodeOp {
    grads: EncodeGrads,
}

/// `x @ w + bias`, for an `x` that has lost its center.
pub(super) fn product<T: Real>(x: &[T], w: &[T], bias: &[T], (inputs, outputs): (usize, usize)) -> Vec<T> {
    let rows = x.len() / inputs.max(1);
    // SAFETY: the product writes every element.
    let mut y = unsafe { cpu::uninit::<T>(rows * outputs) };
    let (x, w) = (Mat::new(x, rows, inputs), Mat::new(w, inputs, outputs));
    Product::of(x, w).plus_row(Some(bias)).write(MatMut::new(&mut y, rows, outputs));
    y
}

/// The gradient of the center, from the gradients of the outputs summed over all rows.
pub(super) fn center_grad<T: Real>(sums: &[T], w: &[T], (inputs, outputs): (usize, usize)) -> Vec<T> {
    let mut center = vec![T::zero(); inputs];
    let (sums, w) = (Mat::new(sums, 1, outputs), Mat::new(w, inputs, outputs).t());
    Product::of(sums, w).scaled(-T::one()).write(MatMut::new(&mut center, 1, inputs));
    center
}

/// `x` without its center.
pub(super) fn centered<T: Real>(x: &[T], center: &[T]) -> Vec<T> {
    let mut out = x.to_vec();
    if !center.is_empty() {
        let columns = center.len();
        cpu::for_chunks(&mut out, cpu::chunk_rows(columns) * columns, |_, out| {
            for row in out.chunks_exact_mut(columns) {
                row.iter_mut().zip(center).for_each(|(x, center)| *x -= *center);
            }
        });
    }
    out
}

impl EncodeOp {
    fn forward<T: Real>(
        &self,
        (x, xl): (&CpuStorage, &Layout),
        (w, wl): (&CpuStorage, &Layout),
        (v, vl): (&CpuStorage, &Layout),
    ) -> Result<(CpuStorage, Shape)> {
        let (inputs, outputs) = wl.shape().dims2()?;
        let (x, w, v) = (cpu::slice::<T>(x, xl)?, cpu::slice::<T>(w, wl)?, cpu::slice::<T>(v, vl)?);
        let (bias, center) = v.split_at(outputs);
        let y = product(&centered(x, center), w, bias, (inputs, outputs));
        Ok((T::to_cpu_storage_owned(y), with_last(xl.dims(), outputs)))
    }

    fn backward<T: Real>(
        &self,
        x: &Tensor,
        w: &Tensor,
        v: &Tensor,
        g: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let (inputs, outputs) = w.dims2()?;
        let rows = x.elem_count() / inputs.max(1);
        cpu::with_slice::<T, _>(g, |g| {
            cpu::with_slice::<T, _>(w, |w_values| {
                let dx = match x.track_op() {
                    false => None,
                    true => {
                        // SAFETY: the product writes every element.
                        let mut dx = unsafe { cpu::uninit::<T>(rows * inputs) };
                        let w = Mat::new(w_values, inputs, outputs).t();
                        let g = Mat::new(g, rows, outputs);
                        Product::of(g, w).write(MatMut::new(&mut dx, rows, inputs));
                        Some(cpu::tensor(dx, x.shape())?)
                    }
                };
                let dw = cpu::with_slice::<T, _>(x, |x| {
                    cpu::with_slice::<T, _>(v, |v| {
                        deliver(w, self.grads.weight.as_ref(), |dw, fresh| {
                            weight_grad(dw, fresh, &centered(x, &v[outputs..]), g, (inputs, outputs));
                        })
                    })
                })?;
                let dv = match v.track_op() {
                    false => None,
                    true => {
                        let mut sums = vec![T::zero(); outputs];
                        cpu::add_column_sums(&mut sums, g, outputs);
                        if v.elem_count() > outputs {
                            sums.extend(center_grad(&sums, w_values, (inputs, outputs)));
                        }
                        Some(cpu::tensor(sums, v.shape())?)
                    }
                };
                Ok([dx, dw, dv])
            })
        })
    }
}

/// `dw += x^T @ g`, by way of the nonzero elements of `g` where they are few.
fn weight_grad<T: Real>(dw: &mut [T], fresh: bool, x: &[T], g: &[T], (inputs, outputs): (usize, usize)) {
    let rows = x.len() / inputs.max(1);
    let Some(nonzeros) = Nonzeros::find(g, outputs) else {
        let (x, g) = (Mat::new(x, rows, inputs).t(), Mat::new(g, rows, outputs));
        return match fresh {
            true => Product::of(x, g).write(MatMut::new(dw, inputs, outputs)),
            false => Product::of(x, g).add_to(MatMut::new(dw, inputs, outputs)),
        };
    };
    let by_column = nonzeros.by_column(outputs);
    add_columns(dw, &by_column, |row, column, _| g[row * outputs + column], x, (inputs, outputs));
}

/// `dw += x^T @ g` for a `g` with few elements, whose values `g(row, column, entry)` gives.
pub(super) fn add_columns<T: Real>(
    dw: &mut [T],
    by_column: &ByColumn,
    g: impl Fn(usize, usize, usize) -> T + Sync,
    x: &[T],
    (inputs, outputs): (usize, usize),
) {
    // Latent by latent into rows of their own, because the columns of `dw` are far apart in memory; then turned over.
    let mut turned = vec![T::zero(); outputs * inputs];
    cpu::for_chunks(&mut turned, inputs * LATENTS_PER_TASK, |start, part| {
        for (column, to) in (start / inputs..).zip(part.chunks_exact_mut(inputs)) {
            for (row, entry) in by_column.column(column) {
                add_times(to, g(row, column, entry), &x[row * inputs..(row + 1) * inputs]);
            }
        }
    });
    cpu::for_chunks(dw, outputs * INPUTS_PER_TASK, |start, part| {
        let first = start / outputs;
        for column in (0..outputs).filter(|column| !by_column.is_empty(*column)) {
            for (i, to) in part.chunks_exact_mut(outputs).enumerate() {
                to[column] += turned[column * inputs + first + i];
            }
        }
    });
}

const LATENTS_PER_TASK: usize = 64;
/// A line of the cache holds so many f32.
const INPUTS_PER_TASK: usize = 16;

impl CustomOp3 for EncodeOp {
    fn name(&self) -> &'static str {
        "encode"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        v: &CpuStorage,
        vl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        dispatch!(x.dtype(), T => self.forward::<T>((x, xl), (w, wl), (v, vl)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        v: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dx, dw, dv] = dispatch!(x.dtype(), T => self.backward::<T>(x, w, v, g))?;
        Ok((dx, dw, dv))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::check::{assert_same_bits, check_gradients, random};
    use super::super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::super::top_k::{Keep, TopKSpec, top_k};
    use super::*;
    use candle_core::{DType, Var};

    fn inputs(dtype: DType) -> [Tensor; 4] {
        [random((9, 2, 7), 1, dtype), random((7, 40), 2, dtype), random(40, 3, dtype), random(7, 4, dtype)]
    }

    fn dense(v: &[Var]) -> Result<Tensor> {
        encode(&v[0], &v[1], Some(&v[2]), Some(&v[3]), &EncodeGrads::default())
    }

    /// Few latents, so that the gradient has few elements.
    fn sparse(v: &[Var]) -> Result<Tensor> {
        top_k(&dense(v)?, &TopKSpec::new(Keep::PerRow(3)))
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let all = inputs(DType::F64);
        check_gradients("dense", &all, dense);
        check_gradients("sparse", &all, sparse);
        let none = EncodeGrads::default();
        check_gradients("no center", &all[..3], |v| encode(&v[0], &v[1], Some(&v[2]), None, &none));
        check_gradients("no bias", &[all[0].clone(), all[1].clone(), all[3].clone()], |v| {
            encode(&v[0], &v[1], None, Some(&v[2]), &none)
        });
    }

    #[test]
    fn fused_like_composed_on_any_threads() -> Result<()> {
        for f in [dense, sparse] {
            fused_like_composed("encode", &inputs(DType::F32), 2e-6, f)?;
            let large = [
                random((300, 33), 1, DType::F32),
                random((33, 500), 2, DType::F32),
                random(500, 3, DType::F32),
                random(33, 4, DType::F32),
            ];
            same_on_any_threads("encode", &large, f)?;
        }
        Ok(())
    }

    #[test]
    fn buffers_hold_the_gradient_of_the_tape() -> Result<()> {
        let [x, w, b, c] = inputs(DType::F32);
        let w = Var::from_tensor(&w)?;
        let run = |grads: &EncodeGrads| {
            let y = encode(&x, &w, Some(&b), Some(&c), grads)?;
            top_k(&y, &TopKSpec::new(Keep::PerRow(2)))?.sqr()?.sum_all()?.backward()
        };
        let tape = run(&EncodeGrads::default())?;
        let buffer = Arc::new(GradBuffer::new(w.shape()));
        assert!(run(&EncodeGrads { weight: Some(buffer.clone()) })?.get(&w).is_none());
        match (tape.get(&w), buffer.take()?) {
            (Some(once), Some(kept)) => assert_same_bits("buffer", once, &kept),
            _ => panic!("a gradient is missing"),
        }
        Ok(())
    }
}
