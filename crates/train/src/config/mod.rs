//! Configuration: files, overrides, and what is wrong with them, all at once.

mod document;
mod json;
mod overrides;
mod path;
mod problems;
mod section;
mod shape;
mod toml;

pub use document::{Document, Format};
pub use problems::{Line, Problem, Problems};
pub use section::{read_section, schema_of};
