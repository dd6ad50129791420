//! A new start for dead latents.

use candle_core::{DType, Result, Tensor};
use tenterhook_hooks::random::Stream;

use super::task::{Entry, SaeTask};
use crate::layer::Bias;

/// How long the encoder of a latent that starts anew is, measured by those that are alive.
const ENCODER_SHARE: f64 = 0.2;

impl SaeTask {
    /// Whether dead latents get a new start with this step.
    pub(crate) fn resamples_at(&self, step: u64) -> bool {
        self.options().resample_every.is_some_and(|every| step > 0 && step.is_multiple_of(every))
    }
}

impl Entry {
    /// Turns every dead latent towards an input that was reconstructed badly: the worse, the more likely, by the square of its error. What the
    /// optimizer remembers of the latent stays.
    pub(crate) fn resample(
        &self,
        dead: &[bool],
        inputs: &Tensor,
        squares: &[f64],
        random: Stream,
    ) -> Result<()> {
        let layer = &self.layer;
        let dtype = layer.w_dec.value().dtype();
        let mut encoder = layer.w_enc.value().t()?.to_dtype(DType::F64)?.to_vec2::<f64>()?;
        let mut decoder = layer.w_dec.value().to_dtype(DType::F64)?.to_vec2::<f64>()?;
        let center = layer.b_dec.value().to_dtype(DType::F64)?.to_vec1::<f64>()?;
        let (encoder_norm, decoder_norm) = (mean_norm(&encoder, dead), mean_norm(&decoder, dead));
        let total: f64 = squares.iter().map(|square| square * square).sum();
        let inputs = inputs.to_dtype(DType::F64)?.to_vec2::<f64>()?;
        for latent in (0..dead.len()).filter(|latent| dead[*latent]) {
            let mut left = random.uniform(latent as u64) * total;
            let chosen = squares.iter().position(|square| {
                left -= square * square;
                left < 0.0
            });
            let input = &inputs[chosen.unwrap_or(inputs.len() - 1)];
            let centered: Vec<f64> = match layer.config().apply_b_dec_to_input {
                true => input.iter().zip(&center).map(|(x, center)| x - center).collect(),
                false => input.clone(),
            };
            let length = norm(&centered).max(1e-8);
            for (i, x) in centered.iter().enumerate() {
                decoder[latent][i] = decoder_norm * x / length;
                encoder[latent][i] = ENCODER_SHARE * encoder_norm * x / length;
            }
        }
        let matrix = |rows: Vec<Vec<f64>>| -> Result<Tensor> {
            Tensor::new(rows, layer.w_dec.value().device())?.to_dtype(dtype)
        };
        layer.w_dec.var().set(&matrix(decoder)?)?;
        layer.w_enc.var().set(&matrix(encoder)?.t()?.contiguous()?)?;
        let alive: Vec<f32> = dead.iter().map(|dead| f32::from(u8::from(!*dead))).collect();
        let alive = Tensor::new(alive, layer.w_dec.value().device())?.to_dtype(dtype)?;
        let biases = match &layer.bias {
            Bias::Plain(b_enc) | Bias::Jump { b_enc, .. } => vec![b_enc],
            Bias::Gated { b_gate, b_mag, r_mag } => vec![b_gate, b_mag, r_mag],
        };
        biases.into_iter().try_for_each(|bias| bias.var().set(&(bias.value() * &alive)?))
    }
}

fn norm(row: &[f64]) -> f64 {
    row.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// The mean norm of the rows of latents that are alive; of all when none is.
fn mean_norm(rows: &[Vec<f64>], dead: &[bool]) -> f64 {
    let any_alive = dead.contains(&false);
    let norms: Vec<f64> =
        rows.iter().zip(dead).filter(|(_, dead)| !any_alive || !**dead).map(|(row, _)| norm(row)).collect();
    norms.iter().sum::<f64>() / norms.len().max(1) as f64
}
