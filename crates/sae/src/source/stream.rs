//! A source of activations as a data set.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Device, Tensor};
use serde_json::{Value, json};
use tenterhook_hooks::Batch;
use tenterhook_hooks::random::Stream;
use tenterhook_train::data::{DataError, Dataset, Permutation};

use super::ActivationSource;
use crate::error::SaeError;

/// How activations are mixed.
#[derive(Clone, Copy, Debug)]
pub struct StreamOptions {
    /// How many activations the run takes. They begin anew when all have come.
    pub examples: u64,
    /// The most rows that are held and mixed at a time; a piece is always whole.
    pub buffer_rows: u64,
    /// The seed of the order.
    pub seed: u64,
}

/// Activations in a random order, a buffer at a time. Read it in its natural order: every jump to another buffer fills it anew.
pub struct ActivationStream {
    source: Arc<dyn ActivationSource>,
    options: StreamOptions,
    /// The rows of all pieces.
    rows: u64,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    round: Option<Round>,
    buffer: Option<Buffer>,
}

/// One time through all pieces: in which order, and which of them make a buffer.
struct Round {
    number: u64,
    order: Vec<u64>,
    /// Of every buffer, the place of its first piece in the order, and its first row.
    starts: Vec<(usize, u64)>,
}

struct Buffer {
    round: u64,
    number: usize,
    tensors: Vec<Vec<f32>>,
    order: Permutation,
}

impl ActivationStream {
    /// A stream of this source. A source without activations is an error.
    pub fn new(source: Arc<dyn ActivationSource>, options: StreamOptions) -> Result<Self, SaeError> {
        let rows: u64 = (0..source.pieces()).map(|piece| source.rows(piece)).sum();
        if rows == 0 {
            return Err(SaeError::bad(
                "there are no activations: the texts are too short, or there are none",
            ));
        }
        if options.buffer_rows == 0 {
            return Err(SaeError::bad("a buffer of 0 rows holds nothing: it must have at least 1"));
        }
        Ok(Self { source, options, rows, held: Mutex::default() })
    }

    /// How many activations there are before they begin anew.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    fn stream(&self, round: u64) -> Stream {
        Stream::new(self.options.seed).named("activations").at(round)
    }

    fn round(&self, number: u64) -> Round {
        let pieces = self.source.pieces();
        let permutation = Permutation::new(pieces, self.stream(number).named("pieces"));
        let order: Vec<u64> = (0..pieces).map(|place| permutation.get(place)).collect();
        let (mut starts, mut first, mut row) = (vec![(0, 0)], 0, 0);
        for (place, piece) in order.iter().enumerate() {
            let rows = self.source.rows(*piece);
            if row > first && row + rows - first > self.options.buffer_rows {
                starts.push((place, row));
                first = row;
            }
            row += rows;
        }
        Round { number, order, starts }
    }

    fn fill(&self, round: &Round, number: usize) -> Result<Buffer, SaeError> {
        let start = round.starts[number].0;
        let end = round.starts.get(number + 1).map_or(round.order.len(), |(place, _)| *place);
        let tensors = self.source.load(&round.order[start..end])?;
        let rows: u64 = round.order[start..end].iter().map(|piece| self.source.rows(*piece)).sum();
        for ((name, width), values) in self.source.tensors().iter().zip(&tensors) {
            if values.len() as u64 != rows * *width as u64 {
                return Err(SaeError::bad(format!(
                    "`{name}` has {} numbers in place of {rows} rows of {width}",
                    values.len()
                )));
            }
        }
        let order = Permutation::new(rows, self.stream(round.number).named("rows").at(number as u64));
        Ok(Buffer { round: round.number, number, tensors, order })
    }

    /// Calls `take` with the buffer and the row that an example is.
    fn visit(&self, held: &mut Held, index: u64, take: impl FnOnce(&Buffer, usize)) -> Result<(), SaeError> {
        let (number, row) = (index / self.rows, index % self.rows);
        if held.round.as_ref().is_none_or(|round| round.number != number) {
            held.round = Some(self.round(number));
        }
        let Some(round) = &held.round else { return Ok(()) };
        let buffer = round.starts.partition_point(|(_, first)| *first <= row) - 1;
        if held.buffer.as_ref().is_none_or(|held| (held.round, held.number) != (number, buffer)) {
            held.buffer = None; // before the next one takes its memory
            held.buffer = Some(self.fill(round, buffer)?);
        }
        if let Some(held) = &held.buffer {
            take(held, held.order.get(row - round.starts[buffer].1) as usize);
        }
        Ok(())
    }
}

impl Dataset for ActivationStream {
    fn len(&self) -> u64 {
        self.options.examples
    }

    fn batch(&self, indices: &[u64], device: &Device) -> Result<Batch, DataError> {
        self.part(indices, 0..indices.len(), device)
    }

