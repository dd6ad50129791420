//! What hooks captured, written down.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde_json::{Value, json};
use tenterhook_hooks::CapturedState;
use tenterhook_record::disk;
use tenterhook_record::name::file_safe;
use tenterhook_record::run::RunDir;

use super::Trainer;
use crate::checkpoint::as_safetensors;
use crate::error::TrainError;

impl Trainer {
    /// Writes the captured states of every hook that has any into a file of its own.
    pub(super) fn write_captures(&self) -> Result<(), TrainError> {
        let Some(dir) = self.state.run_dir.as_deref() else { return Ok(()) };
        let dir = RunDir::open(dir).map_err(|error| TrainError::Record(error.to_string()))?.captures();
        for hook in self.hooks.list_hooks() {
            let states = self.hooks.get_captured_states(&hook.id);
            let states = states.map_err(|error| TrainError::Record(error.to_string()))?;
            if states.is_empty() {
                continue;
            }
            let path = dir.join(self.captures_file(&hook.id));
            // Only the one directory: a run whose own is gone is not brought back. Another rank may be doing the same.
            let made = if dir.is_dir() {
                Ok(())
            } else {
                disk::create_dir(&dir).or_else(|error| if dir.is_dir() { Ok(()) } else { Err(error) })
            };
            made.and_then(|()| write_captured(&path, states))
                .map_err(|error| TrainError::Record(format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }

    /// What a hook captured since this start of the run; every rank has a file of its own.
    fn captures_file(&self, hook_id: &str) -> String {
        let rank =
            if self.world.is_alone() { String::new() } else { format!("-rank{:04}", self.world.rank()) };
        format!("{}-{:08}{rank}.safetensors", file_safe(hook_id), self.began_at)
    }
}

/// Writes captured states to a safetensors file: the whole of it, or nothing. Names are `step-00000012/blocks.0.hook_resid_post`, a
/// gradient's behind `grad.`; `states` in the metadata says what every one is.
pub fn write_captured(path: &Path, states: Vec<CapturedState>) -> io::Result<()> {
    let names = names(&states);
    let about = about(&names, &states);
    let tensors: Vec<_> = names.into_iter().zip(states.into_iter().map(|state| state.tensor)).collect();
    let bytes = as_safetensors(&tensors, [("states", about)])?;
    disk::atomic_write(path, |to| to.write_all(&bytes))
}

/// `step-00000012/blocks.0.hook_resid_post`; a gradient behind `grad.`, as `tenterhook capture` has it. A second one of the same name,
/// of another batch of the step, gets `#2`.
fn names(states: &[CapturedState]) -> Vec<String> {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let name = |state: &CapturedState| {
        let gradient = if state.site.is_gradient() { "grad." } else { "" };
        let plain = format!("step-{:08}/{gradient}{}", state.step, state.point);
        let count = seen.entry(plain.clone()).or_default();
        *count += 1;
        if *count == 1 { plain } else { format!("{plain}#{count}") }
    };
    states.iter().map(name).collect()
}

/// What every state is, as JSON for the file's metadata.
fn about(names: &[String], states: &[CapturedState]) -> String {
    let describe = |(name, state): (&String, &CapturedState)| {
        json!({
            "name": name,
            "point": state.point,
            "site": state.site.as_str(),
            "layer_idx": state.layer_idx,
            "step": state.step,
        })
    };
    names.iter().zip(states).map(describe).collect::<Value>().to_string()
}
