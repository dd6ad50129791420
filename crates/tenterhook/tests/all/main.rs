//! The binary, as a user runs it.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod broken_configurations;
mod capture;
mod config_command;
mod hooks_command;
mod lab;
mod points;
mod rerun;
mod runs_commands;
mod schema_fuzz;
mod support;
