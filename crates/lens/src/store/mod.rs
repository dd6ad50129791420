//! A store of activations on the disk.
//!
//! A store is a directory of runs, a run is one capture. Batches are appended to a run, in constant time each however many there are;
//! what is there is never written again. Any program that reads safetensors reads it.
//!
//! # The files of a run
//!
//! ```text
//! BASE/                              the store
//!   my-run/                          a run
//!     index.json                     what is stored: format, version, layers, what the writer said about it, whether it was finished
//!     shards.jsonl                   one line per shard: its bytes, rows, sequences and batches
//!     shard-00000000.safetensors     many batches each, numbered without a gap
//!     shard-00000001.safetensors
//!     run.lock                       held by the one writer
//! ```
//!
//! A *row* is one token of one sequence; padding is not stored. A shard has these tensors, all of type I64:
//!
//! | tensor | shape | what |
//! |---|---|---|
//! | `tokens` | `[rows]` | the token's id |
//! | `positions` | `[rows]` | its position in its sequence, from 0 |
//! | `sequences` | `[rows]` | the number of its sequence, counted over the whole run |
//! | `lengths` | `[sequences]` | rows of each sequence of the shard |
//! | `batches` | `[batches]` | sequences of each batch of the shard |
//!
//! and of every layer (a point, under the name that matched)
//!
//! - where the point has the axes `batch pos ...`: one tensor `<layer>` of shape `[rows, ...]`, row by row beside `tokens`;
//! - otherwise, such as for attention patterns (`batch head query_pos key_pos`): one tensor per sequence, `<layer>#<sequence>`, without the batch
//!   axis and without padding: `[head, length, length]`. Where only some positions are kept, these are still whole.
//!
//! In Python:
//!
//! ```python
//! from safetensors import safe_open
//! with safe_open("acts/my-run/shard-00000000.safetensors", "pt") as shard:
//!     rows = shard.get_slice("blocks.0.hook_resid_post")[:100]
//!     tokens = shard.get_tensor("tokens")[:100]
//! ```
//!
//! A shard takes its place when it is whole and on the disk, so a writer that is killed loses at most what was in memory. `shards.jsonl`
//! only saves readers from opening every shard: shards that are not in it yet, because the writer was killed or is still at work, are found
//! by their names.

mod append;
mod batch;
mod capture;
mod capture_to;
mod desk;
mod encode;
mod error;
mod layout;
mod open;
mod reader;
mod shard;
mod shuffle;
mod writer;

use std::path::{Path, PathBuf};

use tenterhook_record::name::check_run_name;
use tenterhook_record::run::RunDir;

pub use batch::StoreBatch;
pub use capture::StoreCapture;
pub use capture_to::{CaptureToOptions, Captured, LongTexts};
pub use error::StoreError;
pub use layout::{Per, StoredLayer};
pub use reader::{RowBatch, StoreReader, StoredBatch};
pub use shuffle::{ShuffleOptions, Shuffled};
pub use writer::{StoreOptions, StoreSummary, StoreWriter, WhenFull};

/// A directory of runs.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use tenterhook_lens::{LocalStore, StoreOptions};
///
/// let dir = tempfile::tempdir()?;
/// let store = LocalStore::new(dir.path());
///
/// let mut writer = store.create("first", StoreOptions::default())?;
/// let mut batch = writer.batch(vec![vec![5, 6, 7], vec![8, 9]])?; // two sequences of token ids
/// batch.add("blocks.0.hook_resid_post", "batch pos d_model", &Tensor::ones((2, 3, 4), DType::F32, &Device::Cpu)?)?;
/// writer.append(batch)?;
/// writer.finish()?;
///
/// let reader = store.open("first")?;
/// assert_eq!(reader.rows("blocks.0.hook_resid_post")?, 5); // padding is not stored
/// for batch in reader.shuffled("blocks.0.hook_resid_post", 2, 42)? {
///     let batch = batch?;
///     assert_eq!(batch.activations.dims(), [batch.tokens.len(), 4]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LocalStore {
    base: PathBuf,
}

impl LocalStore {
    /// The store in this directory, which is made with the first run.
    pub fn new(base: impl Into<PathBuf>) -> Self {
        Self { base: base.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.base
    }

    /// The names of its runs, sorted.
    pub fn runs(&self) -> Result<Vec<String>, StoreError> {
        open::runs_in(&self.base)
    }

    /// Begins a new run. One of this name must not be there.
    pub fn create(&self, run: &str, options: StoreOptions) -> Result<StoreWriter, StoreError> {
        options.check()?;
        match RunDir::create(&self.base, Some(run)) {
            Ok(dir) => StoreWriter::start(dir, options),
            Err(tenterhook_record::run::RunError::Exists { path, .. }) => Err(StoreError::Exists { path }),
            Err(error) => Err(error.into()),
        }
    }

    /// Goes on with a run that is there: what is appended comes behind what it has.
    pub fn append(&self, run: &str, options: StoreOptions) -> Result<StoreWriter, StoreError> {
        options.check()?;
        let path = self.run_path(run)?;
        StoreWriter::start(RunDir::open(&path)?, options)
    }

    /// Opens a run to read it.
    pub fn open(&self, run: &str) -> Result<StoreReader, StoreError> {
        StoreReader::open(self.run_path(run)?)
    }

    fn run_path(&self, run: &str) -> Result<PathBuf, StoreError> {
        check_run_name(run).map_err(|error| StoreError::BadInput(error.to_string()))?;
        let path = self.base.join(run);
        if path.join(layout::HEAD).is_file() {
            return Ok(path);
        }
        let known = self.runs()?;
        let known = if known.is_empty() { "no runs".to_string() } else { known.join(", ") };
        Err(StoreError::BadInput(format!(
            "{}: no run is called `{run}`; there are {known}",
            self.base.display()
        )))
    }
}
