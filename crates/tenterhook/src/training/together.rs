//! Starting a run on several ranks: rank 0 makes or finds it, the others join.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenterhook_record::run::{RunDir, RunRecord, config_hash};
use tenterhook_train::Together;
use tenterhook_train::config::differences;

use super::begin::{BeginError, Begun, Start, begun};
use super::plan::Assembled;

/// How a run begins.
#[derive(Clone, Copy, Debug)]
pub enum How<'a> {
    /// In a directory of its own.
    New,
    /// From its newest good checkpoint, in its directory.
    Resume(&'a Path),
    /// In a directory of its own, from the newest good checkpoint of another.
    Fork(&'a Path),
}

/// What rank 0 tells the others about the run.
#[derive(Serialize, Deserialize)]
struct Word {
    run_id: String,
    run_dir: PathBuf,
    checkpoint: Option<PathBuf>,
    resumed: Option<(String, u64)>,
    data: Value,
}

impl Start<'_> {
    /// Begins a run: on all ranks of the plan's world, or on none.
    pub fn begin(&self, how: How) -> Result<Begun, BeginError> {
        let world = self.plan.world();
        if world.is_alone() {
            return self.begin_here(how);
        }
        let mine = config_hash(&self.plan.recorded().to_value());
        let hashes = world.meet("the configuration", mine)?;
        if let Some(rank) = hashes.iter().position(|hash| *hash != hashes[0]) {
            let host = &world.hosts()[rank];
            return Err(world
                .come_apart(format!(
                    "rank {rank} on {host} has another configuration than rank 0 (hash {} and {})",
                    &hashes[rank][..12],
                    &hashes[0][..12]
                ))
                .into());
        }
        // The others first: when one of them cannot, nothing has been made.
        let assembled = match world.is_first() {
            true => Ok(None),
            false => self.plan.assemble(self.registry, self.device).map(Some).map_err(BeginError::from),
        };
        let assembled = world.all_well("the model and the data", assembled).map_err(one_error)?;
        let first = if world.is_first() { self.begin_here(how).map(Some) } else { Ok(None) };
        let first = world.all_well("the run's directory", first).map_err(one_error)?;
        let word = world.from_first("the run", first.as_ref().map(Word::of))?;
        let joined = match (first, assembled) {
            (None, Some(assembled)) => join(assembled, word, how),
            (first, _) => first.ok_or_else(|| BeginError::Nothing("rank 0 has no run".to_string())),
        };
        world.all_well("the checkpoint", joined).map_err(one_error)
    }

    fn begin_here(&self, how: How) -> Result<Begun, BeginError> {
        match how {
            How::New => self.new_one(),
            How::Resume(run) => self.resume(run),
            How::Fork(run) => self.fork(run),
        }
    }
}

impl Word {
    fn of(begun: &Begun) -> Self {
        let record = RunDir::open(&begun.run_dir).and_then(|dir| RunRecord::read(&dir));
        Self {
            run_id: begun.run_id.clone(),
            run_dir: std::path::absolute(&begun.run_dir).unwrap_or_else(|_| begun.run_dir.clone()),
            checkpoint: begun.trainer.resumed_from().and_then(|path| std::path::absolute(path).ok()),
            resumed: begun.resumed.clone(),
            data: record.map(|record| record.data).unwrap_or_default(),
        }
    }
}

/// A rank other than the first.
fn join(assembled: Assembled, word: Word, how: How) -> Result<Begun, BeginError> {
    let changed = differences(&word.data, &assembled.data);
    if !changed.is_empty() {
        let keys = changed.iter().map(|change| format!("\n  {}", change.key)).collect::<String>();
        return Err(BeginError::Nothing(format!("the data is not that of rank 0:{keys}")));
    }
    let mut trainer = assembled.trainer;
    match (&word.checkpoint, how) {
        (Some(checkpoint), How::Fork(_)) => trainer.restore_fork(checkpoint)?,
        (Some(checkpoint), _) => trainer.restore(checkpoint)?,
        (None, _) => {}
    }
    Ok(begun(trainer.with_record_of_first(word.run_id, word.run_dir), word.resumed, Vec::new()))
}

fn one_error(error: Together<BeginError>) -> BeginError {
    match error {
        Together::Own(error) => error,
        Together::Others(error) => error.into(),
    }
}
