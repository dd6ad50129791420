//! What runs leave behind: manifests, records, metrics.

use std::fs;
use std::path::{Component, Path};

use serde_json::Map;
use tenterhook::record::checkpoints::{self, CheckpointWriter, Manifest};
use tenterhook::record::metrics::{self, MetricsLog, Row, Tail};
use tenterhook::record::run::{self, Attempt, RunDir, RunRecord};

use crate::damage::feed;

/// Makes the manifest's own digest right again, so that what is behind it is read.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    const END: &[u8] = b"\"\n}\n";
    let Some((before, _)) = bytes.strip_suffix(END).and_then(|bytes| bytes.split_last_chunk::<64>()) else {
        return bytes.to_vec();
    };
    [before, blake3::hash(before).to_hex().as_bytes(), END].concat()
}

#[test]
fn p31_manifests_even_when_they_are_sealed() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::begin(dir.path(), "a", 3).unwrap();
    for name in ["state.json", "model.safetensors", "ema/model.safetensors"] {
        writer.file(name, |to| to.write_all(b"contents")).unwrap();
    }
    let path = writer.finish(Map::new()).unwrap();
    let manifest = path.join(checkpoints::MANIFEST);
    let good = fs::read(&manifest).unwrap();
    assert_eq!(sealed(&good), good);
    feed("manifest.json", &good, 400, |bytes| {
        for bytes in [bytes.to_vec(), sealed(bytes)] {
            fs::write(&manifest, bytes).unwrap();
            if let Ok(read) = Manifest::read(&path) {
                let inside = |part: Component| matches!(part, Component::Normal(_));
                let stays = |name: &str| Path::new(name).components().all(inside);
                assert!(read.files.iter().all(|file| stays(&file.name)), "{:?}", read.files);
            }
            let _ = checkpoints::verify(&path);
            assert!(checkpoints::list(dir.path()).unwrap().len() == 1);
        }
    });
}

#[test]
fn p31_records_of_runs() {
    let runs = tempfile::tempdir().unwrap();
    let run = RunDir::create(runs.path(), Some("a")).unwrap();
    let mut record = RunRecord::new("a");
    record.attempts.push(Attempt::begin());
    record.hooks.push(serde_json::json!({ "id": "x", "options": { "n": 1 } }));
    record.write(&run).unwrap();
    let good = fs::read(run.record_path()).unwrap();
    feed("run.json", &good, 400, |bytes| {
        fs::write(run.record_path(), bytes).unwrap();
        let _ = RunRecord::read(&run);
        assert_eq!(run::list(runs.path()).unwrap().len(), 1);
        assert!(run::find(runs.path(), "a").is_ok());
    });
    feed("name of a run", b"a/../b", 400, |bytes| {
        let _ = run::find(runs.path(), &String::from_utf8_lossy(bytes));
    });
}

#[test]
fn p31_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.jsonl");
    let mut log = MetricsLog::open(&path, None).unwrap();
    for step in 0..20 {
        let values =
            [("loss".to_string(), 1.5), ("val/loss".to_string(), f64::NAN), ("x".to_string(), f64::INFINITY)];
        log.append(&Row { step, epoch: 1, time: 2.5, values: values.into() }).unwrap();
    }
    let good = fs::read(&path).unwrap();
    feed("metrics.jsonl", &good, 400, |bytes| {
        fs::write(&path, bytes).unwrap();
        let _ = metrics::read(&path);
        let mut tail = Tail::new(&path);
        let _ = tail.was_cut();
        let _ = tail.read(1 << 20, |_, _| {});
        fs::write(&path, &good).unwrap();
        let _ = tail.was_cut();
        let _ = tail.read(1 << 20, |_, _| {});
        fs::write(&path, bytes).unwrap();
        let _ = MetricsLog::open(&path, Some(bytes.len() as u64 / 2));
        let _ = MetricsLog::open(&path, None).unwrap();
    });
}
