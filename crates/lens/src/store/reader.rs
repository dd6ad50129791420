//! Reading a run.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Tensor;
use safetensors::Dtype;
use serde_json::{Map, Value};
use tenterhook_models::files::{TensorReader, decode};

use super::error::StoreError;
use super::layout::{
    BATCHES, HEAD, Head, LENGTHS, POSITIONS, Per, SEQUENCES, ShardLine, StoredLayer, TOKENS, shard_path,
};
use super::open::{Scan, runs_in};
use super::shuffle::{ShuffleOptions, Shuffled};

/// Files that stay open between reads.
const OPEN_SHARDS: usize = 32;

/// A run, open for reading. Nothing is read before it is asked for, and nothing is kept: the memory it takes is what is asked for. What a writer
/// appends after it was opened is not seen.
#[derive(Debug)]
pub struct StoreReader {
    dir: PathBuf,
    head: Head,
    shards: Vec<Shard>,
    open: Mutex<BTreeMap<usize, Arc<TensorReader>>>,
}

/// A shard's place in the run.
#[derive(Clone, Copy, Debug)]
struct Shard {
    line: ShardLine,
    first_row: u64,
    first_sequence: u64,
    first_batch: u64,
}

/// Rows of a layer with what belongs to each of them.
#[derive(Clone, Debug)]
pub struct RowBatch {
    /// `[rows, ...]`; half types have become f32.
    pub activations: Tensor,
    /// The token of each row.
    pub tokens: Vec<u32>,
    /// Its position in its sequence.
    pub positions: Vec<u32>,
    /// The number of its sequence in the run.
    pub sequences: Vec<u64>,
}

/// What rows have beside their activations.
#[derive(Debug, Default)]
pub(super) struct Beside {
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
    pub(super) sequences: Vec<u64>,
}

/// A batch as it was appended.
#[derive(Clone, Debug)]
pub struct StoredBatch {
    /// Its number in the run.
    pub number: u64,
    /// The rows of its sequences, one after another.
    pub rows: RowBatch,
}

