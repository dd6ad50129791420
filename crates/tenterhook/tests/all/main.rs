//! The binary, as a user runs it.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod capture;
mod lab;
mod points;
mod support;
