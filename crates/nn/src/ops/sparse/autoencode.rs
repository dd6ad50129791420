//! Encoder, top-k and decoder of a sparse autoencoder in one op.

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use std::sync::Arc;

use super::super::GradBuffer;
use super::super::cpu::{self, dispatch};
use super::super::grad_buffer::deliver;
use super::super::real::{Real, lane_sum};
use super::decode::times;
use super::encode::{add_columns, center_grad, centered, product};
use super::rows::{Nonzeros, add_times};
use super::sums::Activity;
use super::top_k::{Keep, TopKSpec};
use crate::parallel;

/// The weights of an autoencoder, and where the gradients of its matrices are added up.
#[derive(Clone, Copy)]
pub struct AutoencoderWeights<'a> {
    /// `[in, latents]`.
    pub w_enc: &'a Tensor,
    /// `[latents]`.
    pub b_enc: &'a Tensor,
    /// `[latents, in]`.
    pub w_dec: &'a Tensor,
    /// `[in]`.
    pub b_dec: &'a Tensor,
    /// For `w_enc`.
    pub encoder_grad: Option<&'a Arc<GradBuffer>>,
    /// For `w_dec`.
    pub decoder_grad: Option<&'a Arc<GradBuffer>>,
}

/// How activations are encoded.
pub struct AutoencodeSpec {
    /// How many latents of every row are kept.
    pub k: usize,
    /// The factors by which latents are compared, which are divided out again, `[latents]`. They are taken as constants.
    pub scale: Option<Tensor>,
    /// Latents that are decoded once more by themselves, negative ones too, and how many of them in every row.
    pub also: Option<(Arc<Vec<bool>>, usize)>,
    /// Whether the decoder's bias is subtracted first.
    pub centered: bool,
}

/// What came of it.
pub struct Autoencoded {
    /// The reconstruction, `[rows, in]`.
    pub recons: Tensor,
    /// What the latents of `also` make, without the bias.
    pub also: Option<Tensor>,
    /// Which latents were active.
    pub activity: Activity,
}

/// Encodes `x [rows, in]`, keeps the `k` largest latents and decodes them. The bits, gradients included, are those of
/// [`encode`](super::encode), [`top_k`](super::top_k) and [`decode`](super::decode) one after the other, but the tape sees no tensor of
/// all latents. `None` where that cannot be: on other devices, for an `x` that wants a gradient, for so many latents that sparse sums
/// are not worth while.
pub fn autoencode(
    x: &Tensor,
    weights: AutoencoderWeights,
    spec: &AutoencodeSpec,
) -> Result<Option<Autoencoded>> {
    let (inputs, latents) = weights.w_enc.dims2()?;
    let most = spec.k + spec.also.as_ref().map_or(0, |(_, k)| *k);
    let sparse = most.saturating_mul(10) <= latents;
    if !cpu::fused(x)
        || x.track_op()
        || !sparse
        || spec.k == 0
        || spec.also.as_ref().is_some_and(|(_, k)| *k == 0)
    {
        return Ok(None);
    }
    if x.rank() != 2
        || x.dim(1)? != inputs
        || weights.w_dec.dims() != [latents, inputs]
        || weights.b_enc.dims() != [latents]
        || weights.b_dec.dims() != [inputs]
        || spec.scale.as_ref().is_some_and(|scale| scale.dims() != [latents])
        || spec.also.as_ref().is_some_and(|(only, _)| only.len() != latents)
    {
        candle_core::bail!(
            "autoencode: {:?} does not fit weights of {inputs} inputs and {latents} latents",
            x.shape()
        );
    }
    dispatch!(x.dtype(), T => run::<T>(x, weights, spec)).map(Some)
}

