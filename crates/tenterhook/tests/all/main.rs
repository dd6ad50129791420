//! The binary, as a user runs it, and the library where numbers and events are looked at closely.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod bad_input;
mod capture;
mod damage_campaign;
mod damaged_checkpoints;
mod damages;
mod durability;
mod endings;
mod event_order;
mod failing_hooks;
mod faulty_disk;
mod file_modes;
mod full_disk;
mod grad_coverage;
mod hangs;
mod here;
mod lab;
mod loaders;
mod non_finite;
mod one_writer;
mod parity;
mod points;
mod recorder;
mod requests;
mod run_length;
mod running;
mod signals;
mod small;
mod support;
mod threads;
mod update_hooks;
mod watching;
