//! Every parser of a file or of a user's text, fed with damaged copies of good input: no panic, no hang, and no memory that the input
//! does not account for. A program of its own, because it counts what is allocated.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod allocation;
mod configurations;
mod damage;
mod data;
mod models;
mod records;
mod states;
