//! Where the difference between two runs shows.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::scene::Seen;

/// Status, steps and reason.
pub(super) fn end(seen: &Seen) -> String {
    seen.end.clone()
}

/// The metrics, times aside.
pub(super) fn rows(seen: &Seen) -> String {
    seen.lab.metrics("run").iter().map(|row| format!("{row}\n")).collect()
}

/// The names of the checkpoints.
pub(super) fn checkpoints(seen: &Seen) -> String {
    seen.lab.checkpoints("run").join(" ")
}

/// The weights at the end.
pub(super) fn weights(seen: &Seen) -> String {
    let digests = seen.lab.digest("run");
    format!("{:?}", digests.iter().find(|(name, _)| name == "model.safetensors"))
}

/// Every file under `logs/` and its lines, times aside.
pub(super) fn logs(seen: &Seen) -> String {
    files(&seen.dir(), &["logs", "elsewhere"])
}

fn files(dir: &Path, folders: &[&str]) -> String {
    let mut text = String::new();
    for folder in folders {
        let entries = fs::read_dir(dir.join(folder)).into_iter().flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            text.push_str(&format!("{folder}/{}\n", path.file_name().unwrap().to_string_lossy()));
            for line in fs::read_to_string(&path).unwrap().lines() {
                let Ok(mut row) = serde_json::from_str::<Value>(line) else {
                    text.push_str(&format!("{line}\n"));
                    continue;
                };
                row.as_object_mut().unwrap().retain(|name, _| !name.starts_with("time"));
                text.push_str(&format!("{row}\n"));
            }
        }
    }
    text
}

/// How long the records of the event file are: times are numbers of a fixed size in there.
pub(super) fn events(seen: &Seen) -> String {
    let entry = fs::read_dir(seen.dir().join("tensorboard")).unwrap().next().unwrap().unwrap();
    let bytes = fs::read(entry.path()).unwrap();
    let (mut at, mut lengths) = (0, Vec::new());
    while at < bytes.len() {
        let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        lengths.push(length);
        at += 8 + 4 + length + 4;
    }
    format!("{lengths:?}")
}

/// The captured tensors: what they are, and their shapes.
pub(super) fn captures(seen: &Seen) -> String {
    let entries = fs::read_dir(seen.dir().join("captures")).into_iter().flatten();
    let mut text = String::new();
    for entry in entries {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let mut shapes: Vec<_> =
            tensors.iter().map(|(name, tensor)| format!("{name} {:?}", tensor.shape())).collect();
        shapes.sort();
        let about = metadata.metadata().as_ref().unwrap()["states"].clone();
        text.push_str(&format!("{about}\n{}\n", shapes.join("\n")));
    }
    text
}

/// What the hooks did, time aside.
pub(super) fn receipts(seen: &Seen) -> String {
    let text = fs::read_to_string(seen.dir().join("receipts.json")).unwrap();
    let mut receipts: Value = serde_json::from_str(&text).unwrap();
    for receipt in receipts.as_array_mut().unwrap() {
        receipt["nanoseconds"] = Value::Null;
        // Whether any: a busy machine makes others slow too.
        receipt["slow_calls"] = (receipt["slow_calls"].as_u64() > Some(0)).into();
        receipt["share"] = Value::Null; // of the time
    }
    receipts.to_string()
}

/// Lines of standard error that are about steps or hooks, without the one that says how long it took.
pub(super) fn said(seen: &Seen) -> String {
    assert!(!seen.stderr.contains("error:"), "{}", seen.stderr);
    let lines = seen.stderr.lines().filter(|line| !line.contains(" after ") && !line.contains("tokens/s"));
    lines.map(|line| format!("{line}\n")).collect()
}
