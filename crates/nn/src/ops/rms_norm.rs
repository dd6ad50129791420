//! RMS norm.

use candle_core::{Result, Tensor};

use super::norm::{Norm, NormOutput, NormWatch};

/// `x / sqrt(mean(x^2) + eps) * (weight + weight_offset)` over the last axis; the offset is 1 in Gemma, 0 elsewhere.
///
/// The piece [`norm_scale`](super::norm_scale), then candle's `broadcast_div` and `broadcast_mul`, give the same bits.
pub fn rms_norm(
    x: &Tensor,
    weight: &Tensor,
    eps: f64,
    weight_offset: f64,
    watch: &NormWatch,
) -> Result<NormOutput> {
    Norm { name: "RMS norm", centered: false, eps, weight_offset }.apply(x, weight, None, watch)
}
