//! What the hook system promises, one module per property.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod faults;
mod gradients;
mod ids;
mod leaks;
mod limits;
mod names;
mod order;
mod random_sequences;
mod registry;
mod reports;
mod schedule;
mod scopes;
mod sharing;
mod support;
mod threads;
mod watching;
