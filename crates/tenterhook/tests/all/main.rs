//! The binary, as a user runs it.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

// Faults exist in debug builds only, and so do the tests that need them.
mod bad_input;
mod capture;
mod damage_campaign;
mod damaged_checkpoints;
mod damages;
#[cfg(debug_assertions)]
mod durability;
#[cfg(debug_assertions)]
mod faulty_disk;
mod file_modes;
#[cfg(debug_assertions)]
mod full_disk;
#[cfg(debug_assertions)]
mod hangs;
mod here;
mod lab;
#[cfg(debug_assertions)]
mod one_writer;
mod points;
#[cfg(debug_assertions)]
mod running;
#[cfg(debug_assertions)]
mod signals;
mod support;
