//! One batch on its way into a store.

use std::ops::Deref;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use memmap2::MmapMut;
use tenterhook_hooks::Positions;
use tenterhook_models::files::stored_type;

use super::desk::{Desk, Held};
use super::encode::{encode_rows, type_on_disk};
use super::error::StoreError;
use super::layout::{Per, StoredLayer, check_layer_name};
use super::writer::WhenFull;

/// What each row costs in memory beside the activations: its token and its position.
const ROW_BYTES: usize = 8;
const SEQUENCE_BYTES: usize = 8;

/// Sequences and what passed at the layers for them, without padding and in the type of the disk. Made by
/// [`StoreWriter::batch`](super::StoreWriter::batch).
#[derive(Debug)]
pub struct StoreBatch {
    pub(super) parts: Parts,
    /// How many places before each sequence are padding.
    left: Vec<usize>,
    /// The lengths of the sequences, of which `parts` may keep only some positions.
    lengths: Vec<usize>,
    desk: Arc<Desk>,
    when_full: WhenFull,
    floats: Option<DType>,
    /// Bytes it has so far.
    own: usize,
    /// There was no memory for all of it, and nobody was to wait.
    pub(super) left_out: bool,
}

/// What a batch consists of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
    /// Rows of each sequence.
    pub(super) lengths: Vec<u32>,
    pub(super) layers: Vec<LayerPart>,
    /// Finite numbers that became infinite in the type of the disk.
    pub(super) too_large: u64,
    _held: Option<Held>,
}

#[derive(Debug)]
pub(super) struct LayerPart {
    pub(super) layer: StoredLayer,
    /// One with all rows, or one per sequence.
    pub(super) chunks: Vec<Chunk>,
}

/// Bytes as they will be in the file, and the memory they hold.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Bytes,
    _held: Held,
}

/// Memory of its own. Large pieces come from the system and go back to it at once: an allocator would keep some of them, on top of the limit.
#[derive(Debug)]
pub(super) enum Bytes {
    Mapped { map: MmapMut, length: usize },
    Heap(Vec<u8>),
}

impl Bytes {
    /// Smaller ones are not worth a mapping, of which a process has a limited number.
    const LEAST_MAPPED: usize = 16 << 10;
    const PAGE: usize = 4096;

    /// What so many bytes really take.
    fn cost(length: usize) -> usize {
        if length < Self::LEAST_MAPPED { length } else { length.next_multiple_of(Self::PAGE) }
    }

    fn zeroed(length: usize) -> Self {
        let mapped = (length >= Self::LEAST_MAPPED).then(|| MmapMut::map_anon(length).ok()).flatten();
        match mapped {
            Some(map) => Self::Mapped { map, length },
            None => Self::Heap(vec![0; length]),
        }
    }

    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Mapped { map, length } => &mut map[..*length],
            Self::Heap(bytes) => bytes,
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped { map, length } => &map[..*length],
            Self::Heap(bytes) => bytes,
        }
    }
}

impl Parts {
    /// The bytes it will have in the file.
    pub(super) fn bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(|part| &part.chunks).map(|chunk| chunk.bytes.len());
        layers.sum::<usize>() + 24 * self.tokens.len()
    }

    /// The tensors it needs in a file.
    pub(super) fn tensors(&self) -> usize {
        self.layers.iter().map(|part| part.chunks.len()).sum()
    }
}

impl StoreBatch {
    pub(super) fn new(
        sequences: Vec<Vec<u32>>,
        desk: &Arc<Desk>,
        when_full: WhenFull,
        floats: Option<DType>,
    ) -> Result<Self, StoreError> {
        if sequences.is_empty() {
            return Err(StoreError::BadInput("a batch needs at least one sequence".to_string()));
        }
        if let Some(empty) = sequences.iter().position(Vec::is_empty) {
            return Err(StoreError::BadInput(format!("sequence {empty} of the batch has no tokens")));
        }
        let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
        let parts = Parts {
            positions: lengths.iter().flat_map(|length| 0..*length as u32).collect(),
            lengths: lengths.iter().map(|length| *length as u32).collect(),
            tokens: sequences.concat(),
            layers: Vec::new(),
            too_large: 0,
            _held: None,
        };
        let mut batch = Self {
            left: vec![0; lengths.len()],
            lengths,
            parts,
            desk: desk.clone(),
            when_full,
            floats,
            own: 0,
            left_out: false,
        };
        let bytes = ROW_BYTES * batch.parts.tokens.len() + SEQUENCE_BYTES * sequences.len();
        batch.parts._held = batch.reserve(bytes)?;
        Ok(batch)
    }

