//! The binary, as a user runs it, and the library where numbers and events are looked at closely.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod capture;
mod endings;
mod event_order;
mod failing_hooks;
mod grad_coverage;
mod lab;
mod loaders;
mod non_finite;
mod parity;
mod points;
mod recorder;
mod requests;
mod run_length;
mod small;
mod support;
mod threads;
mod update_hooks;
mod watching;
