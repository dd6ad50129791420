//! Starting a run: a new one, one that goes on, one that branches off.

use std::fmt;
use std::path::{Path, PathBuf};

use candle_core::Device;
use tenterhook_hooks::HookRegistry;
use tenterhook_record::checkpoints::{self, CheckpointRef};
use tenterhook_record::disk;
use tenterhook_record::run::{self, RunDir, RunError, RunLock, RunRecord, git_state};
use tenterhook_train::config::{Problems, differences, redacted_args};
use tenterhook_train::{Run, RunFacts, TrainError, Trainer, WorldError};

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
    /// Another rank failed, or has another configuration.
    #[error(transparent)]
    World(#[from] WorldError),
    /// There is nothing to go on from.
    #[error("{0}")]
    Nothing(String),
}

/// Where a fork begins: a checkpoint of another run. Records have it as `run/checkpoint`.
pub struct Origin {
    /// The run.
    pub run_id: String,
    /// Its checkpoint.
    pub checkpoint: CheckpointRef,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.run_id, self.checkpoint.name)
    }
}

impl Origin {
    /// Where the first attempt of a run among `runs` began, if it is a fork. The checkpoint must still be there, and good.
    pub fn of(record: &RunRecord, runs: &Path) -> Result<Option<Self>, BeginError> {
        let origin = record.attempts.first().and_then(|attempt| attempt.resumed_from.as_deref());
        let Some((run_id, name)) = origin.and_then(|origin| origin.split_once('/')) else { return Ok(None) };
        let gone = |problem: String| {
            BeginError::Nothing(format!(
                "run {} is a fork of run {run_id}: it began with the checkpoint {name}, without which it cannot be repeated: {problem}",
                record.id
            ))
        };
        let from = run::find(runs, run_id).and_then(|path| RunDir::open(&path));
        let dir = from.map_err(|error| gone(error.to_string()))?.checkpoints();
        let listed = checkpoints::list(&dir).map_err(|error| gone(error.to_string()))?;
        let found = listed.into_iter().find(|checkpoint| checkpoint.name == name);
        let checkpoint = found.ok_or_else(|| gone(format!("it is no longer in {}", dir.display())))?;
        checkpoints::verify(&checkpoint.path).map_err(|error| gone(error.to_string()))?;
        Ok(Some(Self { run_id: run_id.to_string(), checkpoint }))
    }
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
    fn facts(&self, assembled: &Assembled, git: (String, Option<bool>)) -> RunFacts {
        RunFacts {
            name: self.plan.config.run.name.clone(),
            config: self.plan.config.to_value(),
            config_toml: self.plan.recorded().to_toml(),
            seed: self.plan.config.run.seed,
            threads: rayon::current_num_threads(),
            ranks: self.plan.world().hosts_of_several(),
            args: redacted_args(self.args.clone()),
            parent: self.parent.clone(),
            data: assembled.data.clone(),
            git,
        }
    }

    /// Begins a run in a directory of its own.
    fn in_new_dir(
        &self,
        begin: impl FnOnce(RunDir, RunLock) -> Result<Run, TrainError>,
    ) -> Result<Run, BeginError> {
        let section = &self.plan.config.run;
        let dir = RunDir::create(&section.dir, section.name.as_deref())?;
        let path = dir.path().to_path_buf();
        let begun = dir.lock().map_err(BeginError::from).and_then(|lock| Ok(begin(dir, lock)?));
        if begun.is_err() {
            // It was made a moment ago and holds nothing; its name is free for the next try, if the disk lets us.
            let _ = disk::remove_dir_all(&path);
        }
        begun
    }

    /// A new run in a directory of its own.
    pub fn new_one(&self) -> Result<Begun, BeginError> {
        let assembled = self.plan.assemble(self.registry, self.device)?;
        self.begin_anew(assembled)
    }

    fn begin_anew(&self, assembled: Assembled) -> Result<Begun, BeginError> {
        let facts = self.facts(&assembled, git_here());
        let run = self.in_new_dir(|dir, lock| Run::start(dir, lock, &facts))?;
        Ok(begun(assembled.trainer.with_run(run), None, Vec::new()))
    }

    /// A new run that does again what another one did: from scratch, or from the checkpoint where that one began.
    /// Hooks that were switched on or off from outside are so again, at the same steps.
    pub fn repeat(&self, record: &RunRecord, origin: Option<&Origin>) -> Result<Begun, BeginError> {
        let mut assembled = self.plan.assemble(self.registry, self.device)?;
        let changed = differences(&record.data, &assembled.data);
        if !changed.is_empty() {
            let keys = changed.iter().map(|change| format!("\n  {}", change.key)).collect::<String>();
            return Err(BeginError::Nothing(format!("the data is not what the run was trained on:{keys}")));
        }
        assembled.trainer.repeat_changes(&record.hook_changes);
        match origin {
            None => self.begin_anew(assembled),
            Some(origin) => {
                assembled.trainer.restore_fork(&origin.checkpoint.path)?;
                self.branch(assembled, origin, Vec::new())
            }
        }
    }

