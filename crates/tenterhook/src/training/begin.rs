//! Starting a run: a new one, one that goes on, one that branches off.

use std::path::{Path, PathBuf};

use candle_core::Device;
use tenterhook_hooks::HookRegistry;
use tenterhook_record::checkpoints::{self, CheckpointRef};
use tenterhook_record::run::{RunDir, RunError};
use tenterhook_train::config::{Document, Problems, resume_differences};
use tenterhook_train::{Run, RunFacts, TrainError, Trainer};

use super::plan::{Assembled, Plan};

/// A run that is ready to train.
pub struct Begun {
    /// The trainer, with the run's record.
    pub trainer: Trainer,
    /// The run's id.
    pub run_id: String,
    /// The run's directory.
    pub run_dir: PathBuf,
    /// The checkpoint it goes on from, and its step.
    pub resumed: Option<(String, u64)>,
    /// Newer checkpoints that are damaged, and what is wrong with them.
    pub skipped: Vec<(String, String)>,
}

/// Why a run cannot start. Nothing has been done yet.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// The configuration is wrong.
    #[error("{0}")]
    Config(#[from] Problems),
    /// The run's directory cannot be made, found or locked.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A checkpoint or the record does not fit.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// There is nothing to go on from.
    #[error("{0}")]
    Nothing(String),
}

/// What is the same for every way to begin.
pub struct Start<'a> {
    /// The configuration.
    pub plan: &'a Plan,
    /// The kinds of hooks.
    pub registry: &'a HookRegistry,
    /// Where to compute.
    pub device: &'a Device,
    /// The arguments of the process, for the record.
    pub args: Vec<String>,
    /// The run it repeats.
    pub parent: Option<String>,
}

impl Start<'_> {
    fn facts(&self, assembled: &Assembled) -> RunFacts {
        RunFacts {
            config: self.plan.config.to_value(),
            config_toml: self.plan.recorded().to_toml(),
            seed: self.plan.config.run.seed,
            threads: rayon::current_num_threads(),
            args: self.args.clone(),
            parent: self.parent.clone(),
            data: assembled.data.clone(),
        }
    }

    fn new_run(&self, facts: &RunFacts) -> Result<Run, BeginError> {
        let section = &self.plan.config.run;
        let dir = RunDir::create(&section.dir, section.name.as_deref())?;
        Ok(Run::start(dir, facts)?)
    }

    /// A new run in a directory of its own.
    pub fn new_one(&self) -> Result<Begun, BeginError> {
        let assembled = self.plan.assemble(self.registry, self.device)?;
        let run = self.new_run(&self.facts(&assembled))?;
        Ok(begun(assembled.trainer.with_run(run), None, Vec::new()))
    }

    /// The same run, in the same directory, from its newest good checkpoint. What decides the results must not have changed.
    pub fn resume(&self, path: &Path) -> Result<Begun, BeginError> {
        let dir = RunDir::open(path)?;
        let (checkpoint, skipped) = newest(&dir)?;
        self.check_unchanged(&dir)?;
        let assembled = self.plan.assemble(self.registry, self.device)?;
        let step = checkpoint.step.unwrap_or(0);
        let facts = self.facts(&assembled);
        let run = Run::resume(dir)?;
        put_aside(&skipped);
        let mut trainer = assembled.trainer.with_run(run);
        trainer.restore(&checkpoint.path)?;
        trainer.begin_attempt(&facts)?;
        Ok(begun(trainer, Some((checkpoint.name, step)), skipped))
    }

    /// A new run that goes on from another one's newest good checkpoint, with a configuration of its own.
    pub fn fork(&self, path: &Path) -> Result<Begun, BeginError> {
        let from = RunDir::open(path)?;
        let (checkpoint, skipped) = newest(&from)?;
        let assembled = self.plan.assemble(self.registry, self.device)?;
        let facts = RunFacts { parent: Some(from.id().to_string()), ..self.facts(&assembled) };
        let mut trainer = assembled.trainer;
        trainer.restore_fork(&checkpoint.path)?;
        let run = self.new_run(&facts)?;
        let step = checkpoint.step.unwrap_or(0);
        Ok(begun(trainer.with_run(run), Some((checkpoint.name, step)), skipped))
    }

    fn check_unchanged(&self, dir: &RunDir) -> Result<(), BeginError> {
        let old = Document::read(&dir.config_path())?;
        let changed = resume_differences(old.value(), &self.plan.recorded().to_value());
        if changed.is_empty() {
            return Ok(());
        }
        Err(BeginError::Nothing(format!(
            "run {} cannot go on with another configuration; --fork starts a new run from its checkpoint. What changed:\n  {}",
            dir.id(),
            changed.join("\n  ")
        )))
    }
}

fn begun(trainer: Trainer, resumed: Option<(String, u64)>, skipped: Vec<(CheckpointRef, String)>) -> Begun {
    let state = trainer.state();
    Begun {
        run_id: state.run_id.clone(),
        run_dir: state.run_dir.clone().unwrap_or_default(),
        resumed,
        skipped: skipped.into_iter().map(|(checkpoint, problem)| (checkpoint.name, problem)).collect(),
        trainer,
    }
}

/// The newest checkpoint that can be trusted, and the newer ones that cannot.
fn newest(dir: &RunDir) -> Result<(CheckpointRef, Vec<(CheckpointRef, String)>), BeginError> {
    let found = checkpoints::newest_good(&dir.checkpoints()).map_err(TrainError::from)?;
    match found.checkpoint {
        Some((checkpoint, _)) => Ok((checkpoint, found.skipped)),
        None => {
            let problems = found.skipped.iter().map(|(_, problem)| format!("\n  {problem}"));
            Err(BeginError::Nothing(format!(
                "run {} has no good checkpoint to go on from in {}; start it anew without --resume{}",
                dir.id(),
                dir.checkpoints().display(),
                problems.collect::<String>(),
            )))
        }
    }
}

/// Damaged checkpoints make way: the run will write others under their names.
fn put_aside(skipped: &[(CheckpointRef, String)]) {
    for (checkpoint, _) in skipped {
        let versions = (0..)
            .map(|version| checkpoint.path.with_file_name(format!(".damaged-{version}-{}", checkpoint.name)));
        if let Some(aside) = versions.take(1000).find(|path| !path.exists())
            && let Err(error) = std::fs::rename(&checkpoint.path, &aside)
        {
            tracing::warn!(
                "the damaged checkpoint {} could not be put aside: {error}",
                checkpoint.path.display()
            );
        }
    }
}
