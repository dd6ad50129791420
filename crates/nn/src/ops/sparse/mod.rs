//! What sparse autoencoders are made of: activation functions that leave few latents, and products that gain from it.
//!
//! Tensors stay dense, so that hooks can look at them; the kernels skip what is zero.

mod autoencode;
mod decode;
mod encode;
mod jump_relu;
mod rows;
mod select;
mod sums;
mod top_k;

pub use autoencode::{AutoencodeSpec, Autoencoded, AutoencoderWeights, autoencode};
pub use decode::{DecodeSpec, decode};
pub use encode::{EncodeGrads, encode};
pub use jump_relu::{JumpSpec, jump_relu, step};
pub use sums::{Activity, activity, row_norms, weighted_sum};
pub use top_k::{Keep, TopKSpec, top_k};
