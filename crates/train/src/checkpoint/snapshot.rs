//! A run at one moment, ready to be written.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use candle_core::{Result, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tenterhook_hooks::SavedHook;
use tenterhook_record::checkpoints::{CheckpointError, CheckpointWriter, Manifest};

use super::{HOOKS, MODEL, OPTIMIZER, STATE, STATE_FORMAT};
use crate::progress::Progress;
use crate::run::LogEnds;

/// In the manifest of a checkpoint that is there only until the next one is.
const INTERIM: &str = "interim";

/// Where a checkpoint is.
type Written = std::result::Result<PathBuf, CheckpointError>;

/// Whether a checkpoint is there only until the next one is.
pub(crate) fn is_interim(manifest: &Manifest) -> bool {
    manifest.meta.get(INTERIM) == Some(&Value::Bool(true))
}

/// Weights by name, with what a model directory needs beside them.
#[derive(Clone)]
pub(crate) struct Weights {
    pub(crate) tensors: Vec<(String, Tensor)>,
    pub(crate) files: Vec<(String, Vec<u8>)>,
}

/// A run at one moment.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) weights: Weights,
    /// Weights that a hook keeps beside the model's, in a directory of this name.
    pub(crate) beside: Option<(String, Weights)>,
    pub(crate) optimizer: Vec<(String, Tensor)>,
    pub(crate) hooks: Vec<SavedHook>,
    pub(crate) state: State,
}

/// The contents of `state.json`.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) format: u64,
    pub(crate) run_id: String,
    pub(crate) seed: u64,
    /// How many processes trained together.
    #[serde(default = "one")]
    pub(crate) ranks: usize,
    pub(crate) progress: Progress,
    /// Per optimizer, what it keeps that is not a tensor.
    pub(crate) optimizers: Vec<Value>,
    /// How much of the metrics log belongs to this moment.
    metrics_bytes: Option<u64>,
    /// How much of the log of histograms does.
    #[serde(default)]
    histograms_bytes: u64,
    /// The hooks; their tensors are in a file of their own.
    pub(crate) hooks: Vec<SavedHook>,
}

fn one() -> usize {
    1
}

impl State {
    pub(crate) fn new(run_id: &str, seed: u64, progress: Progress, optimizers: Vec<Value>) -> Self {
        let run_id = run_id.to_string();
        Self {
            format: STATE_FORMAT,
            run_id,
            seed,
            ranks: 1,
            progress,
            optimizers,
            metrics_bytes: None,
            histograms_bytes: 0,
            hooks: vec![],
        }
    }

    /// The same of a run that has logs.
    pub(crate) fn with_logs(mut self, logs: Option<LogEnds>) -> Self {
        self.metrics_bytes = logs.map(|logs| logs.metrics);
        self.histograms_bytes = logs.map_or(0, |logs| logs.histograms);
        self
    }

    /// How much of the logs belongs to this moment, if the run has any.
    pub(crate) fn log_ends(&self) -> Option<LogEnds> {
        self.metrics_bytes.map(|metrics| LogEnds { metrics, histograms: self.histograms_bytes })
    }
}

impl Snapshot {
    /// The same with tensors of its own, so that training may go on while it is written.
    pub(crate) fn detach(mut self) -> Result<Self> {
        let beside = self.beside.iter_mut().flat_map(|(_, weights)| &mut weights.tensors);
        let hooks = self.hooks.iter_mut().flat_map(|hook| &mut hook.tensors);
        let all = self.weights.tensors.iter_mut().chain(beside).chain(hooks);
        for (_, tensor) in all.chain(&mut self.optimizer) {
            *tensor = tensor.copy()?;
        }
        Ok(self)
    }

    /// Writes it as a checkpoint of this name. What is there under that name stays.
    pub(crate) fn write(&self, checkpoints: &Path, name: &str) -> Written {
        self.write_with(checkpoints, name, Map::new())
    }

    /// The same for a checkpoint that is there only until the next one is.
    pub(crate) fn write_interim(&self, checkpoints: &Path, name: &str) -> Written {
        self.write_with(checkpoints, name, Map::from_iter([(INTERIM.to_string(), json!(true))]))
    }

    fn write_with(&self, checkpoints: &Path, name: &str, mut meta: Map<String, Value>) -> Written {
        let mut writer = CheckpointWriter::begin(checkpoints, name, self.state.progress.step)?;
        write_weights(&mut writer, "", &self.weights)?;
        if let Some((dir, weights)) = &self.beside {
            write_weights(&mut writer, &format!("{dir}/"), weights)?;
        }
        write_tensors(&mut writer, OPTIMIZER, &self.optimizer)?;
        let hook_tensors: Vec<(String, Tensor)> = self
            .hooks
            .iter()
            .flat_map(|hook| {
                hook.tensors.iter().map(|(name, tensor)| (format!("{}/{name}", hook.id), tensor.clone()))
            })
            .collect();
        if !hook_tensors.is_empty() {
            write_tensors(&mut writer, HOOKS, &hook_tensors)?;
        }
        let state = State { hooks: self.hooks.clone(), ..self.state.clone() };
        writer.file(STATE, |to| {
            serde_json::to_writer_pretty(&mut *to, &state)?;
            to.write_all(b"\n")
        })?;
        meta.insert("run_id".to_string(), json!(self.state.run_id));
        meta.insert("epoch".to_string(), json!(self.state.progress.cursor.epoch));
        writer.finish(meta)
    }
}

fn write_weights(
    writer: &mut CheckpointWriter,
    prefix: &str,
    weights: &Weights,
) -> std::result::Result<(), CheckpointError> {
    for (name, contents) in &weights.files {
        writer.file(&format!("{prefix}{name}"), |to| to.write_all(contents))?;
    }
    write_tensors(writer, &format!("{prefix}{MODEL}"), &weights.tensors)
}

fn write_tensors(
    writer: &mut CheckpointWriter,
    name: &str,
    tensors: &[(String, Tensor)],
) -> std::result::Result<(), CheckpointError> {
    writer.file(name, |to: &mut dyn Write| to.write_all(&as_safetensors(tensors, [])?))
}

/// Named tensors as the bytes of a safetensors file, with these texts about it.
pub(crate) fn as_safetensors<const N: usize>(
    tensors: &[(String, Tensor)],
    about: [(&str, String); N],
) -> std::io::Result<Vec<u8>> {
    // `transformers` refuses a file that does not say this of itself.
    let format = ("format", "pt".to_string());
    let about: HashMap<_, _> =
        about.into_iter().chain([format]).map(|(key, text)| (key.to_string(), text)).collect();
    let views = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    safetensors::serialize(views, Some(about)).map_err(std::io::Error::other)
}