fn run<T: Real>(x: &Tensor, weights: AutoencoderWeights, spec: &AutoencodeSpec) -> Result<Autoencoded> {
    let (inputs, latents) = weights.w_enc.dims2()?;
    let rows = x.dim(0)?;
    let scale = match &spec.scale {
        None => Vec::new(),
        Some(scale) => {
            cpu::with_slice::<T, _>(&scale.detach().to_dtype(x.dtype())?, |scale| Ok(scale.to_vec()))?
        }
    };
    let values = |t: &Tensor| cpu::with_slice::<T, _>(&t.detach(), |t| Ok(t.to_vec()));
    let center = if spec.centered { values(weights.b_dec)? } else { Vec::new() };
    let x = cpu::with_slice::<T, _>(x, |x| Ok(centered(x, &center)))?;
    let bias = values(weights.b_enc)?;
    let pre =
        cpu::with_slice::<T, _>(&weights.w_enc.detach(), |w| Ok(product(&x, w, &bias, (inputs, latents))))?;
    let select = |only: Option<Arc<Vec<bool>>>, k: usize| {
        let choice = TopKSpec { relu: only.is_none(), only, ..TopKSpec::new(Keep::PerRow(k)) };
        let factors = (!scale.is_empty()).then_some(scale.as_slice());
        let of_row = |row: usize| choice.of_row(&pre[row * latents..(row + 1) * latents], factors, k);
        Selected::new(parallel::map(rows, of_row))
    };
    let mut parts = vec![select(None, spec.k)];
    parts.extend(spec.also.as_ref().map(|(only, k)| select(Some(only.clone()), *k)));
    drop(pre);
    let activity = parts[0].activity(latents);
    let op = AutoencodeOp {
        x,
        parts,
        factors: scale.iter().map(|scale| T::one() / *scale).collect(),
        scale,
        centered: spec.centered,
        encoder_grad: weights.encoder_grad.cloned(),
        decoder_grad: weights.decoder_grad.cloned(),
    };
    let vectors = Tensor::cat(&[weights.b_enc, weights.b_dec], 0)?;
    let out = weights.w_enc.contiguous()?.apply_op3(&weights.w_dec.contiguous()?, &vectors, op)?;
    let also = match spec.also {
        None => None,
        Some(_) => Some(out.narrow(0, rows, rows)?),
    };
    Ok(Autoencoded { recons: out.narrow(0, 0, rows)?, also, activity })
}

/// The latents that were kept, and their activations.
struct Selected<T> {
    places: Nonzeros,
    acts: Vec<T>,
}

impl<T: Real> Selected<T> {
    fn new(rows: Vec<Vec<(usize, T)>>) -> Self {
        let acts = rows.iter().flatten().map(|(_, act)| *act).collect();
        let columns = |row: &Vec<(usize, T)>| row.iter().map(|(latent, _)| *latent as u32).collect();
        Self { places: Nonzeros::from_rows(rows.iter().map(columns)), acts }
    }

    fn activity(&self, latents: usize) -> Activity {
        let mut fired = vec![0u64; latents];
        for row in 0..self.places.rows() {
            self.places.row(row).iter().for_each(|latent| fired[*latent as usize] += 1);
        }
        let least = self.acts.iter().map(|act| candle_core::WithDType::to_f64(*act)).filter(|act| *act > 0.0);
        let least = least.fold(f64::INFINITY, f64::min);
        Activity { fired, least: least.is_finite().then_some(least) }
    }
}

struct AutoencodeOp<T> {
    /// Without its center.
    x: Vec<T>,
    /// The latents that reconstruct, and those that are decoded by themselves.
    parts: Vec<Selected<T>>,
    /// What pre-activations were multiplied by, and its inverse; empty for nothing.
    scale: Vec<T>,
    factors: Vec<T>,
    centered: bool,
    encoder_grad: Option<Arc<GradBuffer>>,
    decoder_grad: Option<Arc<GradBuffer>>,
}

const ROWS_PER_TASK: usize = 16;
const LATENTS_PER_TASK: usize = 64;

impl<T: Real> AutoencodeOp<T> {
    fn forward(&self, w_dec: &[T], bias: &[T]) -> Vec<T> {
        let width = bias.len();
        let rows = self.parts[0].places.rows();
        let mut out = vec![T::zero(); self.parts.len() * rows * width];
        for (number, (part, out)) in
            self.parts.iter().zip(out.chunks_exact_mut((rows * width).max(1))).enumerate()
        {
            cpu::for_chunks(out, width * ROWS_PER_TASK, |start, out| {
                for (row, y) in (start / width..).zip(out.chunks_exact_mut(width)) {
                    if number == 0 {
                        y.copy_from_slice(bias);
                    }
                    for entry in part.places.entries(row) {
                        let latent = part.places.latent(entry);
                        let act = times(part.acts[entry], &self.factors, latent);
                        add_times(y, act, &w_dec[latent * width..(latent + 1) * width]);
                    }
                }
            });
        }
        out
    }

    /// The gradients of the pre-activations that were kept.
    fn pre_grad(&self, part: &Selected<T>, g: &[T], w_dec: &[T], width: usize) -> Vec<T> {
        let of_row = |row: usize| {
            let g = &g[row * width..(row + 1) * width];
            let of_entry = |entry: usize| {
                let latent = part.places.latent(entry);
                let w = &w_dec[latent * width..(latent + 1) * width];
                let dot = cpu::wide(
                    #[inline(always)]
                    || lane_sum(width, |i| g[i] * w[i]),
                );
                times(times(dot, &self.factors, latent), &self.scale, latent)
            };
            part.places.entries(row).map(of_entry).collect::<Vec<T>>()
        };
        let rows: Vec<Vec<T>> = parallel::map(part.places.rows(), of_row);
        rows.concat()
    }

