//! The binary, as a user runs it.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod capture;
mod killed;
mod lab;
mod points;
mod resume;
mod saved_beside;
mod support;
mod traces;
