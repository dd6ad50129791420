//! The binary, as a user runs it.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod capture;
mod debugging;
mod endurance;
mod gathered;
mod hooks_config;
mod lab;
mod options;
mod points;
mod receiver;
mod secrets;
mod support;
