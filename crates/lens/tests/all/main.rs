//! Language models with hooks, on the tiny reference models; a module per property.

#![allow(clippy::unwrap_used)]

mod attribution_patching;
mod cached_controllers;
mod caches;
mod controllers;
mod generation;
mod inference;
mod interventions;
mod layers;
mod patching_bits;
mod patching_reference;
mod steering;
mod support;
mod threads;
