//! Language models with hooks, on the tiny reference models; a module per property.

#![allow(clippy::unwrap_used)]

mod attention;
mod attribution;
mod attribution_patching;
mod cached_controllers;
mod caches;
mod circuits;
mod controllers;
mod decomposition;
mod detectors;
mod generation;
mod head_scores;
mod inference;
mod interventions;
mod layers;
mod logit_lens;
mod patching_bits;
mod patching_reference;
mod steering;
mod store;
mod store_capture;
mod store_damage;
mod support;
mod threads;
mod tokens;
