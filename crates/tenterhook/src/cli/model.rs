//! The model that a command works on, and what it shows of its results.

use std::path::{Path, PathBuf};

use candle_core::DType;
use clap::Args;
use tenterhook_hooks::Report;
use tenterhook_lens::LanguageModel;
use tenterhook_models::files::check_writable;

use super::error::CliError;
use super::{Outcome, device};
use crate::pages::Page;

/// Which model, and where it runs.
#[derive(Args)]
pub(super) struct ModelArgs {
    /// A Hugging Face model directory, or a name on the hub (NAME or NAME@REVISION), which is downloaded where it is not in the cache.
    pub(super) model: String,
    /// Where to compute: cpu, cuda:N or metal.
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    device: String,
}

impl ModelArgs {
    /// Where to compute, as it was given.
    pub(super) fn device(&self) -> &str {
        &self.device
    }

    /// Reads the model.
    pub(super) fn load(&self) -> Result<LanguageModel, CliError> {
        let device = device::parse(&self.device)?;
        Ok(LanguageModel::from_pretrained_with(&self.model, DType::F32, &device)?)
    }
}

impl ModelArgs {
    /// Refuses to write over what is read: a file of the model, or one of these.
    pub(super) fn refuse_overwriting<'a>(
        &self,
        option: &str,
        out: &Path,
        inputs: impl IntoIterator<Item = &'a Path>,
    ) -> Result<(), CliError> {
        let Ok(out) = out.canonicalize() else { return Ok(()) }; // nothing is there yet
        let is_it = |input: &Path| input.canonicalize().is_ok_and(|input| input == out);
        let of_model = out.parent().is_some_and(|parent| is_same(parent, Path::new(&self.model)))
            && out.file_name().and_then(|name| name.to_str()).is_some_and(is_model_file);
        match of_model || inputs.into_iter().any(is_it) {
            false => Ok(()),
            true => Err(CliError::bad_input(format!(
                "{option} {}: it is one of the files that are read; write to another",
                out.display()
            ))),
        }
    }
}

/// Whether a file of this name in a model's directory is the model's own.
fn is_model_file(name: &str) -> bool {
    name.ends_with(".json")
        || name.ends_with(".txt")
        || name.starts_with("model") && name.ends_with(".safetensors")
}

fn is_same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// How an analysis shows what it found: a table, JSON, a page.
#[derive(Args)]
pub(super) struct ShowArgs {
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// Write a page with the plot to this file.
    #[arg(long, value_name = "FILE.html")]
    pub(super) html: Option<PathBuf>,
}

impl ShowArgs {
    /// Finds out before any work is done whether the page can be written.
    pub(super) fn check(&self) -> Result<(), CliError> {
        let Some(path) = &self.html else { return Ok(()) };
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if !["html", "htm"].contains(&extension.to_ascii_lowercase().as_str()) {
            return Err(CliError::bad_input(format!(
                "--html {}: a page ends with .html, so that nothing else is written over",
                path.display()
            )));
        }
        Ok(check_writable(path)?)
    }

    /// Writes the page where one was asked for.
    pub(super) fn save(&self, page: impl FnOnce() -> Page) -> Result<(), CliError> {
        let Some(path) = &self.html else { return Ok(()) };
        page().save(path).map_err(|error| CliError::failed(format!("{}: {error}", path.display())))
    }
}

/// How a command ended whose hooks did this.
pub(super) fn outcome(report: &Report) -> Outcome {
    if report.degraded() { Outcome::Degraded } else { Outcome::Done }
}