    /// Goes through all of the indices, so that buffers are filled at the same time wherever several processes have parts of one batch.
    fn part(&self, indices: &[u64], part: Range<usize>, device: &Device) -> Result<Batch, DataError> {
        let own = &indices[part.clone()];
        let widths: Vec<usize> = self.source.tensors().iter().map(|(_, width)| *width).collect();
        let mut out: Vec<Vec<f32>> =
            widths.iter().map(|width| Vec::with_capacity(width * own.len())).collect();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, index) in indices.iter().enumerate() {
            if *index >= self.len() {
                return Err(DataError::NoExample { index: *index, len: self.len() });
            }
            let take = |buffer: &Buffer, row: usize| {
                let wanted = part.contains(&place);
                for ((to, from), width) in out.iter_mut().zip(&buffer.tensors).zip(&widths).filter(|_| wanted)
                {
                    to.extend_from_slice(&from[row * width..(row + 1) * width]);
                }
            };
            self.visit(&mut held, *index, take)
                .map_err(|error| candle_core::Error::msg(error.to_string()))?;
        }
        let mut batch = Batch::new(own.to_vec());
        for ((name, width), values) in self.source.tensors().iter().zip(out) {
            batch = batch.with(name, Tensor::from_vec(values, (own.len(), *width), device)?);
        }
        Ok(batch)
    }

    fn fingerprint(&self) -> Value {
        json!({ "kind": "activations", "buffer_rows": self.options.buffer_rows, "source": self.source.fingerprint() })
    }

    fn vocab(&self) -> Option<u64> {
        None
    }

    fn sequence_length(&self) -> Option<usize> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Pieces of 1, 2, 3, ... rows; every row is its own number.
    struct Steps {
        tensors: Vec<(String, usize)>,
        pieces: u64,
        loaded: AtomicU64,
    }

    impl Steps {
        fn new(pieces: u64) -> Self {
            Self { tensors: vec![("a".into(), 1), ("b".into(), 2)], pieces, loaded: AtomicU64::new(0) }
        }
    }

    impl ActivationSource for Steps {
        fn tensors(&self) -> &[(String, usize)] {
            &self.tensors
        }
        fn pieces(&self) -> u64 {
            self.pieces
        }
        fn rows(&self, piece: u64) -> u64 {
            piece + 1
        }
        fn load(&self, pieces: &[u64]) -> Result<Vec<Vec<f32>>, SaeError> {
            self.loaded.fetch_add(1, Relaxed);
            let rows = pieces
                .iter()
                .flat_map(|piece| (0..=*piece).map(move |row| (piece * (piece + 1) / 2 + row) as f32));
            let rows: Vec<f32> = rows.collect();
            Ok(vec![rows.clone(), rows.iter().flat_map(|row| [*row, -row]).collect()])
        }
        fn fingerprint(&self) -> Value {
            json!("steps")
        }
    }

    fn stream(source: Arc<Steps>, seed: u64) -> ActivationStream {
        ActivationStream::new(source, StreamOptions { examples: 400, buffer_rows: 12, seed }).unwrap()
    }

    fn rows(stream: &ActivationStream, indices: Range<u64>) -> Vec<u32> {
        let batch = stream.batch(&indices.collect::<Vec<_>>(), &Device::Cpu).unwrap();
        let both = batch.get("b").unwrap().to_vec2::<f32>().unwrap();
        let one = batch.get("a").unwrap().to_vec2::<f32>().unwrap();
        assert!(one.iter().zip(&both).all(|(a, b)| a[0] == b[0] && a[0] == -b[1]));
        one.into_iter().map(|row| row[0] as u32).collect()
    }

    #[test]
    fn every_activation_comes_once_per_round_in_another_order() {
        let source = Arc::new(Steps::new(9));
        let stream = stream(source.clone(), 1);
        assert_eq!(stream.rows(), 45);
        let rounds: Vec<Vec<u32>> = (0..3).map(|round| rows(&stream, round * 45..(round + 1) * 45)).collect();
        for round in &rounds {
            let mut sorted = round.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..45));
        }
        assert!(rounds[0] != rounds[1] && rounds[1] != rounds[2]);
        // In order, every buffer is filled once: of 45 rows in buffers of 12 there are 4 to 9.
        assert!((12..=27).contains(&source.loaded.load(Relaxed)), "{:?}", source.loaded);
        assert_ne!(rows(&self::stream(source.clone(), 2), 0..45), rounds[0]);
        assert_eq!(rows(&self::stream(source, 1), 50..60), rounds[1][5..15]);
    }

    #[test]
    fn what_is_empty_or_outside_is_refused() {
        let source = Arc::new(Steps::new(3));
        let options = StreamOptions { examples: 4, buffer_rows: 0, seed: 1 };
        assert!(ActivationStream::new(source.clone(), options).is_err());
        assert!(
            ActivationStream::new(Arc::new(Steps::new(0)), StreamOptions { buffer_rows: 5, ..options })
                .is_err()
        );
        let stream = ActivationStream::new(source, StreamOptions { buffer_rows: 5, ..options }).unwrap();
        assert!(matches!(stream.batch(&[4], &Device::Cpu), Err(DataError::NoExample { index: 4, len: 4 })));
    }
}
