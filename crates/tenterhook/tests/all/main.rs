//! The binary, as a user runs it.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod bad_input;
mod capture;
mod damage_campaign;
mod damaged_checkpoints;
mod damages;
mod durability;
mod faulty_disk;
mod file_modes;
mod full_disk;
mod hangs;
mod here;
mod lab;
mod one_writer;
mod points;
mod running;
mod signals;
mod support;