    /// Says how many places before each sequence are padding in the tensors that follow. Without this, padding is behind them.
    pub fn left_padding(mut self, left: Vec<usize>) -> Result<Self, StoreError> {
        if left.len() != self.lengths.len() {
            return Err(StoreError::BadInput(format!(
                "padding of {} sequences was given for {}",
                left.len(),
                self.lengths.len()
            )));
        }
        self.left = left;
        Ok(self)
    }

    /// Keeps only these positions of every sequence, negative ones from its own end, in the order of the sequence. A sequence that is too
    /// short for one has it not. Comes before the first layer.
    pub fn keep(mut self, positions: &Positions) -> Result<Self, StoreError> {
        if !self.parts.layers.is_empty() {
            return Err(StoreError::BadInput(
                "positions are chosen before the first layer is added".to_string(),
            ));
        }
        let (mut tokens, mut kept) = (Vec::new(), Vec::new());
        let mut start = 0;
        for (length, rows) in self.lengths.iter().zip(&mut self.parts.lengths) {
            let from_start =
                |position: &i64| if *position < 0 { position + *length as i64 } else { *position };
            let mut chosen: Vec<i64> = positions.0.iter().map(from_start).collect();
            chosen.retain(|position| (0..*length as i64).contains(position));
            chosen.sort_unstable();
            chosen.dedup();
            tokens.extend(chosen.iter().map(|position| self.parts.tokens[start + *position as usize]));
            *rows = chosen.len() as u32;
            kept.extend(chosen.into_iter().map(|position| position as u32));
            start += length;
        }
        (self.parts.tokens, self.parts.positions) = (tokens, kept);
        Ok(self)
    }

    /// The columns of its tensors: the longest sequence, with its padding.
    pub(super) fn width(&self) -> usize {
        self.lengths.iter().zip(&self.left).map(|(length, left)| length + left).max().unwrap_or(0)
    }

    /// The bytes that it will have in a file, so far.
    pub fn bytes(&self) -> usize {
        self.parts.bytes()
    }

    /// Whether something was added under this name.
    pub fn has(&self, layer: &str) -> bool {
        self.parts.layers.iter().any(|part| part.layer.name == layer)
    }

    /// Adds what passed at a layer: a tensor with these axes, the first of which is `batch`. Waits while the memory is full.
    pub fn add(&mut self, layer: &str, axes: &str, x: &Tensor) -> Result<(), StoreError> {
        check_layer_name(layer)?;
        if self.has(layer) {
            return Err(StoreError::BadInput(format!("`{layer}` was added to this batch already")));
        }
        let names: Vec<&str> = axes.split_whitespace().collect();
        let of_batch = x.dims().first().is_some_and(|first| *first == 1 || *first == self.lengths.len());
        if names.first() != Some(&"batch") || names.len() != x.rank() || !of_batch {
            return Err(StoreError::BadInput(format!(
                "`{layer}` has shape {:?} and axes `{axes}`: the first axis must be `batch`, {} sequences",
                x.dims(),
                self.lengths.len()
            )));
        }
        if self.left_out {
            return Ok(());
        }
        let to = type_on_disk(x.dtype(), self.floats);
        let x = x.to_device(&Device::Cpu)?.contiguous()?;
        let x = if x.dtype() == to || x.dtype() == DType::F32 { x } else { x.to_dtype(DType::F32)? };
        let unknown =
            || StoreError::BadInput(format!("`{layer}` has type {:?}, which cannot be stored", x.dtype()));
        let dtype = stored_type(to).ok_or_else(unknown)?;
        let per = if names.get(1) == Some(&"pos") { Per::Token } else { Per::Sequence };
        let (chunks, shape) = match per {
            Per::Token => (self.rows(layer, &x, to)?, x.dims()[2..].to_vec()),
            Per::Sequence => (self.by_sequence(layer, &names, &x, to)?, Vec::new()),
        };
        let layer = StoredLayer { name: layer.to_string(), axes: axes.to_string(), per, dtype, shape };
        self.parts.layers.push(LayerPart { layer, chunks });
        Ok(())
    }