    fn add_decoder_grad(&self, part: &Selected<T>, g: &[T], dw: &mut [T], (latents, width): (usize, usize)) {
        let by_latent = part.places.by_column(latents);
        cpu::for_chunks(dw, width * LATENTS_PER_TASK, |start, dw| {
            for (latent, dw) in (start / width..).zip(dw.chunks_exact_mut(width)) {
                for (row, entry) in by_latent.column(latent) {
                    add_times(
                        dw,
                        times(part.acts[entry], &self.factors, latent),
                        &g[row * width..(row + 1) * width],
                    );
                }
            }
        });
    }

    fn backward(
        &self,
        w_enc: &Tensor,
        w_dec: &Tensor,
        v: &Tensor,
        g: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let (width, latents) = w_enc.dims2()?;
        let rows = self.parts[0].places.rows();
        cpu::with_slice::<T, _>(g, |g| {
            let gs: Vec<&[T]> = g.chunks_exact((rows * width).max(1)).collect();
            let pre = cpu::with_slice::<T, _>(w_dec, |w| {
                let of_part = |(part, g): (&Selected<T>, &&[T])| self.pre_grad(part, g, w, width);
                Ok(merged(&self.parts, self.parts.iter().zip(&gs).map(of_part).collect()))
            })?;
            let d_dec = deliver(w_dec, self.decoder_grad.as_ref(), |dw, _| {
                // The last one first, as the tape comes to them.
                for (part, g) in self.parts.iter().zip(&gs).rev() {
                    self.add_decoder_grad(part, g, dw, (latents, width));
                }
            })?;
            let by_latent = pre.places.by_column(latents);
            let d_enc = deliver(w_enc, self.encoder_grad.as_ref(), |dw, _| {
                add_columns(dw, &by_latent, |_, _, entry| pre.acts[entry], &self.x, (width, latents));
            })?;
            // In the order in which the columns of a whole matrix are summed.
            let chunk = cpu::chunk_rows(latents);
            let sum = |latent: usize| {
                let (mut sum, mut part, mut number) = (T::zero(), T::zero(), 0);
                for (row, entry) in by_latent.column(latent) {
                    if row / chunk != number {
                        sum += part;
                        (part, number) = (T::zero(), row / chunk);
                    }
                    part += pre.acts[entry];
                }
                sum + part
            };
            let mut vectors: Vec<T> = parallel::map(latents, sum);
            let mut bias = vec![T::zero(); width];
            cpu::add_column_sums(&mut bias, gs[0], width);
            if self.centered {
                let center =
                    cpu::with_slice::<T, _>(w_enc, |w| Ok(center_grad(&vectors, w, (width, latents))))?;
                cpu::add_to(&mut bias, &center);
            }
            vectors.append(&mut bias);
            Ok([d_enc, d_dec, Some(cpu::tensor(vectors, v.shape())?)])
        })
    }
}

/// The gradients of all parts, summed where a latent is in several.
fn merged<T: Real>(parts: &[Selected<T>], grads: Vec<Vec<T>>) -> Selected<T> {
    let of_row = |row: usize| {
        let mut all: Vec<(usize, T)> = Vec::new();
        for (part, grads) in parts.iter().zip(&grads) {
            all.extend(part.places.entries(row).map(|entry| (part.places.latent(entry), grads[entry])));
        }
        all.sort_by_key(|(latent, _)| *latent);
        all.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                kept.1 += later.1;
            }
            same
        });
        all
    };
    Selected::new(parallel::map(parts[0].places.rows(), of_row))
}

