//! The thread that writes: it gathers batches until they are worth a shard.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use tenterhook_record::disk::{self, DiskFile};

use super::batch::Parts;
use super::desk::{Desk, Work};
use super::error::StoreError;
use super::layout::{HEAD, Head, LINES, ShardLine};
use super::open::Scan;
use super::shard::write_shard;

/// A header has a limit, and every tensor has an entry in it.
const MOST_TENSORS: usize = 20_000;

pub(super) struct Appender {
    dir: PathBuf,
    head: Head,
    lines: DiskFile,
    desk: Arc<Desk>,
    shard_bytes: usize,
    pending: Vec<Parts>,
    pending_bytes: usize,
    pending_tensors: usize,
    next_shard: u64,
    next_sequence: u64,
    pub(super) written: Written,
}

/// What the thread wrote.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub(super) shards: u64,
    pub(super) batches: u64,
    pub(super) sequences: u64,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) too_large: u64,
}

impl Appender {
    /// Goes on behind what is there.
    pub(super) fn new(
        dir: PathBuf,
        scan: Scan,
        desk: Arc<Desk>,
        shard_bytes: usize,
    ) -> Result<Self, StoreError> {
        let path = dir.join(LINES);
        let lines = DiskFile::append(&path).map_err(StoreError::io("open", &path))?;
        let mut appender = Self {
            head: Head { finished: false, ..scan.head },
            lines,
            desk,
            shard_bytes,
            pending: Vec::new(),
            pending_bytes: 0,
            pending_tensors: 0,
            next_shard: scan.shards.len() as u64,
            next_sequence: scan.shards.iter().map(|shard| shard.sequences).sum(),
            written: Written::default(),
            dir,
        };
        // A line that a killed writer did not finish, and lines it did not come to.
        let length = appender.lines.bytes().map_err(StoreError::io("read", &path))?;
        if length > scan.good_bytes {
            appender.lines.truncate(scan.good_bytes).map_err(StoreError::io("shorten", &path))?;
        }
        scan.shards[scan.listed..].iter().try_for_each(|line| appender.list(line))?;
        appender.write_head()?;
        Ok(appender)
    }

    /// Until nothing comes any more; then the rest is written. `finished` is asked at the end.
    pub(super) fn work(&mut self, finished: impl Fn() -> bool) -> Result<(), StoreError> {
        loop {
            match self.desk.next(!self.pending.is_empty()) {
                Work::Batch(batch) => self.take(*batch)?,
                Work::Flush => self.flush()?,
                Work::End => break,
            }
        }
        self.flush()?;
        let path = self.dir.join(LINES);
        self.lines.sync().map_err(StoreError::io("sync", &path))?;
        if finished() {
            self.head.finished = true;
            self.write_head()?;
        }
        Ok(())
    }

    fn take(&mut self, batch: Parts) -> Result<(), StoreError> {
        if self.pending_tensors + batch.tensors() > MOST_TENSORS {
            self.flush()?;
        }
        if self.head.layers.is_empty() {
            self.head.layers = batch.layers.iter().map(|part| part.layer.clone()).collect();
            self.write_head()?;
        }
        self.pending_bytes += batch.bytes();
        self.pending_tensors += batch.tensors();
        self.written.too_large += batch.too_large;
        self.pending.push(batch);
        if self.pending_bytes >= self.shard_bytes { self.flush() } else { Ok(()) }
    }

    /// Writes what there is as a shard, and its line.
    fn flush(&mut self) -> Result<(), StoreError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        (self.pending_bytes, self.pending_tensors) = (0, 0);
        let line = write_shard(&self.dir, self.next_shard, self.next_sequence, pending)?;
        self.next_shard += 1;
        self.next_sequence += line.sequences;
        self.written.shards += 1;
        self.written.batches += line.batches;
        self.written.sequences += line.sequences;
        self.written.rows += line.rows;
        self.written.bytes += line.bytes;
        self.list(&line)
    }

    /// Not synced: a line that is lost is made again from its shard.
    fn list(&mut self, line: &ShardLine) -> Result<(), StoreError> {
        let path = self.dir.join(LINES);
        let mut text =
            serde_json::to_vec(line).map_err(|error| StoreError::damaged(&path, error.to_string()))?;
        text.push(b'\n');
        self.lines.write_all(&text).map_err(StoreError::io("write", &path))
    }

    fn write_head(&self) -> Result<(), StoreError> {
        let path = self.dir.join(HEAD);
        let text = serde_json::to_vec_pretty(&self.head);
        let text = text.map_err(|error| StoreError::damaged(&path, error.to_string()))?;
        disk::atomic_write(&path, |to| to.write_all(&text)).map_err(StoreError::io("write", &path))
    }
}
