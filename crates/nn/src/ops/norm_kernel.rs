//! The CPU kernel of the norms.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};
use rayon::prelude::*;
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use super::cpu;
use super::norm::{Norm, NormWatch, per_row};
use super::norm_pieces::{row_mean, row_scale};
use super::real::{Real, lane_sum};

/// What the forward found out about one row.
#[derive(Clone, Copy)]
pub(crate) struct Row<T> {
    /// 0 in a norm that does not center.
    pub(crate) mean: T,
    pub(crate) scale: T,
}

impl<T: Real> Row<T> {
    #[inline(always)]
    fn normalized(&self, x: T) -> T {
        (x - self.mean) / self.scale
    }
}

/// The input after the division, with the same bits as inside the kernel.
pub(crate) fn normalized<T: Real>(x: &[T], rows: &[Row<T>]) -> Vec<T> {
    let mut values = x.to_vec();
    if let Some(width) = x.len().checked_div(rows.len()) {
        cpu::for_chunks(&mut values, cpu::chunk_rows(width) * width, |start, values| {
            for (values, row) in values.chunks_exact_mut(width).zip(&rows[start / width..]) {
                values.iter_mut().for_each(|value| *value = row.normalized(*value));
            }
        });
    }
    values
}

pub(crate) struct NormOp<T> {
    pub(crate) norm: Norm,
    /// Filled by the forward, read by the backward and for the side outputs.
    pub(crate) stats: Arc<OnceLock<Vec<Row<T>>>>,
    pub(crate) watch: NormWatch,
}

struct Gradients<T> {
    x: Vec<T>,
    scale: Vec<T>,
    weight: Vec<T>,
    bias: Vec<T>,
}

