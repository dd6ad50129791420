//! A norm whose divisor is kept at what it was: linear up to a constant, so that it treats the parts of a sum one by one.

use candle_core::{DType, Tensor};
use tenterhook_models::NormWeights;
use tenterhook_nn::ops::center;

use crate::error::LensError;

/// `x -> (x, minus its mean where centered) / scale * gain`, plus a constant.
pub(super) struct FrozenNorm {
    weights: NormWeights,
    /// `[pos, 1]`.
    scale: Tensor,
}

impl FrozenNorm {
    pub(super) fn new(weights: NormWeights, scale: &Tensor) -> Result<Self, LensError> {
        let gain = weights.gain.to_dtype(DType::F32)?;
        let bias = weights.bias.as_ref().map(|bias| bias.to_dtype(DType::F32)).transpose()?;
        let weights = NormWeights { gain, bias, ..weights };
        Ok(Self { weights, scale: scale.to_dtype(DType::F32)? })
    }

    /// The linear part, of `[.., pos, d_model]`.
    pub(super) fn linear(&self, x: &Tensor) -> Result<Tensor, LensError> {
        let x = if self.weights.centered { center(x)? } else { x.clone() };
        Ok(x.broadcast_div(&self.scale)?.broadcast_mul(&self.weights.gain)?)
    }

    /// The constant, `[d_model]`.
    pub(super) fn bias(&self) -> Option<&Tensor> {
        self.weights.bias.as_ref()
    }

    /// The directions `[pos, d_model]` that ask before the norm what these ask after it: `linear(x) . direction = x . pull_back(direction)`.
    pub(super) fn pull_back(&self, direction: &Tensor) -> Result<Tensor, LensError> {
        let weighted = direction.broadcast_mul(&self.weights.gain)?;
        let weighted = if self.weights.centered { center(&weighted)? } else { weighted };
        Ok(weighted.broadcast_div(&self.scale)?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn a_direction_asks_the_same_before_and_after() {
        let tensor = |values: Vec<[f32; 3]>| {
            Tensor::new(values.concat(), &Device::Cpu).unwrap().reshape((values.len(), 3)).unwrap()
        };
        let (x, direction) =
            (tensor(vec![[1.0, -2.0, 0.5], [0.2, 4.0, -1.0]]), tensor(vec![[0.3, 0.7, -1.1]]));
        for centered in [true, false] {
            let gain = Tensor::new(&[1.5f32, 0.5, -2.0], &Device::Cpu).unwrap();
            let scale = Tensor::new(&[[2.0f32], [0.5]], &Device::Cpu).unwrap();
            let norm = FrozenNorm::new(NormWeights { gain, bias: None, centered }, &scale).unwrap();
            let dot = |x: &Tensor, y: &Tensor| {
                x.broadcast_mul(y).unwrap().sum(1).unwrap().to_vec1::<f32>().unwrap()
            };
            let after = dot(&norm.linear(&x).unwrap(), &direction);
            let before = dot(&x, &norm.pull_back(&direction).unwrap());
            after.iter().zip(before).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} {b}"));
        }
    }
}
