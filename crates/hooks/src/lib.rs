//! The spine of Tenterhook.
pub mod random;
