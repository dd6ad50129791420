//! All integration tests of the models, in one binary; a module per property.

#![allow(clippy::unwrap_used)]

mod cached;
mod composed;
mod reference;
mod saving;
mod support;
mod training;
mod watching;
