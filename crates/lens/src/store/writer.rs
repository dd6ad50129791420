//! Writing a run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use candle_core::DType;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tenterhook_record::fault;
use tenterhook_record::run::{RunDir, RunLock};

use super::append::{Appender, Written};
use super::batch::StoreBatch;
use super::desk::Desk;
use super::error::StoreError;
use super::layout::{HEAD, StoredLayer};
use super::open::Scan;

const MIB: usize = 1 << 20;
/// Larger shards make nothing quicker.
const LARGEST_SHARD: usize = 128 * MIB;

/// What happens to a batch when the memory is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// It waits until enough has been written: nothing is lost, and the memory is bounded.
    #[default]
    Wait,
    /// It is left out, and counted: for what must not wait.
    LeaveOut,
    /// It is an error.
    Fail,
}

/// How a run is written.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes of activations in memory, at most: those of the batch that is being made, those that wait and those that are being written.
    pub memory_limit: usize,
    /// A shard is written when it has so many bytes; by default a quarter of the memory limit.
    pub shard_bytes: Option<usize>,
    /// The type of floats on the disk: f32, f16 or bf16; by default what they are.
    pub dtype: Option<DType>,
    /// What happens when the memory is full.
    pub when_full: WhenFull,
    /// Put into `index.json` as it is: the model, the text, whatever a reader should know.
    pub about: Map<String, Value>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            memory_limit: 256 * MIB,
            shard_bytes: None,
            dtype: None,
            when_full: WhenFull::Wait,
            about: Map::new(),
        }
    }
}

