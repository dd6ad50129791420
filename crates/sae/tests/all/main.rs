//! All integration tests of sparse autoencoders, in one binary; a module per property.

#![allow(clippy::unwrap_used)]

mod damaged;
mod hook;
mod reference;
mod runs;
mod support;
mod toy;
mod training_reference;
