//! The record of a run: its directory, metadata, metrics and checkpoints. No tensors.
//!
//! ```
//! use tenterhook_record::checkpoints::{self, CheckpointWriter};
//! use tenterhook_record::metrics::{self, MetricsLog, Row};
//! use tenterhook_record::run::{RunDir, RunRecord, Status};
//!
//! let runs = tempfile::tempdir()?;
//! let run = RunDir::create(runs.path(), Some("first"))?;
//! let _lock = run.lock()?;
//! let mut record = RunRecord::new(run.id());
//! record.write(&run)?;
//!
//! let mut log = MetricsLog::open(&run.metrics_path(), None)?;
//! log.append(&Row { step: 1, values: [("loss".to_string(), 2.5)].into(), ..Row::default() })?;
//! log.sync()?;
//!
//! let mut checkpoint = CheckpointWriter::begin(&run.checkpoints(), "step-00000001", 1)?;
//! checkpoint.file("state.json", |to| write!(to, "{{\"log\": {}}}", log.position()))?;
//! checkpoint.finish(serde_json::Map::new())?;
//!
//! record.status = Status::Completed;
//! record.write(&run)?;
//! assert_eq!(metrics::read(&run.metrics_path())?.len(), 1);
//! assert!(checkpoints::newest_good(&run.checkpoints())?.checkpoint.is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod checkpoints;
#[cfg(test)]
#[cfg(debug_assertions)]
mod crash;
pub mod differences;
pub mod disk;
pub mod fault;
pub mod key_path;
pub mod metrics;
pub mod name;
pub mod run;