impl StoreReader {
    /// Opens the directory of a run, or of a store that has one run only.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_one(dir.as_ref())
    }

    /// Opens all parts of a run that several processes have captured together, in the order of their ranks: `NAME-rank0000`, `NAME-rank0001` and
    /// so on, where nothing else is in the store. Of any other store, the one run that [`open`](Self::open) would open.
    pub fn open_parts(dir: impl AsRef<Path>) -> Result<Vec<Self>, StoreError> {
        let dir = dir.as_ref();
        let runs = if dir.join(HEAD).is_file() { Vec::new() } else { runs_in(dir)? };
        let numbered = |(rank, run): (usize, &String)| {
            let (name, number) = run.rsplit_once("-rank")?;
            (number == format!("{rank:04}")).then(|| name.to_string())
        };
        let names: Option<Vec<String>> = runs.iter().enumerate().map(numbered).collect();
        match names.filter(|names| names.len() > 1 && names.iter().all(|name| *name == names[0])) {
            Some(_) => {
                let parts =
                    runs.iter().map(|run| Self::open_one(&dir.join(run))).collect::<Result<Vec<_>, _>>()?;
                let written = parts[0].about().get("ranks").and_then(Value::as_u64);
                match written {
                    Some(ranks) if ranks != parts.len() as u64 => Err(StoreError::damaged(
                        dir,
                        format!("was written by {ranks} processes, and has the parts of {}", parts.len()),
                    )),
                    _ => Ok(parts),
                }
            }
            None => Ok(vec![Self::open_one(dir)?]),
        }
    }

    fn open_one(dir: &Path) -> Result<Self, StoreError> {
        let mut dir = dir.to_path_buf();
        if !dir.join(HEAD).is_file() {
            match runs_in(&dir)?.as_slice() {
                [only] => dir.push(only),
                [] => {
                    return Err(StoreError::damaged(
                        &dir,
                        format!("is not a store: it has no {HEAD}, and no run in it has"),
                    ));
                }
                several => {
                    let problem = format!("has several runs, name one of them: {}", several.join(", "));
                    return Err(StoreError::damaged(&dir, problem));
                }
            }
        }
        let scan = Scan::of(&dir)?;
        let mut shards: Vec<Shard> = Vec::with_capacity(scan.shards.len());
        let (mut first_row, mut first_sequence, mut first_batch) = (0u64, 0u64, 0u64);
        for line in scan.shards {
            shards.push(Shard { line, first_row, first_sequence, first_batch });
            let sum = |a: u64, b: u64| {
                a.checked_add(b)
                    .ok_or_else(|| StoreError::damaged(&shard_path(&dir, line.shard), "claims too much"))
            };
            first_row = sum(first_row, line.rows)?;
            first_sequence = sum(first_sequence, line.sequences)?;
            first_batch = sum(first_batch, line.batches)?;
        }
        Ok(Self { dir, head: scan.head, shards, open: Mutex::default() })
    }

    /// The run's directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The layers, in the order in which they passed.
    pub fn layers(&self) -> &[StoredLayer] {
        &self.head.layers
    }

    /// What the writer said about the run.
    pub fn about(&self) -> &Map<String, Value> {
        &self.head.about
    }

    /// Whether the writer came to its end. A run that did not can be read as well, up to its last whole shard.
    pub fn is_finished(&self) -> bool {
        self.head.finished
    }

    /// The layer of this name.
    pub fn layer(&self, name: &str) -> Result<&StoredLayer, StoreError> {
        let names = || self.head.layers.iter().map(|layer| layer.name.as_str());
        self.head.layers.iter().find(|layer| layer.name == name).ok_or_else(|| {
            let near = tenterhook_hooks::nearest(name, names(), 3);
            StoreError::BadInput(format!(
                "{}: there is no layer `{name}`; nearest: {}",
                self.dir.display(),
                near.join(", ")
            ))
        })
    }

    /// How many rows a layer has.
    pub fn rows(&self, layer: &str) -> Result<u64, StoreError> {
        self.row_layer(layer)?;
        Ok(self.shards.last().map_or(0, |shard| shard.first_row + shard.line.rows))
    }

    /// How many sequences there are.
    pub fn sequences(&self) -> u64 {
        self.shards.last().map_or(0, |shard| shard.first_sequence + shard.line.sequences)
    }

    /// How many batches there are.
    pub fn batch_count(&self) -> u64 {
        self.shards.last().map_or(0, |shard| shard.first_batch + shard.line.batches)
    }

    /// Some rows of a layer, `[rows, ...]`; half types become f32.
    pub fn read(&self, layer: &str, rows: Range<u64>) -> Result<Tensor, StoreError> {
        let mut bytes = Vec::new();
        self.append_bytes(layer, rows, &mut bytes)?;
        self.decode(layer, &bytes)
    }

    /// The same with what belongs to each row.
    pub fn read_rows(&self, layer: &str, rows: Range<u64>) -> Result<RowBatch, StoreError> {
        let activations = self.read(layer, rows.clone())?;
        let mut beside = Beside::default();
        self.append_beside(rows, &mut beside)?;
        let Beside { tokens, positions, sequences } = beside;
        Ok(RowBatch { activations, tokens, positions, sequences })
    }

    /// What was stored for one sequence: its rows, or its own tensor where the layer is stored by sequence.
    pub fn sequence(&self, layer: &str, sequence: u64) -> Result<Tensor, StoreError> {
        let layer = self.layer(layer)?;
        let at = self.shards.partition_point(|shard| shard.first_sequence + shard.line.sequences <= sequence);
        let Some(shard) = self.shards.get(at) else {
            return Err(StoreError::BadInput(format!(
                "{}: there is no sequence {sequence}, there are {}",
                self.dir.display(),
                self.sequences()
            )));
        };
        let file = self.shard(at)?;
        if layer.per == Per::Sequence {
            return Ok(file.read(&layer.of_sequence(sequence))?);
        }
        let lengths = numbers(&file, LENGTHS, 0..shard.line.sequences)?;
        let before = (sequence - shard.first_sequence) as usize;
        let start = shard.first_row + lengths[..before].iter().sum::<u64>();
        self.read(&layer.name, start..start + lengths[before])
    }

    /// The batches of a layer that is stored by token, in the order in which they were appended.
    pub fn batches(
        &self,
        layer: &str,
    ) -> Result<impl Iterator<Item = Result<StoredBatch, StoreError>>, StoreError> {
        let name = self.row_layer(layer)?.name.clone();
        let of_shard = move |at: usize| {
            let (shard, name) = (self.shards[at], name.clone());
            let ranges = self.batch_ranges(at);
            let (ranges, failed) = match ranges {
                Ok(ranges) => (ranges, None),
                Err(error) => (Vec::new(), Some(Err(error))),
            };
            let read = move |(number, rows): (u64, Range<u64>)| {
                Ok(StoredBatch { number, rows: self.read_rows(&name, rows)? })
            };
            failed.into_iter().chain((shard.first_batch..).zip(ranges).map(read))
        };
        Ok((0..self.shards.len()).flat_map(of_shard))
    }

    /// All rows of a layer in a random order, each exactly once, as a function of the seed. Takes 64 MiB at most, or what one batch needs.
    pub fn shuffled(&self, layer: &str, batch_rows: usize, seed: u64) -> Result<Shuffled<'_>, StoreError> {
        self.shuffled_with(layer, batch_rows, ShuffleOptions { seed, ..ShuffleOptions::default() })
    }

    /// The same with more to choose.
    pub fn shuffled_with(
        &self,
        layer: &str,
        batch_rows: usize,
        options: ShuffleOptions,
    ) -> Result<Shuffled<'_>, StoreError> {
        Shuffled::new(self, self.row_layer(layer)?, batch_rows, options)
    }

    /// The rows of each batch of a shard.
    fn batch_ranges(&self, at: usize) -> Result<Vec<Range<u64>>, StoreError> {
        let (shard, file) = (self.shards[at], self.shard(at)?);
        let mut lengths = numbers(&file, LENGTHS, 0..shard.line.sequences)?.into_iter();
        let mut start = shard.first_row;
        let range = |sequences: u64| {
            let end = start + lengths.by_ref().take(sequences as usize).sum::<u64>();
            std::mem::replace(&mut start, end)..end
        };
        let ranges: Vec<Range<u64>> =
            numbers(&file, BATCHES, 0..shard.line.batches)?.into_iter().map(range).collect();
        if start != shard.first_row + shard.line.rows {
            return Err(StoreError::damaged(
                file.path(),
                "its `batches` and `lengths` do not make up its rows",
            ));
        }
        Ok(ranges)
    }

    fn row_layer(&self, name: &str) -> Result<&StoredLayer, StoreError> {
        let layer = self.layer(name)?;
        match layer.per {
            Per::Token => Ok(layer),
            Per::Sequence => Err(StoreError::BadInput(format!(
                "`{name}` is stored by sequence (its axes are `{}`): it has no rows, read it with `sequence`",
                layer.axes
            ))),
        }
    }

    /// The bytes of some rows of a layer, behind what `out` has.
    pub(super) fn append_bytes(
        &self,
        layer: &str,
        rows: Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let layer = self.row_layer(layer)?;
        self.each_shard(rows, |file, rows| {
            out.append(&mut file.row_bytes(&layer.name, rows.start as usize..rows.end as usize)?.1);
            Ok(())
        })
    }

    /// Bytes of rows as a tensor.
    pub(super) fn decode(&self, layer: &str, bytes: &[u8]) -> Result<Tensor, StoreError> {
        let layer = self.row_layer(layer)?;
        let rows = bytes.len().checked_div(layer.row_bytes()).unwrap_or(0);
        Ok(decode(layer.dtype, &[&[rows], layer.shape.as_slice()].concat(), bytes)?)
    }

    /// Tokens, positions and sequences of some rows, behind what `out` has.
    pub(super) fn append_beside(&self, rows: Range<u64>, out: &mut Beside) -> Result<(), StoreError> {
        self.each_shard(rows, |file, rows| {
            out.tokens.extend(small(file, TOKENS, rows.clone())?);
            out.positions.extend(small(file, POSITIONS, rows.clone())?);
            out.sequences.extend(numbers(file, SEQUENCES, rows)?);
            Ok(())
        })
    }

    /// Calls with each shard that has some of the rows, and with which rows of it.
    fn each_shard(
        &self,
        rows: Range<u64>,
        mut call: impl FnMut(&TensorReader, Range<u64>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let count = self.shards.last().map_or(0, |shard| shard.first_row + shard.line.rows);
        if rows.start > rows.end || rows.end > count {
            return Err(StoreError::BadInput(format!(
                "{}: rows {rows:?} were asked for, there are {count}",
                self.dir.display()
            )));
        }
        let mut at = self.shards.partition_point(|shard| shard.first_row + shard.line.rows <= rows.start);
        let mut start = rows.start;
        while start < rows.end {
            let shard = self.shards[at];
            let end = rows.end.min(shard.first_row + shard.line.rows);
            if end > start {
                call(&*self.shard(at)?, start - shard.first_row..end - shard.first_row)?;
            }
            (start, at) = (end, at + 1);
        }
        Ok(())
    }

    /// A shard, opened and compared with what the run says of it.
    fn shard(&self, at: usize) -> Result<Arc<TensorReader>, StoreError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&at) {
            return Ok(file.clone());
        }
        let file = TensorReader::open(&shard_path(&self.dir, at as u64))?;
        self.check(&file, &self.shards[at].line)?;
        if open.len() >= OPEN_SHARDS {
            open.clear();
        }
        let file = Arc::new(file);
        open.insert(at, file.clone());
        Ok(file)
    }

    fn check(&self, file: &TensorReader, line: &ShardLine) -> Result<(), StoreError> {
        let expect = |name: &str, dtype: Dtype, shape: &[usize]| match file.info(name) {
            Some((found, dims)) if found == dtype && dims == shape => Ok(()),
            Some((found, dims)) => Err(StoreError::damaged(
                file.path(),
                format!("`{name}` is {found} {dims:?}, expected {dtype} {shape:?}"),
            )),
            None => Err(StoreError::damaged(file.path(), format!("has no tensor `{name}`"))),
        };
        let rows = line.rows as usize;
        for name in [TOKENS, POSITIONS, SEQUENCES] {
            expect(name, Dtype::I64, &[rows])?;
        }
        expect(LENGTHS, Dtype::I64, &[line.sequences as usize])?;
        expect(BATCHES, Dtype::I64, &[line.batches as usize])?;
        for layer in self.head.layers.iter().filter(|layer| layer.per == Per::Token) {
            expect(&layer.name, layer.dtype, &[&[rows], layer.shape.as_slice()].concat())?;
        }
        Ok(())
    }
}

/// Whole numbers of a shard, none of them negative.
fn numbers(file: &TensorReader, name: &str, rows: Range<u64>) -> Result<Vec<u64>, StoreError> {
    let values: Vec<i64> = file.read_rows(name, rows.start as usize..rows.end as usize)?.to_vec1()?;
    // A length that is believed is added to others: it must not overflow.
    let fits = |value: i64| u64::try_from(value).ok().filter(|value| *value < 1 << 40);
    let wrong = || StoreError::damaged(file.path(), format!("`{name}` has a number that cannot be"));
    values.into_iter().map(|value| fits(value).ok_or_else(wrong)).collect()
}

fn small(file: &TensorReader, name: &str, rows: Range<u64>) -> Result<Vec<u32>, StoreError> {
    let wrong = || StoreError::damaged(file.path(), format!("`{name}` has a number that cannot be"));
    numbers(file, name, rows)?.into_iter().map(|value| u32::try_from(value).map_err(|_| wrong())).collect()
}
