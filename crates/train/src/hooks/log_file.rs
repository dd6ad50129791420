//! Files that hooks write a line at a time, and that go on after a restart where the checkpoint was.

use std::fs::{self, File, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};

use serde_json::{Value, json};
use tenterhook_hooks::{Cx, HookResult, MetricsRow};
use tenterhook_record::name::file_safe;

/// What a run writes itself, in lower case because some file systems do not tell cases apart.
const TAKEN: [&str; 8] = [
    "run.json",
    "run.lock",
    "config.toml",
    "metrics.jsonl",
    "receipts.json",
    "checkpoints",
    "captures",
    "tensorboard",
];

/// Whether a row is that of a step, not of a validation.
pub(super) fn is_step_row(row: &MetricsRow) -> bool {
    row.values.contains_key("loss")
}

/// A log in the run directory. Its position is part of the hook's state: when a run goes on from a checkpoint, whatever was written after
/// that checkpoint is cut off and written again.
#[derive(Default)]
pub(super) struct LogFile {
    position: u64,
    open: Option<(File, PathBuf)>,
}

impl LogFile {
    /// What is wrong with a path inside a run directory, if anything.
    pub(super) fn problem(path: &str) -> Option<String> {
        let inside = |part: Component| matches!(part, Component::Normal(_));
        let fits = !path.is_empty() && !path.contains('\0') && Path::new(path).components().all(inside);
        if !fits {
            return Some(format!(
                "`path` is {path:?}, it must be relative and stay inside the run directory, such as \"logs/a\""
            ));
        }
        let first = Path::new(path).iter().next().unwrap_or_default().to_string_lossy().to_lowercase();
        TAKEN.contains(&first.as_str()).then(|| {
            format!("`path` is {path:?}, and `{first}` is the run's own; choose another, such as \"logs/a\"")
        })
    }

    /// Opens the file at `path`, or at `logs/<hook id>.<extension>`, and cuts it back to its position.
    pub(super) fn open(&mut self, path: Option<&str>, extension: &str, cx: &Cx) -> HookResult {
        let run_dir = run_dir(cx)?;
        let path = match path {
            Some(path) => PathBuf::from(path),
            None => Path::new("logs").join(format!("{}.{extension}", file_safe(cx.hook_id()))),
        };
        self.open_at(&run_dir.join(path))
    }

    /// The same at a place that is known.
    pub(super) fn open_at(&mut self, path: &Path) -> HookResult {
        // A hook that is already writing here lets go first.
        self.open = None;
        let told = |error: std::io::Error| format!("{}: {error}", path.display());
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        }
        let options = File::options().write(true).create(true).truncate(false).clone();
        let mut file = options.open(path).map_err(told)?;
        // Two hooks in one file would cut each other's lines off. A file system without locks is trusted.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            let problem = "another hook or another run is writing to it; give this one a `path` of its own";
            return Err(format!("{}: {problem}", path.display()).into());
        }
        let length = file.metadata().map_err(told)?.len();
        if length < self.position {
            return Err(format!(
                "{} has {length} bytes, and the checkpoint says that {} were written: it is not the file of this run",
                path.display(),
                self.position
            )
            .into());
        }
        cut(&mut file, self.position).map_err(told)?;
        self.open = Some((file, path.to_path_buf()));
        Ok(())
    }

    /// Whether nothing has been written yet.
    pub(super) fn is_empty(&self) -> bool {
        self.position == 0
    }

    /// Appends these bytes in one piece: all of them are there afterwards, or none.
    pub(super) fn append(&mut self, bytes: &[u8]) -> HookResult {
        let (file, path) = self.open.as_mut().ok_or("the log is not open: training has not started")?;
        let position = self.position;
        file.write_all(bytes).map_err(|error| {
            // A part of a line would spoil the next one. If this fails too, the next write says so.
            let _ = cut(file, position);
            format!("{}: {error}", path.display())
        })?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Closes the file once everything is on the disk.
    pub(super) fn close(&mut self) -> HookResult {
        match self.open.take() {
            Some((file, path)) => {
                file.sync_data().map_err(|error| format!("{}: {error}", path.display()).into())
            }
            None => Ok(()),
        }
    }

    /// What a hook's state holds of it.
    pub(super) fn state(&self) -> Value {
        json!({ "position": self.position })
    }

    /// Takes that back.
    pub(super) fn load(&mut self, state: &Value) -> HookResult {
        let position = state.get("position").and_then(Value::as_u64);
        self.position = position.ok_or("the saved state has no `position` of its file")?;
        Ok(())
    }
}

/// The run's directory.
pub(super) fn run_dir<'a>(cx: &'a Cx) -> HookResult<&'a Path> {
    let state = cx.state().ok_or("there is no run here to write the log of")?;
    let problem = "this run has no directory to write to; give the run one, or remove the hook";
    Ok(state.run_dir.as_deref().ok_or(problem)?)
}

fn cut(file: &mut File, position: u64) -> std::io::Result<()> {
    file.set_len(position)?;
    file.seek(SeekFrom::Start(position)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p32_paths_stay_inside_and_off_what_the_run_writes() {
        for bad in ["", "/etc/passwd", "../x", "a/../../b", "./a", "a\0b", "/"] {
            assert!(LogFile::problem(bad).is_some_and(|problem| problem.contains("stay inside")), "{bad:?}");
        }
        for bad in ["metrics.jsonl", "Run.json", "checkpoints/step-00000000/state.json"] {
            assert!(
                LogFile::problem(bad).is_some_and(|problem| problem.contains("the run's own")),
                "{bad:?}"
            );
        }
        for good in ["a", "logs/a.csv", "a b", "...", "logs/run.json"] {
            assert_eq!(LogFile::problem(good), None, "{good:?}");
        }
    }

    #[test]
    fn it_is_cut_back_to_its_position() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/log");
        let mut log = LogFile::default();
        assert!(log.append(b"x").is_err(), "not open");
        log.open_at(&path).unwrap();
        assert!(log.is_empty());
        log.append(b"one\n").unwrap();
        let saved = log.state();
        log.append(b"two\n").unwrap();
        log.close().unwrap();

        let mut again = LogFile::default();
        again.load(&saved).unwrap();
        again.open_at(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
        again.append(b"zwei\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\nzwei\n");

        let mut other = LogFile::default();
        let error = other.open_at(&path).unwrap_err().to_string();
        assert!(error.contains("another hook"), "{error}");
        again.close().unwrap();

        other.load(&json!({"position": 99})).unwrap();
        let error = other.open_at(&path).unwrap_err().to_string();
        assert!(error.contains("has 9 bytes") && error.contains("99"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\nzwei\n", "a refused file stays as it is");
        assert!(other.load(&json!({"position": "x"})).is_err());
    }
}
