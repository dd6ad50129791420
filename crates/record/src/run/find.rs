//! The runs there are.

use std::cmp::Reverse;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::{RunDir, RunError, RunRecord};
use crate::name::shown;

/// How many runs an error message lists.
const NAMED: usize = 10;

/// A run in a directory of runs.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its directory.
    pub path: PathBuf,
    /// Its record, or why that cannot be read.
    pub record: Result<RunRecord, String>,
    /// Whether it was killed, see [`RunRecord::read_with_fate`].
    pub killed: bool,
}

impl Listed {
    /// The run's id: the directory's name.
    pub fn id(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The runs in a directory, the newest first; those without a readable record come last. A directory that is not there
/// has none. Links are not followed: only what was made here is listed.
pub fn list(runs: &Path) -> Result<Vec<Listed>, RunError> {
    let mut listed = Vec::new();
    for path in directories(runs)? {
        let read = RunDir::open(&path).and_then(|run| RunRecord::read_with_fate(&run));
        let killed = read.as_ref().is_ok_and(|(_, killed)| *killed);
        let record = read.map(|(record, _)| record).map_err(|error| error.to_string());
        listed.push(Listed { path, record, killed });
    }
    listed.sort_by_cached_key(|run| Reverse((started(run), run.path.clone())));
    Ok(listed)
}

/// When a run began; `None`, which is before everything, when nobody can tell.
fn started(run: &Listed) -> Option<Timestamp> {
    run.record.as_ref().ok().and_then(|record| record.started.parse().ok())
}

fn directories(runs: &Path) -> Result<Vec<PathBuf>, RunError> {
    let entries = match fs::read_dir(runs) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(RunError::io("list", runs))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(RunError::io("list", runs))?;
        let is_dir = entry.file_type().map_err(RunError::io("list", runs))?.is_dir();
        if is_dir && !entry.file_name().to_string_lossy().starts_with('.') {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Finds a run by its id, by the beginning of its id where only one run begins so, or by the path of its directory.
pub fn find(runs: &Path, wanted: &str) -> Result<PathBuf, RunError> {
    let listed = directories(runs)?;
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if let Some(exact) = listed.iter().find(|path| name(path) == wanted) {
        return Ok(exact.clone());
    }
    let mut matches: Vec<&PathBuf> = match wanted {
        "" => Vec::new(),
        _ => listed.iter().filter(|path| name(path).starts_with(wanted)).collect(),
    };
    matches.sort();
    match matches.as_slice() {
        [only] => return Ok((*only).clone()),
        [] => {}
        several => {
            let matches = named(several.iter().map(|path| name(path)).collect());
            return Err(RunError::Ambiguous { runs: runs.to_path_buf(), wanted: shown(wanted), matches });
        }
    }
    let path = Path::new(wanted);
    if path.join("run.json").is_file() {
        return Ok(path.to_path_buf());
    }
    let known = match list(runs)?.iter().map(Listed::id).collect::<Vec<_>>() {
        known if known.is_empty() => "there are no runs".to_string(),
        known => format!("there are: {}", named(known)),
    };
    Err(RunError::NotFound { runs: runs.to_path_buf(), wanted: shown(wanted), known })
}

/// The first few ids, and how many more there are.
fn named(ids: Vec<String>) -> String {
    let shown = ids.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match ids.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