impl<T: Real> NormOp<T> {
    /// The weight with its offset added: what the normalized input is multiplied with.
    fn gain<'a>(&self, weight: &'a [T]) -> Cow<'a, [T]> {
        match self.norm.weight_offset {
            0.0 => Cow::Borrowed(weight),
            offset => weight.iter().map(|&weight| weight + T::of(offset)).collect(),
        }
    }

    fn forward(&self, x: &[T], weight: &[T], bias: Option<&[T]>) -> Result<CpuStorage> {
        let width = weight.len();
        let gain = self.gain(weight);
        let eps = T::of(self.norm.eps);
        let mut stats = vec![Row { mean: T::zero(), scale: T::one() }; x.len() / width];
        // SAFETY: every row is written below.
        let mut y = unsafe { cpu::uninit::<T>(x.len()) };
        let run = |x: &[T], y: &mut [T], stats: &mut [Row<T>]| {
            cpu::wide(
                #[inline(always)]
                || {
                    for ((x, y), stats) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(stats) {
                        *stats = self.row(x, y, &gain, bias, eps);
                    }
                },
            );
        };
        let rows = cpu::chunk_rows(width);
        if stats.len() <= rows {
            run(x, &mut y, &mut stats);
        } else {
            x.par_chunks(rows * width)
                .zip(y.par_chunks_mut(rows * width))
                .zip(stats.par_chunks_mut(rows))
                .for_each(|((x, y), stats)| run(x, y, stats));
        }
        match self.stats.set(stats) {
            Ok(()) => Ok(T::to_cpu_storage_owned(y)),
            Err(_) => candle_core::bail!("{}: one op object runs one forward", self.norm.name),
        }
    }

    #[inline(always)]
    fn row(&self, x: &[T], y: &mut [T], gain: &[T], bias: Option<&[T]>, eps: T) -> Row<T> {
        let mean = if self.norm.centered { row_mean(x) } else { T::zero() };
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x - mean;
        }
        let scale = row_scale(y, eps);
        match bias {
            None => {
                for (y, &gain) in y.iter_mut().zip(gain) {
                    *y = *y / scale * gain;
                }
            }
            Some(bias) => {
                for ((y, &gain), &bias) in y.iter_mut().zip(gain).zip(bias) {
                    *y = *y / scale * gain + bias;
                }
            }
        }
        Row { mean, scale }
    }

    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        g: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let Some(rows) = self.stats.get() else {
            candle_core::bail!("{}: the forward did not run", self.norm.name)
        };
        let of_bias = bias.filter(|bias| bias.track_op());
        let grads = cpu::with_slice::<T, _>(x, |x| {
            cpu::with_slice::<T, _>(weight, |w| {
                let gain = self.gain(w);
                cpu::with_slice::<T, _>(g, |g| {
                    Ok(self.gradients(rows, x, &gain, g, weight.track_op(), of_bias.is_some()))
                })
            })
        })?;
        self.show_gradients(x, weight, g, grads.scale)?;
        Ok([
            x.track_op().then(|| cpu::tensor(grads.x, x.shape())).transpose()?,
            weight.track_op().then(|| cpu::tensor(grads.weight, weight.shape())).transpose()?,
            of_bias.map(|bias| cpu::tensor(grads.bias, bias.shape())).transpose()?,
        ])
    }

    /// The same arithmetic whether anybody watches or not.
    fn gradients(
        &self,
        rows: &[Row<T>],
        x: &[T],
        gain: &[T],
        g: &[T],
        of_weight: bool,
        of_bias: bool,
    ) -> Gradients<T> {
        let width = gain.len();
        // SAFETY: every row of both is written below.
        let (mut dx, mut dscale) = unsafe { (cpu::uninit::<T>(x.len()), cpu::uninit::<T>(rows.len())) };
        let rows_per_task = cpu::chunk_rows(width);
        let chunk = rows_per_task * width;
        let parts: Vec<[Vec<T>; 2]> = dx
            .par_chunks_mut(chunk)
            .zip(dscale.par_chunks_mut(rows_per_task))
            .zip(x.par_chunks(chunk))
            .zip(g.par_chunks(chunk))
            .zip(rows.par_chunks(rows_per_task))
            .map(|((((dx, dscale), x), g), rows)| {
                let zeros = |wanted: bool| vec![T::zero(); if wanted { width } else { 0 }];
                let (mut dw, mut db) = (zeros(of_weight), zeros(of_bias));
                cpu::wide(
                    #[inline(always)]
                    || {
                        let lines =
                            x.chunks_exact(width).zip(g.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
                        for (((x, g), dx), (row, dscale)) in lines.zip(rows.iter().zip(dscale)) {
                            for (dx, &x) in dx.iter_mut().zip(x) {
                                *dx = row.normalized(x);
                            }
                            for ((dw, &normalized), &g) in dw.iter_mut().zip(dx.iter()).zip(g) {
                                *dw += g * normalized;
                            }
                            cpu::add_to(&mut db, g);
                            *dscale = self.row_gradient(dx, g, gain, row.scale);
                        }
                    },
                );
                [dw, db]
            })
            .collect();
        let zeros = vec![T::zero(); width];
        let (mut weight, mut bias) = (zeros.clone(), zeros);
        for [dw, db] in &parts {
            cpu::add_to(&mut weight, dw);
            cpu::add_to(&mut bias, db);
        }
        Gradients { x: dx, scale: dscale, weight, bias }
    }

    /// Turns the normalized values of one row into the gradient of its input; returns the gradient of its scale.
    #[inline(always)]
    fn row_gradient(&self, row: &mut [T], g: &[T], gain: &[T], scale: T) -> T {
        let width = row.len();
        let count = T::of(width as f64);
        // Slices of a known length: no index is checked in the sums, so that they vectorise.
        let (g, gain) = (&g[..width], &gain[..width]);
        let along = lane_sum(width, |i| g[i] * gain[i] * row[i]);
        let mean = match self.norm.centered {
            true => lane_sum(width, |i| g[i] * gain[i]) / count,
            false => T::zero(),
        };
        let (share, inverse) = (along / count, T::one() / scale);
        for ((value, &g), &gain) in row.iter_mut().zip(g).zip(gain) {
            *value = (g * gain - mean - *value * share) * inverse;
        }
        -along / scale
    }

    fn show_gradients(&self, x: &Tensor, weight: &Tensor, g: &Tensor, dscale: Vec<T>) -> Result<()> {
        if let Some(watch) = &self.watch.normalized_grad {
            let gain = cpu::with_slice::<T, _>(weight, |w| cpu::tensor(self.gain(w).into_owned(), w.len()))?;
            watch(&g.detach().broadcast_mul(&gain)?)?;
        }
        match &self.watch.scale_grad {
            Some(watch) => watch(&cpu::tensor(dscale, per_row(x))?),
            None => Ok(()),
        }
    }
}

impl<T: Real> CustomOp2 for NormOp<T> {
    fn name(&self) -> &'static str {
        self.norm.name
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok((self.forward(cpu::slice(x, xl)?, cpu::slice(w, wl)?, None)?, xl.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [dx, dw, _] = self.backward(x, weight, None, g)?;
        Ok((dx, dw))
    }
}

impl<T: Real> CustomOp3 for NormOp<T> {
    fn name(&self) -> &'static str {
        self.norm.name
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let bias = cpu::slice(b, bl)?;
        Ok((self.forward(cpu::slice(x, xl)?, cpu::slice(w, wl)?, Some(bias))?, xl.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dx, dw, db] = self.backward(x, weight, Some(bias), g)?;
        Ok((dx, dw, db))
    }
}
