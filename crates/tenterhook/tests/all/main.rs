//! The binary, as a user runs it.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod capture;
mod forks;
mod hostile_data;
mod hostile_files;
mod hostile_names;
mod lab;
mod points;
mod support;
