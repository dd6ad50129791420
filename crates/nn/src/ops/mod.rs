//! Operations with a forward and a backward: fused and threaded on the CPU, composed of candle ops elsewhere.

mod activation;
mod add;
mod attention;
mod branch;
#[cfg(test)]
pub(crate) mod check;
#[cfg(test)]
pub(crate) mod compare;
pub(crate) mod cpu;
mod cross_entropy;
mod dropout;
mod embedding;
mod gated;
mod grad_buffer;
mod indices;
mod layer_norm;
mod linear;
mod linear_activated;
mod linear_cross_entropy;
pub(crate) mod norm;
mod norm_kernel;
mod norm_pieces;
mod product;
pub(crate) mod real;
mod rms_norm;
mod rope;
mod rope_table;
mod soft_cap;
mod softmax;
pub mod sparse;
mod watch_gradient;

pub use activation::{Activation, activate};
pub use add::add;
pub use attention::{
    AttentionSpec, attention, attention_apply, attention_of_stack, attention_pattern, attention_scores,
};
pub use branch::{BranchMlp, BranchNorm, Projection, attention_branch, mlp_branch};
pub use cpu::{composed_only, vectors_of_512_allowed, wide};
pub use cross_entropy::cross_entropy;
pub use dropout::dropout;
pub use embedding::embedding;
pub use gated::gated;
pub use grad_buffer::GradBuffer;
pub use layer_norm::layer_norm;
pub use linear::{LinearGrads, WeightLayout, linear};
pub use linear_activated::linear_activated;
pub use linear_cross_entropy::linear_cross_entropy;
pub use norm::{GradWatch, NormOutput, NormWatch};
pub use norm_pieces::{center, norm_scale};
pub use product::product_seconds;
pub use rms_norm::rms_norm;
pub use rope::rope;
pub use rope_table::{RopeScaling, RopeSpec, RopeTable, rope_table};
pub use soft_cap::soft_cap;
pub use softmax::softmax;
pub use watch_gradient::watch_gradient;
