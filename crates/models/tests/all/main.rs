//! All integration tests of the models, in one binary; a module per property.

#![allow(clippy::unwrap_used)]

mod attention_only;
mod cached;
mod composed;
mod head_weights;
mod hub;
mod hub_server;
mod mlp;
mod padding;
mod reference;
mod saving;
mod support;
mod training;
mod watching;
