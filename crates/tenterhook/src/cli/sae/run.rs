//! The run that a training of autoencoders is.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tenterhook_record::run::{RunDir, git_state};
use tenterhook_train::config::{Document, redacted_args, resume_differences, toml_value};
use tenterhook_train::data::Dataset;
use tenterhook_train::{Run, RunFacts, Trainer};

use super::super::error::CliError;
use super::super::output::shell_words;
use crate::training::{self, Begun, put_aside};

/// The directory of the run: a new one, or one that goes on.
pub(super) struct Place {
    out: PathBuf,
    resume: bool,
}

impl Place {
    /// Finds out before any work is done whether the run can be there.
    pub(super) fn new(out: &Path, resume: bool) -> Result<Self, CliError> {
        let place = Self { out: out.to_path_buf(), resume };
        let shown = out.display();
        match (resume, out.join("run.json").is_file()) {
            (true, false) => Err(CliError::bad_input(format!(
                "--resume: there is no run in {shown}; start one without --resume"
            ))),
            (false, _) if out.symlink_metadata().is_ok() => Err(CliError::bad_input(format!(
                "--out {shown} is there already: go on with it by --resume, or name another directory"
            ))),
            (false, _) => {
                let (runs, name) = place.parts()?;
                match (training::Place { runs: &runs, name: Some(&name) }).problem() {
                    Some((_, problem)) => Err(CliError::bad_input(format!("--out {shown}: {problem}"))),
                    None => Ok(place),
                }
            }
            (true, true) => Ok(place),
        }
    }

    fn parts(&self) -> Result<(PathBuf, String), CliError> {
        let name = self.out.file_name().and_then(|name| name.to_str()).map(str::to_string);
        let name = name.ok_or_else(|| {
            CliError::bad_input(format!("--out {} does not name a directory", self.out.display()))
        })?;
        let above = self.out.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok((above.to_path_buf(), name))
    }

    /// Begins the run, or goes on with it from its newest good checkpoint, when nothing that decides has changed.
    pub(super) fn begin(
        &self,
        mut trainer: Trainer,
        config: &Value,
        seed: u64,
        data: &dyn Dataset,
    ) -> Result<Begun, CliError> {
        let failed = |error: tenterhook_train::TrainError| CliError::bad_input(error.to_string());
        let facts = RunFacts {
            ranks: trainer.world().hosts_of_several(),
            name: None,
            config: config.clone(),
            config_toml: to_toml(config),
            seed,
            threads: rayon::current_num_threads(),
            args: redacted_args(std::env::args().collect::<Vec<String>>()),
            parent: None,
            data: json!({ "train": [data.fingerprint()] }),
            git: git_state(Path::new(".")),
        };
        if !self.resume {
            let (runs, name) = self.parts()?;
            let dir = RunDir::create(&runs, Some(&name))?;
            let lock = dir.lock()?;
            let run = Run::start(dir, lock, &facts).map_err(failed)?;
            return Ok(begun(trainer.with_run(run), None, Vec::new()));
        }
        let dir = RunDir::open(&self.out)?;
        let lock = dir.lock()?; // before anything is looked at: nobody adds a checkpoint meanwhile
        let changed = resume_differences(Document::read(&dir.config_path())?.value(), config);
        if !changed.is_empty() {
            return Err(CliError::bad_input(format!(
                "run {} cannot go on with other options. What changed:\n  {}",
                dir.id(),
                changed.join("\n  ")
            )));
        }
        let (checkpoint, skipped) = training::newest_checkpoint(&dir, |path| trainer.restore(path))?;
        let step = checkpoint.step.unwrap_or(0);
        let run = Run::resume(dir, lock, &facts).map_err(failed)?;
        put_aside(&skipped)?;
        let trainer = trainer.go_on_with(run).map_err(failed)?;
        let skipped = skipped.into_iter().map(|(checkpoint, problem)| (checkpoint.name, problem)).collect();
        Ok(begun(trainer, Some((checkpoint.name, step)), skipped))
    }
}

fn begun(trainer: Trainer, resumed: Option<(String, u64)>, skipped: Vec<(String, String)>) -> Begun {
    let state = trainer.state();
    let (run_id, run_dir) = (state.run_id.clone(), state.run_dir.clone().unwrap_or_default());
    Begun { trainer, run_id, run_dir, resumed, skipped }
}

fn to_toml(config: &Value) -> String {
    let lines = config
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key} = {}\n", toml_value(value)));
    lines.collect()
}

/// The command that goes on with the run: this one, with --resume.
pub(super) fn resume_command() -> String {
    let mut words: Vec<String> = std::env::args().collect();
    if let Some(first) = words.first_mut() {
        *first = "tenterhook".to_string();
    }
    if !words.iter().any(|word| word == "--resume") {
        words.push("--resume".to_string());
    }
    shell_words(&words)
}
