//! Language models with hooks, on the tiny reference models; a module per property.

#![allow(clippy::unwrap_used)]

mod cached_controllers;
mod caches;
mod controllers;
mod generation;
mod inference;
mod layers;
mod store;
mod store_capture;
mod store_damage;
mod support;
mod threads;
