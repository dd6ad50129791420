//! The binary, as a user runs it.

mod bad_input;
mod capture;
mod points;
mod support;
