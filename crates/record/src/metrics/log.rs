//! Writing metrics.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{MetricsError, Row};
use crate::disk::{self, DiskFile};

/// A metrics log that is being written.
#[derive(Debug)]
pub struct MetricsLog {
    file: DiskFile,
    path: PathBuf,
    position: u64,
    /// Whether half a line may stand after `position`, because it could be neither finished nor taken back.
    torn: bool,
}

impl MetricsLog {
    /// Opens a log to add to it; it is made where there is none, and a last line that was not finished is cut off.
    ///
    /// A resumed run gives the [`position`](Self::position) its checkpoint recorded: what was logged after that is cut
    /// off, so that no step stands in the log twice.
    pub fn open(path: &Path, truncate_to: Option<u64>) -> Result<Self, MetricsError> {
        let io = MetricsError::io;
        let file = DiskFile::append(path).map_err(io("open", path))?;
        disk::sync_dir(disk::parent(path)).map_err(io("sync the directory of", path))?;
        let length = file.bytes().map_err(io("read", path))?;
        let position = match truncate_to {
            None => end_of_last_line(path, length).map_err(io("read", path))?,
            Some(wanted) => {
                let cannot =
                    |problem: String| MetricsError::CannotGoBack { path: path.into(), wanted, problem };
                if wanted > length {
                    return Err(cannot(format!("it has only {length} bytes")));
                }
                if end_of_last_line(path, wanted).map_err(io("read", path))? != wanted {
                    return Err(cannot("no line ends there".to_string()));
                }
                wanted
            }
        };
        if position < length {
            file.truncate(position).map_err(io("cut", path))?;
        }
        Ok(Self { file, path: path.to_path_buf(), position, torn: false })
    }

    /// Adds a line. After an error the log is as it was.
    pub fn append(&mut self, row: &Row) -> Result<(), MetricsError> {
        row.check_names()?;
        self.append_line(row)
    }

    pub(super) fn append_line(&mut self, row: &impl Serialize) -> Result<(), MetricsError> {
        let io = MetricsError::io;
        let mut line = serde_json::to_vec(row)
            .map_err(|error| io("write", &self.path)(io::Error::new(io::ErrorKind::InvalidData, error)))?;
        line.push(b'\n');
        if self.torn {
            self.file.truncate(self.position).map_err(io("cut", &self.path))?;
            self.torn = false;
        }
        // The whole line goes to the system in one call; only a full disk makes it more than one.
        if let Err(error) = self.file.write_all(&line) {
            self.torn = self.file.truncate(self.position).is_err();
            return Err(io("write", &self.path)(error));
        }
        self.position += line.len() as u64;
        Ok(())
    }

    /// Returns when every line is on the disk. To be called before a checkpoint that records the position is finished. A log that was
    /// moved or removed meanwhile is an error: nobody would find its lines.
    pub fn sync(&self) -> Result<(), MetricsError> {
        self.file.check_in_place().map_err(MetricsError::io("go on", &self.path))?;
        self.file.sync().map_err(MetricsError::io("sync", &self.path))
    }

    /// The length of all whole lines, in bytes: what a checkpoint records, to go back to it.
    pub fn position(&self) -> u64 {
        self.position
    }
}

/// Where the last whole line before `length` ends.
fn end_of_last_line(path: &Path, length: u64) -> io::Result<u64> {
    const BLOCK: u64 = 64 << 10;
    let mut file = File::open(path)?;
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let mut block = vec![0; (end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut block)?;
        if let Some(at) = block.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}