    /// The same run, in the same directory, from its newest good checkpoint. What decides the results must not have changed. A run that
    /// was killed before its first checkpoint, and so before its first step, begins again.
    pub fn resume(&self, path: &Path) -> Result<Begun, BeginError> {
        let (dir, git) = (RunDir::open(path)?, git_here());
        let lock = dir.lock()?; // before anything is looked at: nobody adds a checkpoint meanwhile
        if never_began(&dir)? {
            let assembled = self.plan.assemble(self.registry, self.device)?;
            let run = Run::start(dir, lock, &self.facts(&assembled, git))?;
            return Ok(begun(assembled.trainer.with_run(run), None, Vec::new()));
        }
        self.check_unchanged(&dir)?;
        let mut assembled = self.plan.assemble(self.registry, self.device)?;
        let (checkpoint, skipped) = newest_checkpoint(&dir, |path| assembled.trainer.restore(path))?;
        let step = checkpoint.step.unwrap_or(0);
        let run = Run::resume(dir, lock, &self.facts(&assembled, git))?;
        put_aside(&skipped)?;
        let trainer = assembled.trainer.go_on_with(run)?;
        Ok(begun(trainer, Some((checkpoint.name, step)), skipped))
    }

    /// A new run that goes on from another one's newest good checkpoint, with a configuration of its own.
    pub fn fork(&self, path: &Path) -> Result<Begun, BeginError> {
        let from = RunDir::open(path)?;
        let mut assembled = self.plan.assemble(self.registry, self.device)?;
        let (checkpoint, skipped) = newest_checkpoint(&from, |path| assembled.trainer.restore_fork(path))?;
        self.branch(assembled, &Origin { run_id: from.id().to_string(), checkpoint }, skipped)
    }

    /// A new run of a trainer that has been restored from a checkpoint of another.
    fn branch(
        &self,
        assembled: Assembled,
        origin: &Origin,
        skipped: Vec<(CheckpointRef, String)>,
    ) -> Result<Begun, BeginError> {
        let parent = self.parent.clone().or(Some(origin.run_id.clone()));
        let facts = RunFacts { parent, ..self.facts(&assembled, git_here()) };
        let step = origin.checkpoint.step.unwrap_or(0);
        let run = self.in_new_dir(|dir, lock| Run::fork(dir, lock, &facts, &origin.to_string(), step))?;
        let from = (origin.checkpoint.name.clone(), step);
        Ok(begun(assembled.trainer.with_run(run), Some(from), skipped))
    }

    fn check_unchanged(&self, dir: &RunDir) -> Result<(), BeginError> {
        let changed = self.plan.changed_since(dir)?;
        if changed.is_empty() {
            return Ok(());
        }
        Err(BeginError::Nothing(format!(
            "run {0} cannot go on with another configuration; --fork {0} starts a new run from its checkpoint. What changed:\n  {1}",
            dir.id(),
            changed.join("\n  ")
        )))
    }
}

pub(super) fn begun(
    trainer: Trainer,
    resumed: Option<(String, u64)>,
    skipped: Vec<(CheckpointRef, String)>,
) -> Begun {
    let state = trainer.state();
    Begun {
        run_id: state.run_id.clone(),
        run_dir: state.run_dir.clone().unwrap_or_default(),
        resumed,
        skipped: skipped.into_iter().map(|(checkpoint, problem)| (checkpoint.name, problem)).collect(),
        trainer,
    }
}

fn git_here() -> (String, Option<bool>) {
    git_state(Path::new("."))
}

/// Whether a run was killed before it had saved, let alone done, anything.
fn never_began(dir: &RunDir) -> Result<bool, BeginError> {
    let checkpoints = checkpoints::list(&dir.checkpoints()).map_err(TrainError::from)?;
    let logged = std::fs::metadata(dir.metrics_path()).map_or(0, |about| about.len());
    Ok(checkpoints.is_empty() && logged == 0)
}

/// The newest checkpoint that can be trusted and restored, and the newer ones that cannot.
pub(crate) fn newest_checkpoint(
    dir: &RunDir,
    mut restore: impl FnMut(&Path) -> Result<(), TrainError>,
) -> Result<(CheckpointRef, Vec<(CheckpointRef, String)>), BeginError> {
    let restore = |path: &Path| restore(path).map_err(|error| error.to_string());
    let found = checkpoints::newest_usable(&dir.checkpoints(), restore).map_err(TrainError::from)?;
    match found.checkpoint {
        Some((checkpoint, _)) => Ok((checkpoint, found.skipped)),
        None => {
            let problems = found.skipped.iter().map(|(_, problem)| format!("\n  {problem}"));
            Err(BeginError::Nothing(format!(
                "run {} has no good checkpoint to go on from in {}: it cannot be resumed or forked; a new run needs another name, or this directory out of its way{}",
                dir.id(),
                dir.checkpoints().display(),
                problems.collect::<String>(),
            )))
        }
    }
}

/// Damaged checkpoints make way: the run will write others under their names.
pub(crate) fn put_aside(skipped: &[(CheckpointRef, String)]) -> Result<(), BeginError> {
    for (checkpoint, _) in skipped {
        let (dir, name) = (checkpoint.path.parent().unwrap_or(Path::new("")), &checkpoint.name);
        let versions = (0..).map(|version| dir.join(format!(".damaged-{version}-{name}")));
        let aside = versions.take(1000).find(|path| path.symlink_metadata().is_err());
        let moved = aside.map_or(Ok(()), |aside| disk::rename(&checkpoint.path, &aside));
        moved.and_then(|()| disk::sync_dir(dir)).map_err(|error| {
            let path = checkpoint.path.display();
            BeginError::Nothing(format!("the damaged checkpoint {path} cannot be put aside: {error}"))
        })?;
    }
    Ok(())
}
