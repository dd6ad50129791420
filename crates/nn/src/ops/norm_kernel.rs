//! The CPU kernel of the norms.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use super::cpu;
use super::norm::{Norm, NormWatch, per_row};
use super::norm_pieces::{row_mean, row_scale};
use super::real::{Real, lane_sum};
use crate::parallel::Chunks;

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
    let Some(width) = x.len().checked_div(rows.len()) else { return Vec::new() };
    // SAFETY: every row is written.
    let mut values = unsafe { cpu::uninit::<T>(x.len()) };
    cpu::for_chunks(&mut values, cpu::chunk_rows(width) * width, |start, values| {
        cpu::wide(
            #[inline(always)]
            || {
                let lines = values.chunks_exact_mut(width).zip(x[start..].chunks_exact(width));
                for ((values, x), row) in lines.zip(&rows[start / width..]) {
                    values.iter_mut().zip(x).for_each(|(value, &x)| *value = row.normalized(x));
                }
            },
        );
    });
    values
}

pub(crate) struct NormOp<T> {
    pub(crate) norm: Norm,
    /// Filled by the forward, read by the backward and for the side outputs.
    pub(crate) stats: Arc<OnceLock<Vec<Row<T>>>>,
    pub(crate) watch: NormWatch,
}

/// The gradients of a norm's input, of its scale, and of its parameters.
pub(crate) struct Gradients<T> {
    pub(crate) x: Vec<T>,
    scale: Vec<T>,
    pub(crate) weight: Vec<T>,
    pub(crate) bias: Vec<T>,
}

/// Which gradients of a norm are wanted beside that of its input.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) weight: bool,
    pub(crate) bias: bool,
}

impl Norm {
    /// The weight with its offset added: what the normalized input is multiplied with.
    pub(crate) fn gain<'a, T: Real>(&self, weight: &'a [T]) -> Cow<'a, [T]> {
        match self.weight_offset {
            0.0 => Cow::Borrowed(weight),
            offset => weight.iter().map(|&weight| weight + T::of(offset)).collect(),
        }
    }

    /// The normed values, and what was found out about every row.
    pub(crate) fn forward<T: Real>(
        &self,
        x: &[T],
        weight: &[T],
        bias: Option<&[T]>,
    ) -> (Vec<T>, Vec<Row<T>>) {
        let width = weight.len();
        let gain = self.gain(weight);
        let eps = T::of(self.eps);
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
        let ys = Chunks::of(&mut y, rows * width);
        cpu::for_chunks(&mut stats, rows, |row, stats| {
            // SAFETY: every part is asked for once, together with the same one of the statistics.
            run(&x[row * width..], unsafe { ys.get(row / rows) }, stats);
        });
        (y, stats)
    }

    #[inline(always)]
    fn row<T: Real>(&self, x: &[T], y: &mut [T], gain: &[T], bias: Option<&[T]>, eps: T) -> Row<T> {
        let mean = if self.centered { row_mean(x) } else { T::zero() };
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

    /// The same arithmetic whether anybody watches or not. `also` is added to the gradient of the input.
    pub(crate) fn gradients<T: Real>(
        &self,
        rows: &[Row<T>],
        x: &[T],
        gain: &[T],
        g: &[T],
        wanted: Wanted,
        also: Option<&[T]>,
    ) -> Gradients<T> {
        let width = gain.len();
        // SAFETY: every row of both is written below.
        let (mut dx, mut dscale) = unsafe { (cpu::uninit::<T>(x.len()), cpu::uninit::<T>(rows.len())) };
        let rows_per_task = cpu::chunk_rows(width);
        let chunk = rows_per_task * width;
        let (dxs, dscales) = (Chunks::of(&mut dx, chunk), Chunks::of(&mut dscale, rows_per_task));
        let parts: Vec<[Vec<T>; 2]> = cpu::map_chunks(rows, rows_per_task, |first, rows| {
            // SAFETY: every part is asked for once.
            let (dx, dscale) =
                unsafe { (dxs.get(first / rows_per_task), dscales.get(first / rows_per_task)) };
            let (x, g) = (&x[first * width..], &g[first * width..]);
            let zeros = |wanted: bool| vec![T::zero(); if wanted { width } else { 0 }];
            let (mut dw, mut db) = (zeros(wanted.weight), zeros(wanted.bias));
            let also = also.map(|also| &also[first * width..]);
            cpu::wide(
                #[inline(always)]
                || {
                    let lines =
                        x.chunks_exact(width).zip(g.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
                    for (i, (((x, g), dx), (row, dscale))) in lines.zip(rows.iter().zip(dscale)).enumerate() {
                        for (dx, &x) in dx.iter_mut().zip(x) {
                            *dx = row.normalized(x);
                        }
                        for ((dw, &normalized), &g) in dw.iter_mut().zip(dx.iter()).zip(g) {
                            *dw += g * normalized;
                        }
                        cpu::add_to(&mut db, g);
                        *dscale = self.row_gradient(dx, g, gain, row.scale);
                        if let Some(also) = also {
                            cpu::add_to(dx, &also[i * width..]);
                        }
                    }
                },
            );
            [dw, db]
        });
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
    fn row_gradient<T: Real>(&self, row: &mut [T], g: &[T], gain: &[T], scale: T) -> T {
        let width = row.len();
        let count = T::of(width as f64);
        // Slices of a known length: no index is checked in the sums, so that they vectorise.
        let (g, gain) = (&g[..width], &gain[..width]);
        let along = lane_sum(width, |i| g[i] * gain[i] * row[i]);
        let mean = match self.centered {
            true => lane_sum(width, |i| g[i] * gain[i]) / count,
            false => T::zero(),
        };
        let (share, inverse) = (along / count, T::one() / scale);
        for ((value, &g), &gain) in row.iter_mut().zip(g).zip(gain) {
            *value = (g * gain - mean - *value * share) * inverse;
        }
        -along / scale
    }
}

impl<T: Real> NormOp<T> {
    fn forward(&self, x: &[T], weight: &[T], bias: Option<&[T]>) -> Result<CpuStorage> {
        let (y, stats) = self.norm.forward(x, weight, bias);
        match self.stats.set(stats) {
            Ok(()) => Ok(T::to_cpu_storage_owned(y)),
            Err(_) => candle_core::bail!("{}: one op object runs one forward", self.norm.name),
        }
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
                let gain = self.norm.gain(w);
                cpu::with_slice::<T, _>(g, |g| {
                    let wanted = Wanted { weight: weight.track_op(), bias: of_bias.is_some() };
                    Ok(self.norm.gradients(rows, x, &gain, g, wanted, None))
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

    fn show_gradients(&self, x: &Tensor, weight: &Tensor, g: &Tensor, dscale: Vec<T>) -> Result<()> {
        if let Some(watch) = &self.watch.normalized_grad {
            let gain =
                cpu::with_slice::<T, _>(weight, |w| cpu::tensor(self.norm.gain(w).into_owned(), w.len()))?;
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
