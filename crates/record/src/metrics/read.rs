//! Reading metrics, also while they are being written.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

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
pub fn for_each(path: &Path, mut each: impl FnMut(Row)) -> Result<(), MetricsError> {
    let mut lines = Lines::open(path, 0, 0).map_err(MetricsError::io("read", path))?;
    while let Some(line) = lines.next()? {
        each(lines.parse(&line)?);
    }
    Ok(())
}

/// The whole lines of a file, from a place on.
pub(super) struct Lines<'a> {
    path: &'a Path,
    reader: BufReader<File>,
    number: usize,
}

impl<'a> Lines<'a> {
    pub(super) fn open(path: &'a Path, from: u64, lines_before: usize) -> io::Result<Self> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(from))?;
        Ok(Self { path, reader: BufReader::new(file), number: lines_before })
    }

    /// The next line with its end, or none where there is no whole one.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, MetricsError> {
        let mut line = Vec::new();
        (&mut self.reader)
            .take(LONGEST)
            .read_until(b'\n', &mut line)
            .map_err(MetricsError::io("read", self.path))?;
        self.number += 1;
        match line.last() {
            Some(b'\n') => Ok(Some(line)),
            _ if line.len() as u64 == LONGEST => Err(self.bad(format!("is longer than {LONGEST} bytes"))),
            _ => Ok(None),
        }
    }

    pub(super) fn parse<T: DeserializeOwned>(&self, line: &[u8]) -> Result<T, MetricsError> {
        serde_json::from_slice(line).map_err(|error| self.bad(error.to_string()))
    }

    fn bad(&self, problem: String) -> MetricsError {
        MetricsError::BadLine { path: self.path.to_path_buf(), line: self.number, problem }
    }
}

/// What is new in a log since it was last looked at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct News {
    /// So many of the rows that were given before are gone, the last ones: a resumed run went back to its checkpoint.
    pub dropped: usize,
    /// The rows that were added after that.
    pub rows: Vec<Row>,
}

/// Follows the log of a run that is going on.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    /// Per row that was given: where its line ends, and a hash of the line.
    known: Vec<(u64, u64)>,
}

impl Tail {
    /// Begins at the first row. The file may not be there yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf(), known: Vec::new() }
    }

    /// What happened since the last call. Lines that cannot be read are an error, and are tried again the next time.
    pub fn next_rows(&mut self) -> Result<News, MetricsError> {
        let before = self.known.len();
        if !self.last_line_is_there().map_err(MetricsError::io("read", &self.path))? {
            let kept = self.lines_still_there()?;
            self.known.truncate(kept);
        }
        let mut news = News { dropped: before - self.known.len(), rows: Vec::new() };
        let mut lines = match Lines::open(&self.path, self.position(), self.known.len()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(news),
            lines => lines.map_err(MetricsError::io("read", &self.path))?,
        };
        let mut added = Vec::new();
        let mut end = self.position();
        while let Some(line) = lines.next()? {
            news.rows.push(lines.parse(&line)?);
            end += line.len() as u64;
            added.push((end, hash(&line)));
        }
        self.known.append(&mut added);
        Ok(news)
    }

    fn position(&self) -> u64 {
        self.known.last().map_or(0, |(end, _)| *end)
    }

    /// Whether the last row that was given still stands where it was. A length alone does not tell: the file may have
    /// been cut and have grown again.
    fn last_line_is_there(&self) -> io::Result<bool> {
        let Some((end, expected)) = self.known.last() else { return Ok(true) };
        let start = self.known.iter().rev().nth(1).map_or(0, |(end, _)| *end);
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        file.seek(SeekFrom::Start(start))?;
        let mut line = Vec::new();
        file.take(end - start).read_to_end(&mut line)?;
        Ok(line.len() as u64 == end - start && hash(&line) == *expected)
    }

    /// How many of the rows that were given are still there, from the first on.
    fn lines_still_there(&self) -> Result<usize, MetricsError> {
        let mut lines = match Lines::open(&self.path, 0, 0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            lines => lines.map_err(MetricsError::io("read", &self.path))?,
        };
        let mut same = 0;
        for (_, expected) in &self.known {
            match lines.next()? {
                Some(line) if hash(&line) == *expected => same += 1,
                _ => break,
            }
        }
        Ok(same)
    }
}

fn hash(line: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish()
}
