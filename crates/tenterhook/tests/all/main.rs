//! The binary, as a user runs it.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod capture;
mod event_order;
mod lab;
mod parity;
mod points;
mod recorder;
mod small;
mod support;
