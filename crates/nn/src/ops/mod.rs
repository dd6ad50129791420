//! Operations with a forward and a backward: fused and threaded on the CPU, composed of candle ops elsewhere.

pub(crate) mod cpu;
mod grad_buffer;
pub(crate) mod matmul;
pub(crate) mod real;

pub use cpu::composed_only;
pub use grad_buffer::GradBuffer;
