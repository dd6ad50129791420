//! The model that a command works on, and what it shows of its results.

use std::path::PathBuf;

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
        self.html.iter().try_for_each(|path| Ok(check_writable(path)?))
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
