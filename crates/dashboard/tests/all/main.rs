//! The dashboard as a browser meets it: over the network, with good and bad intentions.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod captures;
mod clients;
mod control;
mod doors;
mod hostile;
mod listed;
mod metrics;
mod site;
