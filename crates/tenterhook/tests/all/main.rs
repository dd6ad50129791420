//! The binary, as a user runs it, and the library where numbers and events are looked at closely.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

// Faults exist in debug builds only, and so do the tests that need them.
mod after_the_end;
mod attribute_command;
mod bad_input;
mod bench_command;
mod broken_configurations;
mod capture;
mod capture_budget;
mod capture_store;
mod completions_command;
mod config_command;
mod damage_campaign;
mod damaged_checkpoints;
mod damages;
mod debugging;
mod demo_command;
mod documentation;
#[cfg(debug_assertions)]
mod durability;
mod endings;
mod endurance;
mod event_order;
mod example_files;
mod failing_hooks;
#[cfg(debug_assertions)]
mod faulty_disk;
mod file_modes;
mod forks;
#[cfg(debug_assertions)]
mod full_disk;
mod gathered;
mod generate_command;
mod grad_coverage;
#[cfg(debug_assertions)]
mod hangs;
mod heads_command;
mod here;
mod histograms;
mod hooks_command;
mod hooks_config;
mod hooks_file;
mod hostile_data;
mod hostile_files;
mod hostile_names;
mod hub_names;
#[path = "../../../models/tests/all/hub_server.rs"]
mod hub_server;
mod killed;
mod lab;
mod lens_command;
mod live_control;
mod loaders;
mod non_finite;
#[cfg(debug_assertions)]
mod one_writer;
mod options;
mod parity;
mod patch_command;
mod patching_trained;
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
mod sae_command;
mod saved_beside;
mod schema_fuzz;
mod secrets;
#[cfg(debug_assertions)]
mod serve_command;
mod shown;
#[cfg(debug_assertions)]
mod signals;
mod small;
mod steer_command;
mod support;
mod threads;
mod traces;
mod update_hooks;
mod watching;
