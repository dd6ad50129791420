//! Configuration: files, overrides, and what is wrong with them, all at once.
//!
//! [`Document`] reads a file and knows the line of every key. [`RunConfig`] is the configuration of a run; the sections that belong to
//! models, data, optimizers and schedules are kept as [`Section`]s and read by those who own them.

mod document;
mod forms;
mod hooks;
mod hooks_config;
mod json;
mod overrides;
mod problems;
mod ranks;
mod resume;
mod run;
mod schema;
mod secrets;
mod section;
mod shape;
mod toml;
mod train;
mod write;

pub use document::{Document, Format};
pub use forms::{FastDevRun, TimeLimit, ValidateEvery};
pub use hooks::check_hooks;
pub use hooks_config::HooksConfig;
pub use overrides::redacted_args;
pub use problems::{Line, Problem, Problems};
pub use ranks::{BatchOf, RanksSection, UpdateHooks};
pub use resume::resume_differences;
pub use run::{DataSection, RunConfig, RunSection, Section};
pub use schema::{SubSchemas, schema};
pub use section::{check_section, read_section, schema_of};
pub use train::{OnCheckpointFailure, OnNonFinite, TrainSection};
pub(crate) use write::redacted;
pub use write::toml_value;

pub use tenterhook_record::differences::{Difference, differences};
use tenterhook_record::key_path as path;

/// A configuration that runs as it is: every key with its default, and what it is for.
pub const DEFAULT_TOML: &str = include_str!("default.toml");
