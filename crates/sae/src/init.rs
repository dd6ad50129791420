//! How an autoencoder begins.

use candle_core::{DType, Device, Result, Tensor};
use tenterhook_hooks::random::Stream;
use tenterhook_nn::{Init, Weights};

/// A random start as SAELens makes it: the decoder's rows point anywhere and have one norm, the encoder is the decoder turned over, biases
/// are 0. Every weight is a function of the seed and its name.
#[derive(Clone, Copy, Debug)]
pub struct FreshWeights {
    /// The seed.
    pub seed: u64,
    /// The norm of the decoder's rows; `None` leaves them as they are drawn.
    pub decoder_init_norm: Option<f64>,
    /// The thresholds of JumpReLU.
    pub threshold: f64,
}

impl FreshWeights {
    fn decoder(&self, name: &str, latents: usize, width: usize) -> Result<Tensor> {
        let stream = Stream::new(self.seed).named("init").named(name);
        let bound = (6.0 / width as f64).sqrt();
        let mut values: Vec<f64> =
            (0..(latents * width) as u64).map(|i| bound * (2.0 * stream.uniform(i) - 1.0)).collect();
        if let Some(wanted) = self.decoder_init_norm {
            for row in values.chunks_exact_mut(width.max(1)) {
                let norm = row.iter().map(|value| value * value).sum::<f64>().sqrt();
                row.iter_mut().for_each(|value| *value *= wanted / norm);
            }
        }
        Tensor::from_vec(values, (latents, width), &Device::Cpu)
    }
}

impl Weights for FreshWeights {
    fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        _init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let value = match (name.rsplit('.').next(), shape) {
            (Some("W_dec"), [latents, width]) => self.decoder(name, *latents, *width)?,
            (Some("W_enc"), [width, latents]) => {
                let decoder = format!("{}W_dec", name.strip_suffix("W_enc").unwrap_or_default());
                self.decoder(&decoder, *latents, *width)?.t()?.contiguous()?
            }
            (Some("threshold"), shape) => Tensor::full(self.threshold, shape, &Device::Cpu)?,
            (_, shape) => Tensor::zeros(shape, DType::F64, &Device::Cpu)?,
        };
        value.to_dtype(dtype)?.to_device(device)
    }
}
