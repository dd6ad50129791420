//! What a run leaves behind, without what differs from clock to clock: two runs of the same are the same in all of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tenterhook::record::checkpoints;

/// Everything by the name of its file: checkpoints with weights, optimizers, hooks and decisions, metrics and every log.
pub(crate) type Traces = BTreeMap<String, String>;

/// The traces of the run in this directory.
pub(crate) fn traces_of(run: &Path) -> Traces {
    let mut traces = Traces::new();
    for checkpoint in checkpoints::list(&run.join("checkpoints")).unwrap() {
        for (name, contents) in files_of(&checkpoint.path) {
            traces.insert(format!("checkpoints/{}/{name}", checkpoint.name), contents);
        }
    }
    traces.insert("metrics.jsonl".to_string(), timeless_lines(&run.join("metrics.jsonl")));
    let histograms = run.join("histograms.jsonl");
    if histograms.exists() {
        traces.insert("histograms.jsonl".to_string(), timeless_lines(&histograms));
    }
    for path in entries(&run.join("logs")) {
        let is_json = path.extension().is_some_and(|extension| extension == "jsonl");
        let text = if is_json { timeless_lines(&path) } else { fs::read_to_string(&path).unwrap() };
        traces.insert(format!("logs/{}", file_name(&path)), text);
    }
    for (i, events) in entries(&run.join("tensorboard")).iter().map(|path| timeless_events(path)).enumerate()
    {
        traces.insert(format!("tensorboard/{i}"), events);
    }
    traces
}

/// Both must be the same in everything; if not, the first difference is told.
pub(crate) fn assert_same(got: &Traces, want: &Traces, context: &str) {
    let names = |traces: &Traces| traces.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(got), names(want), "{context}: files");
    for (name, want) in want {
        let (got, mut wanted) = (got[name].lines(), want.lines());
        for (i, line) in got.enumerate() {
            assert_eq!(Some(line), wanted.next(), "{context}: {name}, line {}", i + 1);
        }
        assert_eq!(wanted.next(), None, "{context}: {name} ends too soon");
    }
}

/// The files of a checkpoint, those in directories included: the text of `state.json`, the digest of the others. The manifest, which
/// holds the time, is left out.
pub(crate) fn files_of(checkpoint: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for path in entries(checkpoint) {
        let name = file_name(&path);
        if path.is_dir() {
            let inside = files_of(&path).into_iter();
            files.extend(inside.map(|(file, contents)| (format!("{name}/{file}"), contents)));
        } else if name == "state.json" {
            files.push((name, timeless_state(&fs::read(&path).unwrap())));
        } else if name != "manifest.json" {
            files.push((name, blake3::hash(&fs::read(&path).unwrap()).to_string()));
        }
    }
    files
}

/// `state.json` without what differs from run to run: the id, the names of files with the time in them, the lengths of logs with times.
fn timeless_state(bytes: &[u8]) -> String {
    let mut state: Value = serde_json::from_slice(bytes).unwrap();
    for name in ["run_id", "metrics_bytes", "histograms_bytes"] {
        state[name] = Value::Null;
    }
    for hook in state["hooks"].as_array_mut().unwrap() {
        match hook["kind"].as_str().unwrap() {
            "json_log" => hook["state"]["position"] = Value::Null,
            "tensorboard" => hook["state"]["name"] = Value::Null,
            _ => {}
        }
    }
    format!("{state:#}")
}

fn timeless_lines(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| timeless(serde_json::from_str(line).unwrap()).to_string());
    lines.collect::<Vec<_>>().join("\n")
}

/// A row of metrics without times.
pub(crate) fn timeless(mut row: Value) -> Value {
    if let Some(row) = row.as_object_mut() {
        row.retain(|name, _| name != "time" && !name.starts_with("time/"));
    }
    row
}

/// The records of an event file without the time each begins with: a line per record.
fn timeless_events(path: &Path) -> String {
    const TIME: usize = 9; // a tag and a double
    let bytes = fs::read(path).unwrap();
    let (mut rest, mut lines) = (bytes.as_slice(), Vec::new());
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap();
        let event = &after[4..4 + length];
        lines.push(format!("{length} {}", blake3::hash(&event[TIME..])));
        rest = &after[4 + length + 4..];
    }
    assert!(rest.is_empty(), "{} ends inside a record", path.display());
    lines.join("\n")
}

/// What is in a directory, in order; nothing when it is not there.
pub(crate) fn entries(dir: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = found.collect();
    found.sort();
    found
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}
