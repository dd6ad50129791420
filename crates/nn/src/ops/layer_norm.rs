//! Layer norm.

use candle_core::{Result, Tensor};

use super::norm::{Norm, NormOutput, NormWatch};

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last axis.
///
/// The pieces [`center`](super::center) and [`norm_scale`](super::norm_scale), then candle's `broadcast_div`,
/// `broadcast_mul` and `broadcast_add`, give the same bits.
pub fn layer_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    eps: f64,
    watch: &NormWatch,
) -> Result<NormOutput> {
    Norm { name: "layer norm", centered: true, eps, weight_offset: 0.0 }.apply(x, weight, bias, watch)
}
