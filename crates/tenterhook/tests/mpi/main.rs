//! Runs of several processes, started by a real `mpirun`. Needs the feature `mpi` and Open MPI:
//! `cargo test --workspace --features tenterhook/mpi --test mpi`.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod captures;
mod cut_off;
mod endings;
mod job;
mod like_one;
mod others;
mod own_hooks;
mod resumed;
