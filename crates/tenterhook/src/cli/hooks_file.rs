//! `--hooks H.toml`, and what the hooks in it captured.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use tenterhook_hooks::{HookManager, HookRegistry, Report};
use tenterhook_record::{disk, name};
use tenterhook_train::write_captured;

use super::error::CliError;
use super::output;
use crate::training::HooksFile;

/// Hooks from a file.
#[derive(Args)]
pub(super) struct HooksFileArgs {
    /// A TOML or JSON file with [[hooks]], the same as for `train`.
    #[arg(long, value_name = "FILE")]
    pub(super) hooks: Option<PathBuf>,
}

impl HooksFileArgs {
    /// Attaches the hooks of the file, where one was given, for passes without gradients; returns their ids.
    pub(super) fn attach(
        &self,
        hooks: &HookManager,
        registry: &HookRegistry,
    ) -> Result<Vec<String>, CliError> {
        self.attach_for(hooks, registry, false)
    }

    /// The same for passes that may have gradients.
    pub(super) fn attach_for(
        &self,
        hooks: &HookManager,
        registry: &HookRegistry,
        gradients: bool,
    ) -> Result<Vec<String>, CliError> {
        let Some(path) = &self.hooks else { return Ok(Vec::new()) };
        let done = HooksFile::read(path)?.attach(hooks, registry)?;
        for id in done.gradients.iter().filter(|_| !gradients) {
            output::note(&format!(
                "note: `{id}` listens to gradients, and there are none here; `train` and `capture --gradients` have them"
            ));
        }
        for kind in done.left_out {
            output::note(&format!("note: `{kind}` takes part in training runs only and is left out here"));
        }
        Ok(done.attached)
    }
}

/// Writes what hooks captured into a file per hook in this directory; returns the files.
pub(super) fn write_captures(hooks: &HookManager, dir: &Path) -> Result<Vec<PathBuf>, CliError> {
    let mut files = Vec::new();
    for hook in hooks.list_hooks() {
        let states = hooks.get_captured_states(&hook.id)?;
        if states.is_empty() {
            continue;
        }
        let path = dir.join(format!("{}.safetensors", name::file_safe(&hook.id)));
        let written = disk::create_dir_all(dir).and_then(|()| write_captured(&path, states));
        written.map_err(|error| CliError::failed(format!("{}: {error}", path.display())))?;
        files.push(path);
    }
    Ok(files)
}

/// What hooks did, for `--json`.
pub(super) fn report_json(report: &Report) -> Map<String, Value> {
    let errors: Vec<String> = report.errors.iter().map(ToString::to_string).collect();
    let metrics: Map<String, Value> =
        report.metrics.iter().map(|(name, value)| (name.clone(), Value::from(*value))).collect();
    Map::from_iter([
        ("receipts".to_string(), serde_json::to_value(&report.hooks).unwrap_or_default()),
        ("metrics".to_string(), Value::Object(metrics)),
        ("warnings".to_string(), report.warnings().into()),
        ("errors".to_string(), errors.into()),
    ])
}

/// The same for people.
pub(super) fn report_text(report: &Report) -> String {
    let metrics = report.metrics.iter().map(|(name, value)| format!("{name} {value:.6}\n"));
    format!("{report}{}", metrics.collect::<String>())
}

/// Data for `--json` with what hooks did beside it.
pub(super) fn with_report(data: impl Serialize, report: &Report) -> Result<Value, CliError> {
    let mut data = serde_json::to_value(data).map_err(|error| CliError::failed(error.to_string()))?;
    if let Value::Object(object) = &mut data {
        object.extend(report_json(report));
    }
    Ok(data)
}

/// Tells people what hooks did, where there were some.
pub(super) fn tell_report(report: &Report) {
    if !report.hooks.is_empty() {
        output::note(&report_text(report));
    }
}