    /// The rows of `[batch, pos, ...]` that are kept.
    fn rows(&mut self, layer: &str, x: &Tensor, to: DType) -> Result<Vec<Chunk>, StoreError> {
        let (batch, places) = (x.dims()[0], x.dims()[1]);
        let mut rows = Vec::with_capacity(self.parts.tokens.len());
        let mut positions = self.parts.positions.iter();
        for (i, kept) in self.parts.lengths.iter().enumerate() {
            let end = self.left[i] + self.lengths[i];
            if end > places {
                return Err(StoreError::BadInput(format!(
                    "`{layer}` has {places} positions, sequence {i} of the batch ends at {end}"
                )));
            }
            // Positions that are the same for all sequences may come once.
            let start = if batch == 1 { 0 } else { i * places } + self.left[i];
            rows.extend(positions.by_ref().take(*kept as usize).map(|position| start + *position as usize));
        }
        let row_shape = &x.dims()[2..];
        let shape = [&[rows.len()], row_shape].concat();
        Ok(self.chunk(x, row_shape.iter().product(), &rows, to, shape)?.into_iter().collect())
    }

    /// Each sequence for itself, with no padding on any axis that runs along it.
    fn by_sequence(
        &mut self,
        layer: &str,
        axes: &[&str],
        x: &Tensor,
        to: DType,
    ) -> Result<Vec<Chunk>, StoreError> {
        let mut chunks = Vec::new();
        for i in 0..self.lengths.len() {
            let mut own = x.get(if x.dims()[0] == 1 { 0 } else { i })?;
            for (axis, name) in axes[1..].iter().enumerate() {
                if matches!(*name, "pos" | "query_pos" | "key_pos") {
                    if self.left[i] + self.lengths[i] > own.dim(axis)? {
                        return Err(StoreError::BadInput(format!(
                            "`{layer}` has {} places on axis `{name}`, sequence {i} of the batch has {}",
                            own.dim(axis)?,
                            self.lengths[i]
                        )));
                    }
                    own = own.narrow(axis, self.left[i], self.lengths[i])?;
                }
            }
            let own = own.contiguous()?;
            let (shape, width) = (own.dims().to_vec(), own.elem_count());
            chunks.extend(self.chunk(&own, width, &[0], to, shape)?);
        }
        Ok(chunks)
    }

    /// Some rows in memory of their own; `None` where there is no memory and nobody is to wait.
    fn chunk(
        &mut self,
        x: &Tensor,
        width: usize,
        rows: &[usize],
        to: DType,
        shape: Vec<usize>,
    ) -> Result<Option<Chunk>, StoreError> {
        let size = rows.len() * width * to.size_in_bytes();
        let Some(held) = self.reserve(Bytes::cost(size))? else { return Ok(None) };
        let mut bytes = Bytes::zeroed(size);
        self.parts.too_large += encode_rows(x, width, rows, to, bytes.as_mut())?;
        Ok(Some(Chunk { shape, bytes, _held: held }))
    }

    fn reserve(&mut self, bytes: usize) -> Result<Option<Held>, StoreError> {
        if self.left_out {
            return Ok(None);
        }
        match self.desk.reserve(bytes, self.own, self.when_full) {
            Err(StoreError::Full { .. }) if self.when_full == WhenFull::LeaveOut => {
                self.left_out = true;
                self.parts.layers.clear(); // its memory is for others
                Ok(None)
            }
            Err(error) => Err(error),
            Ok(held) => {
                self.own += bytes;
                Ok(Some(held))
            }
        }
    }
}
