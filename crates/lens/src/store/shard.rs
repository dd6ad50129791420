//! Writing a shard: many batches in one file.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use safetensors::Dtype;
use tenterhook_models::files::tensors_header;
use tenterhook_record::disk;

use super::batch::{Chunk, Parts};
use super::error::StoreError;
use super::layout::{BATCHES, LENGTHS, POSITIONS, Per, SEQUENCES, ShardLine, TOKENS, shard_path};

/// One tensor of the file: pieces that follow one another.
struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    chunks: Vec<Chunk>,
}

/// Writes a shard that is there as a whole or not at all. The memory of what is written is free as soon as the system has it.
pub(super) fn write_shard(
    dir: &Path,
    number: u64,
    first_sequence: u64,
    mut batches: Vec<Parts>,
) -> Result<ShardLine, StoreError> {
    let rows: usize = batches.iter().map(|batch| batch.tokens.len()).sum();
    let sequences: usize = batches.iter().map(|batch| batch.lengths.len()).sum();
    let entries = layers(&mut batches, first_sequence);
    let beside = [
        (TOKENS, rows),
        (POSITIONS, rows),
        (SEQUENCES, rows),
        (LENGTHS, sequences),
        (BATCHES, batches.len()),
    ];
    let described = beside.iter().map(|(name, count)| (*name, Dtype::I64, vec![*count]));
    let described = described.chain(entries.iter().map(|e| (e.name.as_str(), e.dtype, e.shape.clone())));
    let path = shard_path(dir, number);
    let header = tensors_header(described).map_err(|problem| StoreError::damaged(&path, problem))?;
    let mut bytes = header.len() as u64;
    let written = disk::atomic_write(&path, |to| {
        to.write_all(&header)?;
        bytes += write_beside(to, &batches, first_sequence)?;
        for chunk in entries.into_iter().flat_map(|entry| entry.chunks) {
            to.write_all(&chunk.bytes)?;
            bytes += chunk.bytes.len() as u64;
        }
        Ok(())
    });
    written.map_err(StoreError::io("write", &path))?;
    let count = batches.len() as u64;
    Ok(ShardLine { shard: number, bytes, rows: rows as u64, sequences: sequences as u64, batches: count })
}

/// The tensors of all layers, wide types first. The batches keep what is beside them.
fn layers(batches: &mut [Parts], first_sequence: u64) -> Vec<Entry> {
    let mut by_row: BTreeMap<String, Entry> = BTreeMap::new();
    let mut entries = Vec::new();
    let mut sequence = first_sequence;
    for batch in batches {
        for part in std::mem::take(&mut batch.layers) {
            let (layer, dtype) = (&part.layer, part.layer.dtype);
            if layer.per == Per::Sequence {
                for (chunk, number) in part.chunks.into_iter().zip(sequence..) {
                    let (name, shape) = (layer.of_sequence(number), chunk.shape.clone());
                    entries.push(Entry { name, dtype, shape, chunks: vec![chunk] });
                }
                continue;
            }
            let shape = [&[0], layer.shape.as_slice()].concat();
            let name = layer.name.clone();
            let fresh = Entry { name: name.clone(), dtype, shape, chunks: Vec::new() };
            let entry = by_row.entry(name).or_insert(fresh);
            for chunk in part.chunks {
                entry.shape[0] += chunk.shape[0];
                entry.chunks.push(chunk);
            }
        }
        sequence += batch.lengths.len() as u64;
    }
    entries.extend(by_row.into_values());
    entries.sort_by(|a, b| (Reverse(a.dtype.bitsize()), &a.name).cmp(&(Reverse(b.dtype.bitsize()), &b.name)));
    entries
}

/// Tokens, positions, sequences, lengths, batches. Returns how many bytes they are.
fn write_beside(to: &mut dyn Write, batches: &[Parts], first_sequence: u64) -> io::Result<u64> {
    let mut bytes = 0;
    let mut put = |number: u64| {
        bytes += 8;
        to.write_all(&number.to_le_bytes())
    };
    let lengths = || batches.iter().flat_map(|batch| &batch.lengths);
    batches.iter().flat_map(|batch| &batch.tokens).try_for_each(|token| put(u64::from(*token)))?;
    batches.iter().flat_map(|batch| &batch.positions).try_for_each(|position| put(u64::from(*position)))?;
    for (length, sequence) in lengths().zip(first_sequence..) {
        (0..*length).try_for_each(|_| put(sequence))?;
    }
    lengths().try_for_each(|length| put(u64::from(*length)))?;
    batches.iter().try_for_each(|batch| put(batch.lengths.len() as u64))?;
    Ok(bytes)
}
