//! The hooks that come with the spine. Each is one file: its options, its code, its documentation and its tests.

pub mod capture;
pub mod debug;
pub mod gradient_flow;
pub mod monitor;
