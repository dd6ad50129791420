//! Reading metrics, also while they are being written.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{MetricsError, Row};

/// The longest line that is read.
const LONGEST: u64 = 16 << 20;

/// Reads all rows. A last line that was not finished is left out; any other line that cannot be read is an error.
pub fn read(path: &Path) -> Result<Vec<Row>, MetricsError> {
    let mut rows = Vec::new();
    for_each(path, |row| rows.push(row))?;
    Ok(rows)
}

/// The same without keeping them: a log may be larger than memory.
pub fn for_each(path: &Path, each: impl FnMut(Row)) -> Result<(), MetricsError> {
    for_each_line(path, each)
}

pub(super) fn for_each_line<T: DeserializeOwned>(
    path: &Path,
    mut each: impl FnMut(T),
) -> Result<(), MetricsError> {
    let mut lines = Lines::open(path, 0, 0).map_err(MetricsError::io("read", path))?;
    let mut line = Vec::new();
    while lines.next(&mut line)? {
        each(lines.parse(&line)?);
    }
    Ok(())
}

/// The whole lines of a file, from a place on.
pub(super) struct Lines<'a> {
    path: &'a Path,
    reader: BufReader<File>,
    number: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn open(path: &'a Path, from: u64, lines_before: u64) -> io::Result<Self> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(from))?;
        Ok(Self { path, reader: BufReader::with_capacity(64 << 10, file), number: lines_before })
    }

    /// Puts the next line, with its end, in place of what `line` has. False where there is no whole one.
    pub(super) fn next(&mut self, line: &mut Vec<u8>) -> Result<bool, MetricsError> {
        line.clear();
        (&mut self.reader)
            .take(LONGEST)
            .read_until(b'\n', line)
            .map_err(MetricsError::io("read", self.path))?;
        self.number += 1;
        match line.last() {
            Some(b'\n') => Ok(true),
            _ if line.len() as u64 == LONGEST => Err(self.bad(format!("is longer than {LONGEST} bytes"))),
            _ => Ok(false),
        }
    }

    pub(super) fn parse<'de, T: Deserialize<'de>>(&self, line: &'de [u8]) -> Result<T, MetricsError> {
        serde_json::from_slice(line).map_err(|error| self.bad(error.to_string()))
    }

    fn bad(&self, problem: String) -> MetricsError {
        let line = usize::try_from(self.number).unwrap_or(usize::MAX);
        MetricsError::BadLine { path: self.path.to_path_buf(), line, problem }
    }
}
