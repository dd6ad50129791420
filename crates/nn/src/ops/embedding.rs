//! Rows of a table by number, with a backward that adds up in a fixed order.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, WithDType};
use std::sync::Arc;

use super::GradBuffer;
use super::cpu::{self, dispatch};
use super::grad_buffer::deliver;
use super::indices;
use super::real::Real;

/// Parallel tasks of the backward. Every row adds up in order of occurrence, so that their number changes no bit.
const BACKWARD_TASKS: usize = 64;

/// `weight[id]` for every id: ids of any shape (u32 or i64) and a table `[vocab, d]` give `[.., d]`.
///
/// An id outside the table is an error. The table's gradient goes to `grad` when the table is a `Var` and the
/// work is done on the CPU, and to `backward`'s store otherwise.
pub fn embedding(ids: &Tensor, weight: &Tensor, grad: Option<&Arc<GradBuffer>>) -> Result<Tensor> {
    let (vocab, width) = weight.dims2()?;
    if width == 0 {
        candle_core::bail!("embedding: an empty table, {:?}", weight.shape());
    }
    let rows = indices::checked("token id", &indices::read("token ids", ids)?, vocab)?;
    let mut shape = ids.dims().to_vec();
    shape.push(width);
    if !cpu::fused(weight) {
        return weight.index_select(&ids.flatten_all()?, 0)?.reshape(shape);
    }
    weight.contiguous()?.apply_op1(EmbeddingOp { rows, shape: Shape::from(shape), grad: grad.cloned() })
}

struct EmbeddingOp {
    rows: Vec<usize>,
    shape: Shape,
    grad: Option<Arc<GradBuffer>>,
}

impl EmbeddingOp {
    fn forward<T: Real>(&self, table: &[T], width: usize) -> Vec<T> {
        // SAFETY: every row is copied from the table.
        let mut y = unsafe { cpu::uninit::<T>(self.rows.len() * width) };
        cpu::for_chunks(&mut y, cpu::chunk_rows(width) * width, |start, y| {
            let rows = &self.rows[start / width..];
            for (y, &row) in y.chunks_exact_mut(width).zip(rows) {
                y.copy_from_slice(&table[row * width..][..width]);
            }
        });
        y
    }

    fn backward<T: Real>(&self, weight: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let (vocab, width) = weight.dims2()?;
        cpu::with_slice::<T, _>(g, |g| {
            deliver(weight, self.grad.as_ref(), |dw, _| {
                // A stable sort keeps the occurrences of one id in order.
                let mut order: Vec<usize> = (0..self.rows.len()).collect();
                order.sort_by_key(|&at| self.rows[at]);
                let rows_per_task = vocab.div_ceil(BACKWARD_TASKS);
                cpu::for_chunks(dw, rows_per_task * width, |start, dw| {
                    let first = start / width;
                    let last = first + dw.len() / width;
                    let from = order.partition_point(|&at| self.rows[at] < first);
                    let to = order.partition_point(|&at| self.rows[at] < last);
                    for &at in &order[from..to] {
                        let row = self.rows[at] - first;
                        cpu::add_to(&mut dw[row * width..][..width], &g[at * width..][..width]);
                    }
                });
            })
        })
    }
}

impl CustomOp1 for EmbeddingOp {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn cpu_fwd(&self, table: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, width) = layout.shape().dims2()?;
        dispatch!(table.dtype(), T => {
            let y = self.forward::<T>(cpu::slice(table, layout)?, width);
            Ok((T::to_cpu_storage_owned(y), self.shape.clone()))
        })
    }

    fn bwd(&self, weight: &Tensor, _y: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        dispatch!(weight.dtype(), T => self.backward::<T>(weight, g))
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{assert_same_bits, check_gradients, random, values};
    use super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::*;
    use candle_core::{DType, Device, Var};

    fn ids(count: usize, vocab: u32) -> Result<Tensor> {
        let ids = (0..count as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) % vocab).collect::<Vec<_>>();
        Tensor::from_vec(ids, (count / 3, 3), &Device::Cpu)
    }

    #[test]
    fn gradients_are_those_of_finite_differences() -> Result<()> {
        let ids = ids(33, 11)?;
        check_gradients("embedding", &[random((7, 11), 1, DType::F64)], |v| {
            embedding(&ids, &v[0].t()?, None)
        });
        Ok(())
    }

    #[test]
    fn fused_like_composed_on_any_threads() -> Result<()> {
        let ids = ids(3000, 150)?;
        let table = [random((150, 37), 1, DType::F32)];
        fused_like_composed("embedding", &table, 1e-6, |v| embedding(&ids, &v[0], None))?;
        same_on_any_threads("embedding", &table, |v| embedding(&ids, &v[0], None))?;
        let wide = embedding(&ids.to_dtype(DType::I64)?.t()?, &table[0], None)?;
        assert_eq!(wide.dims(), [3, 1000, 37]);
        assert_same_bits("i64", &wide.transpose(0, 1)?, &embedding(&ids, &table[0], None)?);
        Ok(())
    }

    #[test]
    fn the_buffer_holds_the_gradient_of_the_tape_and_adds_up() -> Result<()> {
        let ids = ids(300, 40)?;
        let table = Var::from_tensor(&random((40, 9), 1, DType::F32))?;
        let step = |grad| embedding(&ids, &table, grad)?.sqr()?.sum_all()?.backward();
        let buffer = Arc::new(GradBuffer::new(table.shape()));
        assert!(step(Some(&buffer))?.get(&table).is_none());
        let (Some(once), tape) = (buffer.take()?, step(None)?) else { panic!("nothing in the buffer") };
        let Some(tape) = tape.get(&table) else { panic!("nothing on the tape") };
        assert_same_bits("buffer", &once, tape);
        step(Some(&buffer))?;
        step(Some(&buffer))?;
        let Some(twice) = buffer.take()? else { panic!("nothing in the buffer") };
        let close = |(once, twice): (f64, f64)| (2.0 * once - twice).abs() <= 1e-5 * twice.abs();
        assert!(values(&once).into_iter().zip(values(&twice)).all(close));
        Ok(())
    }

    #[test]
    fn an_id_outside_the_table_is_named() -> Result<()> {
        let table = random((5, 2), 1, DType::F32);
        for (ids, named) in [([0i64, 5], "token id 5 at index 1"), ([-1, 0], "token id -1 at index 0")] {
            let error =
                embedding(&Tensor::new(&ids, &Device::Cpu)?, &table, None).err().map(|e| e.to_string());
            assert!(error.is_some_and(|e| e.contains(named) && e.contains("vocabulary of 5")));
        }
        assert!(embedding(&random(3, 1, DType::F32), &table, None).is_err());
        Ok(())
    }
}
