//! The binary, as a user runs it, and the library where numbers and events are looked at closely.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

// Faults exist in debug builds only, and so do the tests that need them.
mod after_the_end;
mod bad_input;
mod broken_configurations;
mod capture;
mod config_command;
mod damage_campaign;
mod damaged_checkpoints;
mod damages;
mod debugging;
#[cfg(debug_assertions)]
mod durability;
mod endings;
mod endurance;
mod event_order;
mod failing_hooks;
#[cfg(debug_assertions)]
mod faulty_disk;
mod file_modes;
mod forks;
#[cfg(debug_assertions)]
mod full_disk;
mod gathered;
mod grad_coverage;
#[cfg(debug_assertions)]
mod hangs;
mod here;
mod hooks_command;
mod hooks_config;
mod hostile_data;
mod hostile_files;
mod hostile_names;
mod killed;
mod lab;
mod loaders;
mod non_finite;
#[cfg(debug_assertions)]
mod one_writer;
mod options;
mod parity;
mod points;
mod receiver;
mod recorder;
mod requests;
mod rerun;
mod resume;
mod run_length;
#[cfg(debug_assertions)]
mod running;
mod runs_commands;
mod saved_beside;
mod sae_command;
mod schema_fuzz;
mod secrets;
#[cfg(debug_assertions)]
mod signals;
mod small;
mod support;
mod threads;
mod traces;
mod update_hooks;
mod watching;
