//! The built-in hooks. Each is one file: its options, its code, its documentation and its tests.

use tenterhook_hooks::{AttachError, HookRegistry};

mod console;
mod console_log;
mod csv_log;
mod json_log;
mod log_file;
mod model_summary;
mod progress;
mod tensorboard;
mod throughput;

pub use console_log::{ConsoleLog, ConsoleLogOptions};
pub use csv_log::{CsvLog, CsvLogOptions};
pub use json_log::{JsonLog, JsonLogOptions};
pub use model_summary::{ModelSummary, ModelSummaryOptions};
pub use progress::{Progress, ProgressOptions};
pub use tensorboard::{Tensorboard, TensorboardOptions};
pub use throughput::{Throughput, ThroughputOptions};

/// Adds every kind of this crate to a registry.
pub fn register_all(registry: &mut HookRegistry) -> Result<(), AttachError> {
    registry.register_builtin::<ConsoleLogOptions>(
        ConsoleLog::KIND,
        "prints the numbers of the run, a line at a time",
        |o| Ok(Box::new(ConsoleLog::new(o)?)),
    )?;
    registry.register_builtin::<CsvLogOptions>(
        CsvLog::KIND,
        "writes chosen numbers of the run into a CSV file",
        |o| Ok(Box::new(CsvLog::new(o)?)),
    )?;
    registry.register_builtin::<JsonLogOptions>(
        JsonLog::KIND,
        "writes the numbers of the run into a file of JSON lines",
        |o| Ok(Box::new(JsonLog::new(o)?)),
    )?;
    registry.register_builtin::<ModelSummaryOptions>(
        ModelSummary::KIND,
        "prints a table of the model's parameters",
        |o| Ok(Box::new(ModelSummary::new(o)?)),
    )?;
    registry.register_builtin::<ProgressOptions>(
        Progress::KIND,
        "shows a progress bar, or lines where there is no terminal",
        |o| Ok(Box::new(Progress::new(o)?)),
    )?;
    registry.register_builtin::<TensorboardOptions>(
        Tensorboard::KIND,
        "writes numbers and histograms of the run for TensorBoard",
        |o| Ok(Box::new(Tensorboard::new(o)?)),
    )?;
    registry.register_builtin::<ThroughputOptions>(
        Throughput::KIND,
        "measures tokens, batches and steps per time",
        |o| Ok(Box::new(Throughput::new(o)?)),
    )?;
    Ok(())
}
