//! All rows of a layer in a random order, with bounded memory.

use candle_core::Tensor;
use tenterhook_hooks::Permutation;
use tenterhook_hooks::random::Stream;

use super::error::StoreError;
use super::layout::StoredLayer;
use super::reader::{Beside, RowBatch, StoreReader};

/// Rows that lie beside one another and are read together.
const BLOCK: u64 = 16;
const BUFFER_BYTES: usize = 64 << 20;
/// What each row in the buffer has beside its activations.
const BESIDE_BYTES: usize = 16;

/// How rows are shuffled.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShuffleOptions {
    /// Decides the order, together with the epoch.
    pub seed: u64,
    /// Another order for every pass over the data.
    pub epoch: u64,
    /// Rows in memory at a time; by default as many as fit into 64 MiB. Layers read with the same number come in the same order.
    pub buffer_rows: Option<usize>,
}

/// Batches of all rows of a layer, each row exactly once, in an order that is a function of seed, epoch and buffer.
///
/// Blocks of 16 neighbouring rows are drawn in a random order (a keyed permutation: nothing is stored for it) until the buffer is full; the
/// rows in the buffer are put into a random order and handed out; then the next blocks are drawn. Where all rows fit into the buffer, every
/// order is equally likely; otherwise rows that were neighbours come out of the same buffer, but not beside one another. The last batch may be smaller.
#[derive(Debug)]
pub struct Shuffled<'r> {
    reader: &'r StoreReader,
    layer: &'r StoredLayer,
    batch_rows: usize,
    rows: u64,
    blocks: u64,
    order: Permutation,
    stream: Stream,
    buffer_blocks: u64,
    next_block: u64,
    buffer: Buffer,
    /// Rows handed out of the buffer.
    given: usize,
    failed: bool,
}

/// Rows in the order in which they lie in the run, and the order in which they are handed out.
#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    beside: Beside,
    order: Permutation,
}

impl Buffer {
    fn empty(stream: Stream) -> Self {
        Self { bytes: Vec::new(), beside: Beside::default(), order: Permutation::new(0, stream) }
    }
}

impl<'r> Shuffled<'r> {
    pub(super) fn new(
        reader: &'r StoreReader,
        layer: &'r StoredLayer,
        batch_rows: usize,
        options: ShuffleOptions,
    ) -> Result<Self, StoreError> {
        if batch_rows == 0 || options.buffer_rows == Some(0) {
            return Err(StoreError::BadInput(
                "`batch_rows` and `buffer_rows` must be at least 1".to_string(),
            ));
        }
        let rows = reader.rows(&layer.name)?;
        let blocks = rows.div_ceil(BLOCK);
        let stream = Stream::new(options.seed).named("store").at(options.epoch);
        let fit = BUFFER_BYTES / layer.row_bytes().saturating_add(BESIDE_BYTES);
        let buffer_rows = options.buffer_rows.unwrap_or(fit).max(batch_rows) as u64;
        Ok(Self {
            reader,
            layer,
            batch_rows,
            rows,
            blocks,
            order: Permutation::new(blocks, stream.named("blocks")),
            buffer_blocks: buffer_rows.div_ceil(BLOCK),
            next_block: 0,
            buffer: Buffer::empty(stream),
            stream,
            given: 0,
            failed: false,
        })
    }

    /// Draws the next blocks.
    fn fill(&mut self) -> Result<(), StoreError> {
        let drawn = self.next_block..self.blocks.min(self.next_block + self.buffer_blocks);
        let mut blocks: Vec<u64> = drawn.clone().map(|i| self.order.get(i)).collect();
        // The disk likes them in its own order, and they are shuffled anyway.
        blocks.sort_unstable();
        let mut buffer = Buffer::empty(self.stream);
        let mut blocks = blocks.into_iter().peekable();
        while let Some(first) = blocks.next() {
            let mut last = first;
            while blocks.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            let rows = first * BLOCK..self.rows.min((last + 1) * BLOCK);
            self.reader.append_bytes(&self.layer.name, rows.clone(), &mut buffer.bytes)?;
            self.reader.append_beside(rows, &mut buffer.beside)?;
        }
        let stream = self.stream.named("rows").at(self.next_block);
        buffer.order = Permutation::new(buffer.beside.tokens.len() as u64, stream);
        self.next_block = drawn.end;
        (self.buffer, self.given) = (buffer, 0);
        Ok(())
    }

    fn batch(&mut self) -> Result<Option<RowBatch>, StoreError> {
        let (mut tokens, mut positions, mut sequences) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes =
            Vec::with_capacity(self.batch_rows.saturating_mul(self.layer.row_bytes()).min(BUFFER_BYTES));
        while tokens.len() < self.batch_rows {
            if self.given == self.buffer.beside.tokens.len() {
                if self.next_block == self.blocks {
                    break;
                }
                self.buffer = Buffer::empty(self.stream); // before the next one takes its memory
                self.given = 0;
                self.fill()?;
                continue;
            }
            let row = self.buffer.order.get(self.given as u64) as usize;
            let width = self.layer.row_bytes();
            bytes.extend_from_slice(&self.buffer.bytes[row * width..(row + 1) * width]);
            tokens.push(self.buffer.beside.tokens[row]);
            positions.push(self.buffer.beside.positions[row]);
            sequences.push(self.buffer.beside.sequences[row]);
            self.given += 1;
        }
        if tokens.is_empty() {
            return Ok(None);
        }
        let activations: Tensor = self.reader.decode(&self.layer.name, &bytes)?;
        Ok(Some(RowBatch { activations, tokens, positions, sequences }))
    }
}

impl Iterator for Shuffled<'_> {
    type Item = Result<RowBatch, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let batch = self.batch();
        self.failed = batch.is_err();
        batch.transpose()
    }
}
