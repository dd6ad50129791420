//! The binary, as a user runs it.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod after_the_end;
mod bad_input;
mod capture;
mod killed;
mod lab;
mod points;
mod resume;
mod saved_beside;
mod support;
mod traces;
