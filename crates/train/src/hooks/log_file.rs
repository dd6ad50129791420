//! Files that hooks write a line at a time, and that go on after a restart where the checkpoint was.

use std::fs::TryLockError;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use serde_json::{Value, json};
use tenterhook_hooks::{Cx, HookResult, MetricsRow};
use tenterhook_record::disk::{self, DiskFile};
use tenterhook_record::fault;
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
    open: Option<(DiskFile, PathBuf)>,
    /// Whether a part of a line may stand after the position, because it could be neither finished nor taken back.
    torn: bool,
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
        let directory = path.parent().unwrap_or(Path::new(""));
        disk::create_dir_all(directory).map_err(told)?;
        let file = DiskFile::append(path).map_err(told)?;
        disk::sync_dir(directory).map_err(told)?;
        // Two hooks in one file would cut each other's lines off. A file system without locks is trusted.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            let problem = "another hook or another run is writing to it; give this one a `path` of its own";
            return Err(format!("{}: {problem}", path.display()).into());
        }
        let length = file.bytes().map_err(told)?;
        if length < self.position {
            return Err(format!(
                "{} has {length} bytes, and the checkpoint says that {} were written: it is not the file of this run",
                path.display(),
                self.position
            )
            .into());
        }
        if length > self.position {
            file.truncate(self.position).map_err(told)?;
        }
        self.open = Some((file, path.to_path_buf()));
        self.torn = false;
        Ok(())
    }

    /// Whether nothing has been written yet.
    pub(super) fn is_empty(&self) -> bool {
        self.position == 0
    }

    /// Appends these bytes in one piece: all of them are there afterwards, or none.
    pub(super) fn append(&mut self, bytes: &[u8]) -> HookResult {
        let (file, path) = self.open.as_mut().ok_or("the log is not open: training has not started")?;
        let told = |error: std::io::Error| format!("{}: {error}", path.display());
        fault::point("log.append").map_err(told)?;
        if self.torn {
            file.truncate(self.position).map_err(told)?;
            self.torn = false;
        }
        if let Err(error) = file.write_all(bytes) {
            // A part of a line would spoil the next one.
            self.torn = file.truncate(self.position).is_err();
            return Err(told(error).into());
        }
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Returns when everything is on the disk.
    fn sync(&self) -> HookResult {
        match &self.open {
            Some((file, path)) => file.sync().map_err(|error| format!("{}: {error}", path.display()).into()),
            None => Ok(()),
        }
    }

    /// Closes the file once everything is on the disk.
    pub(super) fn close(&mut self) -> HookResult {
        let synced = self.sync();
        if let Some((file, _)) = self.open.take() {
            // Closing it is not enough: a process that is just being started has it open as well, for a moment.
            let _ = file.unlock();
        }
        synced
    }

    /// What a hook's state holds of it. A checkpoint counts on what is before the position, so that is on the disk first.
    pub(super) fn state(&self) -> HookResult<Value> {
        self.sync()?;
        Ok(json!({ "position": self.position }))
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

#[cfg(test)]
mod tests {
    use std::fs;

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
        let saved = log.state().unwrap();
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

    #[cfg(debug_assertions)]
    #[test]
    fn p03_a_line_that_fails_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogFile::default();
        log.open_at(&path).unwrap();
        log.append(b"one\n").unwrap();
        for faults in ["disk.write=short", "disk.write=short;disk.truncate=eio"] {
            let _faults = fault::install(faults).unwrap();
            let error = log.append(b"two\n").unwrap_err().to_string();
            assert!(error.contains("log: no space left"), "{error}");
        }
        log.append(b"three\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\nthree\n");
    }

    #[cfg(debug_assertions)]
    #[test]
    fn p02_a_position_is_told_only_of_what_is_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let trace = fault::trace();
        let mut log = LogFile::default();
        log.open_at(&path).unwrap();
        log.append(b"one\n").unwrap();
        log.state().unwrap();
        let ops = trace.ops();
        assert!(ops.contains(&fault::Op::SyncDir(dir.path().to_path_buf())), "{ops:?}");
        assert_eq!(ops[ops.len() - 2..], [fault::Op::Write(path.clone(), 4), fault::Op::Sync(path)]);
        let _faults = fault::install("disk.sync=eio").unwrap();
        assert!(log.state().is_err(), "a position that may not last is not told");
    }
}