impl<T: Real> CustomOp3 for AutoencodeOp<T> {
    fn name(&self) -> &'static str {
        "autoencode"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        el: &Layout,
        w_dec: &CpuStorage,
        dl: &Layout,
        v: &CpuStorage,
        vl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (width, latents) = el.shape().dims2()?;
        let bias = &cpu::slice::<T>(v, vl)?[latents..];
        let out = self.forward(cpu::slice::<T>(w_dec, dl)?, bias);
        let rows = out.len() / width.max(1);
        Ok((T::to_cpu_storage_owned(out), Shape::from((rows, width))))
    }

    fn bwd(
        &self,
        w_enc: &Tensor,
        w_dec: &Tensor,
        v: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [d_enc, d_dec, dv] = self.backward(w_enc, w_dec, v, g)?;
        Ok((d_enc, d_dec, dv))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::check::{assert_same_bits, check_gradients, gradients, random};
    use super::super::super::compare::same_on_any_threads;
    use super::super::{DecodeSpec, EncodeGrads, decode, encode, row_norms, top_k};
    use super::*;
    use candle_core::{DType, Var};

    const ROWS: usize = 17;
    const WIDTH: usize = 6;
    const LATENTS: usize = 80;

    /// `w_enc`, `b_enc`, `w_dec`, `b_dec`.
    fn weights(dtype: DType) -> [Tensor; 4] {
        [
            random((WIDTH, LATENTS), 1, dtype),
            random(LATENTS, 2, dtype),
            random((LATENTS, WIDTH), 3, dtype),
            random(WIDTH, 4, dtype),
        ]
    }

    fn also(wanted: bool) -> Option<(Arc<Vec<bool>>, usize)> {
        wanted.then(|| (Arc::new((0..LATENTS).map(|latent| latent % 3 == 0).collect()), 4))
    }

    fn fused(v: &[Var], x: &Tensor, scaled: bool, twice: bool, centered: bool) -> Result<Tensor> {
        let scale = scaled.then(|| row_norms(&v[2].as_detached_tensor())).transpose()?;
        let spec = AutoencodeSpec { k: 3, scale, also: also(twice), centered };
        let weights = AutoencoderWeights {
            w_enc: &v[0],
            b_enc: &v[1],
            w_dec: &v[2],
            b_dec: &v[3],
            encoder_grad: None,
            decoder_grad: None,
        };
        match autoencode(x, weights, &spec)? {
            Some(Autoencoded { recons, also: Some(also), .. }) => Tensor::cat(&[recons, also], 0),
            Some(Autoencoded { recons, .. }) => Ok(recons),
            None => candle_core::bail!("it was not fused"),
        }
    }

    fn one_by_one(v: &[Var], x: &Tensor, scaled: bool, twice: bool, centered: bool) -> Result<Tensor> {
        let scale = scaled.then(|| row_norms(&v[2].as_detached_tensor())).transpose()?;
        let center = centered.then_some(v[3].as_tensor());
        let pre = encode(x, &v[0], Some(&v[1]), center, &EncodeGrads::default())?;
        let choice = TopKSpec { scale: scale.clone(), ..TopKSpec::new(Keep::PerRow(3)) };
        let spec = DecodeSpec { divide_by: scale, active_only: true, weight_grad: None };
        let recons = decode(&top_k(&pre, &choice)?, &v[2], Some(&v[3]), &spec)?;
        let Some((only, k)) = also(twice) else { return Ok(recons) };
        let choice = TopKSpec { keep: Keep::PerRow(k), only: Some(only), relu: false, ..choice };
        Tensor::cat(&[recons, decode(&top_k(&pre, &choice)?, &v[2], None, &spec)?], 0)
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        // Numbers whose choice is so clear that no difference changes it. Without factors: they are taken as constants, which
        // differences would see.
        let x = random((5, WIDTH), 3950, DType::F64);
        for (twice, centered) in [(false, true), (true, true), (true, false)] {
            check_gradients("autoencode", &weights(DType::F64), |v| fused(v, &x, false, twice, centered));
        }
    }

    #[test]
    fn the_bits_are_those_of_the_parts() -> Result<()> {
        for dtype in [DType::F32, DType::F64] {
            let x = random((ROWS, WIDTH), 5, dtype);
            for (scaled, centered) in [(false, false), (false, true), (true, true)] {
                for twice in [false, true] {
                    let (a, da) = gradients(&weights(dtype), |v| fused(v, &x, scaled, twice, centered))?;
                    let (b, db) = gradients(&weights(dtype), |v| one_by_one(v, &x, scaled, twice, centered))?;
                    assert_same_bits("reconstruction", &a, &b);
                    for (i, (a, b)) in da.iter().zip(&db).enumerate() {
                        // A latent in both parts has its decoder row's gradient summed in one order or the other.
                        if i != 2 || !twice {
                            assert_same_bits(&format!("gradient {i}"), a, b);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn any_number_of_threads_gives_the_same() -> Result<()> {
        let x = random((ROWS, WIDTH), 5, DType::F32);
        same_on_any_threads("autoencode", &weights(DType::F32), |v| fused(v, &x, true, true, true))
    }

    #[test]
    fn what_cannot_be_fused_is_left_to_the_parts() -> Result<()> {
        let [w_enc, b_enc, w_dec, b_dec] = weights(DType::F32);
        let weights = AutoencoderWeights {
            w_enc: &w_enc,
            b_enc: &b_enc,
            w_dec: &w_dec,
            b_dec: &b_dec,
            encoder_grad: None,
            decoder_grad: None,
        };
        let spec = |k| AutoencodeSpec { k, scale: None, also: None, centered: true };
        let x = random((ROWS, WIDTH), 5, DType::F32);
        assert!(autoencode(&x, weights, &spec(9))?.is_none());
        assert!(autoencode(Var::from_tensor(&x)?.as_tensor(), weights, &spec(3))?.is_none());
        assert!(autoencode(&w_enc, weights, &spec(3)).is_err());
        let done = autoencode(&x, weights, &spec(3))?.map(|done| done.activity);
        assert_eq!(done.map(|activity| activity.total()), Some(3 * ROWS as u64));
        Ok(())
    }
}