impl StoreOptions {
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let bad = |problem: String| Err(StoreError::BadInput(problem));
        if self.memory_limit == 0 || self.shard_bytes == Some(0) {
            return bad("`memory_limit` and `shard_bytes` must be at least 1".to_string());
        }
        match self.dtype {
            None | Some(DType::F32 | DType::F16 | DType::BF16) => Ok(()),
            Some(other) => bad(format!("activations are stored as f32, f16 or bf16, not {other:?}")),
        }
    }

    fn shard_bytes(&self) -> usize {
        self.shard_bytes.unwrap_or((self.memory_limit / 4).clamp(1, LARGEST_SHARD))
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoreSummary {
    /// The run's directory.
    pub path: PathBuf,
    /// Files.
    pub shards: u64,
    /// Batches.
    pub batches: u64,
    /// Sequences.
    pub sequences: u64,
    /// Rows: tokens without padding.
    pub rows: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Batches for which there was no memory, under [`WhenFull::LeaveOut`].
    pub left_out: u64,
    /// Finite numbers that became infinite because the type on the disk is too small for them.
    pub too_large: u64,
    /// The most bytes that were in memory at a time; never more than the limit.
    pub peak_bytes: usize,
}

/// Appends batches to a run. A thread of its own writes them; who appends waits only when the memory is full.
///
/// [`finish`](Self::finish) waits until everything is on the disk. Dropped before, it writes what it has too, but the run is not marked as
/// finished, and an error is only logged.
#[derive(Debug)]
pub struct StoreWriter {
    dir: RunDir,
    options: StoreOptions,
    desk: Arc<Desk>,
    thread: Option<JoinHandle<Result<Written, StoreError>>>,
    finished: Arc<AtomicBool>,
    layers: Vec<StoredLayer>,
    batches: u64,
    left_out: u64,
    _lock: RunLock,
}

impl StoreWriter {
    pub(super) fn start(dir: RunDir, options: StoreOptions) -> Result<Self, StoreError> {
        let lock = dir.lock()?;
        let scan = match dir.path().join(HEAD).exists() {
            true => Scan::of(dir.path())?,
            false => Scan::empty(options.about.clone()),
        };
        let layers = scan.head.layers.clone();
        let batches = scan.shards.iter().map(|shard| shard.batches).sum();
        let desk = Desk::new(options.memory_limit);
        let mut appender =
            Appender::new(dir.path().to_path_buf(), scan, desk.clone(), options.shard_bytes())?;
        let (finished, faults) = (Arc::new(AtomicBool::new(false)), fault::Scope::current());
        let (asked, worker) = (finished.clone(), desk.clone());
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || {
            let _faults = faults.enter();
            let work = AssertUnwindSafe(|| appender.work(|| asked.load(Ordering::SeqCst)));
            let done = catch_unwind(work).unwrap_or_else(|_| {
                Err(StoreError::BadInput("the thread that writes the store panicked".to_string()))
            });
            if let Err(error) = &done {
                worker.fail(error.to_string()); // whoever waits for room must not wait for ever
            }
            done.map(|()| appender.written)
        });
        let thread = Some(thread.map_err(StoreError::io("start a thread for", dir.path()))?);
        Ok(Self { dir, options, desk, thread, finished, layers, batches, left_out: 0, _lock: lock })
    }

    /// The run's directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Begins a batch of these sequences of token ids. One batch at a time: it has the memory limit for itself, if it needs it.
    pub fn batch(&mut self, sequences: Vec<Vec<u32>>) -> Result<StoreBatch, StoreError> {
        StoreBatch::new(sequences, &self.desk, self.options.when_full, self.options.dtype)
    }

    /// Appends a batch, and says which number it has; none when there was no memory for it and it was to be left out. All batches of a run have
    /// the same layers.
    pub fn append(&mut self, batch: StoreBatch) -> Result<Option<u64>, StoreError> {
        if batch.left_out {
            self.left_out += 1;
            return Ok(None);
        }
        let layers: Vec<&StoredLayer> = batch.parts.layers.iter().map(|part| &part.layer).collect();
        if layers.is_empty() {
            return Err(StoreError::BadInput("a batch needs at least one layer".to_string()));
        }
        if self.layers.is_empty() {
            self.layers = layers.into_iter().cloned().collect();
        } else {
            check_same(&self.layers, &layers)?;
        }
        self.desk.hand_over(batch.parts)?;
        self.batches += 1;
        Ok(Some(self.batches - 1))
    }

    /// Waits until everything is on the disk, marks the run as finished, and says what was written.
    pub fn finish(mut self) -> Result<StoreSummary, StoreError> {
        self.finished.store(true, Ordering::SeqCst);
        let written = self.join()?;
        Ok(StoreSummary {
            path: self.dir.path().to_path_buf(),
            shards: written.shards,
            batches: written.batches,
            sequences: written.sequences,
            rows: written.rows,
            bytes: written.bytes,
            left_out: self.left_out,
            too_large: written.too_large,
            peak_bytes: self.desk.peak(),
        })
    }

    fn join(&mut self) -> Result<Written, StoreError> {
        self.desk.close();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(StoreError::Stopped("the thread that writes it panicked".to_string())),
            None => Ok(Written::default()),
        }
    }
}

impl Drop for StoreWriter {
    fn drop(&mut self) {
        if let Err(error) = self.join() {
            tracing::warn!("{}: {error}", self.dir.path().display());
        }
    }
}

fn check_same(known: &[StoredLayer], given: &[&StoredLayer]) -> Result<(), StoreError> {
    let missing = known.iter().find(|layer| given.iter().all(|other| other.name != layer.name));
    if let Some(missing) = missing {
        return Err(StoreError::BadInput(format!(
            "the run has the layer `{}`, this batch has it not",
            missing.name
        )));
    }
    for layer in given {
        match known.iter().find(|other| other.name == layer.name) {
            Some(other) if other == *layer => {}
            Some(other) => {
                return Err(StoreError::BadInput(format!(
                    "`{}` has rows of shape {:?} and type {} here, and of shape {:?} and type {} in the run",
                    layer.name, layer.shape, layer.dtype, other.shape, other.dtype
                )));
            }
            None => {
                return Err(StoreError::BadInput(format!(
                    "`{}` is not a layer of the run, which has {}",
                    layer.name,
                    known.iter().map(|layer| layer.name.as_str()).collect::<Vec<_>>().join(", ")
                )));
            }
        }
    }
    Ok(())
}
