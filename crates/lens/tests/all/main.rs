//! Language models with hooks, on the tiny reference models; a module per property.

#![allow(clippy::unwrap_used)]

mod caches;
mod generation;
mod inference;
mod layers;
mod support;
mod threads;
