//! Language models with hooks, on the tiny reference models; a module per property.

#![allow(clippy::unwrap_used)]

mod caches;
mod generation;
mod inference;
mod layers;
mod store;
mod store_capture;
mod store_damage;
mod support;
mod threads;
