//! Following a log piece by piece, however long it is.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::read::Lines;
use super::{MetricsError, RowView};

/// What one look at a log brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Where reading goes on the next time.
    pub position: u64,
    /// How long the log was when this look began.
    pub length: u64,
    /// Whether there is more to read at once.
    pub more: bool,
}

/// Follows a log, also while it is being written. It remembers its place and the last line, so a log of millions of rows
/// costs no memory, and every look reads a limited piece.
///
/// ```
/// use tenterhook_record::metrics::{MetricsLog, Row, Tail};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("metrics.jsonl");
/// let mut log = MetricsLog::open(&path, None)?;
/// let mut tail = Tail::new(&path);
/// log.append(&Row { step: 7, values: [("loss".to_string(), 2.5)].into(), ..Row::default() })?;
/// assert!(!tail.was_cut()?);
/// let mut steps = Vec::new();
/// let piece = tail.read(1 << 20, |_, row| steps.push(row.step))?;
/// assert_eq!((steps, piece.more), (vec![7], false));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    rows: u64,
    /// Where the last line that was given begins and ends, and a hash of it.
    last: Option<(u64, u64, u64)>,
}

impl Tail {
    /// Begins at the first row. The file may not be there yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf(), rows: 0, last: None }
    }

    /// How many rows were given.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether what was given does not hold any more, because a resumed run went back to its checkpoint. Then it begins again at the
    /// first row. To be asked before every look.
    pub fn was_cut(&mut self) -> Result<bool, MetricsError> {
        let was_cut = !self.last_line_is_there().map_err(MetricsError::io("read", &self.path))?;
        if was_cut {
            (self.last, self.rows) = (None, 0);
        }
        Ok(was_cut)
    }

    /// Gives the rows that were not given yet, each with the byte its line begins at, until `limit` bytes were read. A line that
    /// cannot be read is an error, and is tried again the next time; the rows before it are given.
    pub fn read(
        &mut self,
        limit: u64,
        mut each: impl FnMut(u64, &RowView<'_>),
    ) -> Result<Piece, MetricsError> {
        let begin = self.position();
        let mut piece = Piece { position: begin, length: begin, more: false };
        let mut lines = match Lines::open(&self.path, begin, self.rows) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(piece),
            lines => lines.map_err(MetricsError::io("read", &self.path))?,
        };
        piece.length = std::fs::metadata(&self.path).map_or(begin, |about| about.len());
        let mut line = Vec::new();
        while piece.position - begin < limit {
            if !lines.next(&mut line)? {
                return Ok(piece);
            }
            let row: RowView<'_> = lines.parse(&line)?;
            each(piece.position, &row);
            let end = piece.position + line.len() as u64;
            self.last = Some((piece.position, end, hash(&line)));
            self.rows += 1;
            piece.position = end;
        }
        piece.more = true;
        Ok(piece)
    }

    /// The byte it goes on at.
    pub fn position(&self) -> u64 {
        self.last.map_or(0, |(_, end, _)| end)
    }

    /// Whether the last row that was given still stands where it was. A length alone does not tell: the file may have
    /// been cut and have grown again.
    fn last_line_is_there(&self) -> io::Result<bool> {
        let Some((start, end, expected)) = self.last else { return Ok(true) };
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        file.seek(SeekFrom::Start(start))?;
        let mut line = Vec::new();
        file.take(end - start).read_to_end(&mut line)?;
        Ok(line.len() as u64 == end - start && hash(&line) == expected)
    }
}

/// Gives the rows of a log whose lines begin between two bytes, the first of which is the begin of a line. What is half-written or
/// cannot be read ends it.
pub fn read_part(path: &Path, from: u64, to: u64, mut each: impl FnMut(&RowView<'_>)) -> io::Result<()> {
    let mut lines = Lines::open(path, from, 0)?;
    let (mut at, mut line) = (from, Vec::new());
    while at < to {
        match lines.next(&mut line) {
            Ok(true) => {}
            Ok(false) | Err(MetricsError::BadLine { .. }) => return Ok(()),
            Err(MetricsError::Io { source, .. }) => return Err(source),
            Err(_) => return Ok(()),
        }
        let Ok(row) = lines.parse(&line) else { return Ok(()) };
        each(&row);
        at += line.len() as u64;
    }
    Ok(())
}

fn hash(line: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish()
}
