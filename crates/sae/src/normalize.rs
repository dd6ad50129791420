//! What is done to activations before they are encoded, and how it is undone.

use candle_core::{D, Result, Tensor};

use crate::config::Normalize;

/// SAELens adds it to the standard deviation.
const EPS: f64 = 1e-5;

/// How a normalisation is undone: what it found in the input.
#[derive(Clone, Debug)]
pub(crate) enum Undo {
    /// Nothing was done.
    Nothing,
    /// Every input was multiplied by a factor `[.., 1]`.
    Divide(Tensor),
    /// Every input lost its mean `[.., 1]` and was divided by its standard deviation `[.., 1]`.
    ScaleAndShift { std: Tensor, mean: Tensor },
}

impl Normalize {
    /// The input as it is encoded.
    pub(crate) fn apply(self, x: &Tensor) -> Result<(Tensor, Undo)> {
        let width = x.dim(D::Minus1)? as f64;
        match self {
            Self::None | Self::ExpectedAverageOnlyIn => Ok((x.clone(), Undo::Nothing)),
            Self::ConstantNormRescale => {
                let factor = (x.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?.recip()? * width.sqrt())?;
                Ok((x.broadcast_mul(&factor)?, Undo::Divide(factor)))
            }
            Self::LayerNorm => {
                let mean = (x.sum_keepdim(D::Minus1)? / width)?;
                let x = x.broadcast_sub(&mean)?;
                // The mean is gone up to rounding, which PyTorch subtracts once more.
                let rest = (x.sum_keepdim(D::Minus1)? / width)?;
                let variance = (x.broadcast_sub(&rest)?.sqr()?.sum_keepdim(D::Minus1)? / (width - 1.0))?;
                let std = variance.sqrt()?;
                Ok((x.broadcast_div(&(&std + EPS)?)?, Undo::ScaleAndShift { std, mean }))
            }
        }
    }
}

impl Undo {
    /// A reconstruction as the input was.
    pub(crate) fn apply(&self, x: Tensor) -> Result<Tensor> {
        match self {
            Self::Nothing => Ok(x),
            Self::Divide(factor) => x.broadcast_div(factor),
            Self::ScaleAndShift { std, mean } => x.broadcast_mul(std)?.broadcast_add(mean),
        }
    }

    /// The difference of two reconstructions as the input was.
    pub(crate) fn apply_to_difference(&self, x: Tensor) -> Result<Tensor> {
        match self {
            Self::ScaleAndShift { std, .. } => x.broadcast_mul(std),
            _ => self.apply(x),
        }
    }
}
