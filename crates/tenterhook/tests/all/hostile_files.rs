//! Files that lie about themselves: as a model, as a checkpoint, as data. Nothing runs, nothing hangs, exit code 2.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Map, json};
use tenterhook::record::checkpoints::CheckpointWriter;

use crate::lab::{Lab, TINY};
use crate::support::{Ran, copy_of};

/// A program that would write a file if anything ran it: `os.system`, pickled.
fn pickle(marker: &Path) -> Vec<u8> {
    format!("cos\nsystem\n(S'touch {}'\ntR.", marker.display()).into_bytes()
}

fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

/// The attacks on the format that are known, and pickles under its name.
fn attacks(marker: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let one = |shape: &str, offsets: &str| {
        format!(r#"{{"transformer.wte.weight":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let two = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#;
    let mut claims = (101u64 << 20).to_le_bytes().to_vec();
    claims.extend(b"{}");
    let mut deep = "[".repeat(200_000);
    deep.push_str(&"]".repeat(200_000));
    vec![
        ("a pickle", pickle(marker)),
        ("a newer pickle", [b"\x80\x04\x95".to_vec(), pickle(marker)].concat()),
        ("a zip", [b"PK\x03\x04".to_vec(), pickle(marker)].concat()),
        ("overlapping offsets", safetensors(two, 12)),
        ("offsets past the end", safetensors(&one("[1000]", "[0,4000]"), 8)),
        (
            "offsets that overflow",
            safetensors(&one("[4611686018427387904,4]", "[0,18446744073709551615]"), 8),
        ),
        ("offsets backwards", safetensors(&one("[2]", "[8,0]"), 8)),
        ("a header of 101 MiB", claims),
        ("a header of 2^63 bytes", [(1u64 << 63).to_le_bytes().to_vec(), vec![0; 64]].concat()),
        ("a header of brackets", safetensors(&deep, 0)),
        ("a polyglot after the data", [safetensors(&one("[2]", "[0,8]"), 8), pickle(marker)].concat()),
        ("nothing", Vec::new()),
    ]
}

/// Runs a command that must be refused soon.
fn refused(lab: &Lab, what: &str, args: &[&str], words: &[&str]) -> Ran {
    let began = Instant::now();
    let ran = lab.run(args);
    assert_eq!(ran.code, Some(2), "{what}: {}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.starts_with("error: ") || ran.stderr.contains("\nerror: "), "{what}: {}", ran.stderr);
    for word in words {
        assert!(ran.stderr.contains(word), "{what}: `{word}` is not in: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("panicked"), "{what}: {}", ran.stderr);
    assert!(began.elapsed() < Duration::from_secs(60), "{what}: took {:?}", began.elapsed());
    ran
}

const FROM_MODEL: &str = "[model]\nfrom = 'model'\n[data.train]\nkind = 'induction'\nblock = 16\nbatch = 2\n\
                          [train]\nsteps = 1\n[[optimizer]]\nkind = 'sgd'\nlr = 0.1\n";

#[test]
fn p30_hostile_weights_are_refused_as_a_model() {
    let lab = Lab::with(FROM_MODEL);
    let marker = lab.path().join("ran");
    let model = copy_of("gpt2");
    fs::rename(model.keep(), lab.path().join("model")).unwrap();
    lab.ok(&["train", "run.toml"]);
    for (what, bytes) in attacks(&marker) {
        lab.write("model/model.safetensors", bytes);
        refused(&lab, what, &["train", "run.toml"], &["model.safetensors"]);
        assert!(!marker.exists(), "{what}: it ran");
    }
    fs::remove_file(lab.path().join("model/model.safetensors")).unwrap();
    lab.write("model/pytorch_model.bin", pickle(&marker));
    refused(
        &lab,
        "only a pickle",
        &["train", "run.toml"],
        &["pickle file, which can run code and is never read"],
    );
    assert!(!marker.exists());
    assert_eq!(
        fs::read_dir(lab.path().join("runs")).unwrap().count(),
        1,
        "a refused run leaves no directory"
    );
}

#[test]
fn p32_shards_outside_the_model_directory_are_not_opened() {
    let lab = Lab::with(FROM_MODEL);
    fs::rename(copy_of("llama_sharded").keep(), lab.path().join("model")).unwrap();
    let index = lab.path().join("model/model.safetensors.index.json");
    let sound: serde_json::Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    let shard = sound["weight_map"]["lm_head.weight"].as_str().unwrap().to_string();
    fs::copy(lab.path().join("model").join(&shard), lab.path().join("secret.safetensors")).unwrap();
    let absolute = lab.path().join("secret.safetensors");
    for name in ["../secret.safetensors", absolute.to_str().unwrap(), "a/../../secret.safetensors", "nul\0"] {
        let mut changed = sound.clone();
        changed["weight_map"]["lm_head.weight"] = name.into();
        fs::write(&index, changed.to_string()).unwrap();
        refused(&lab, name, &["train", "run.toml"], &["index.json"]);
    }
}

fn short() -> String {
    TINY.replace("steps = 40", "steps = 2").replace("warmup = 5", "warmup = 1")
}

/// Puts a checkpoint of a later step beside the real ones: whole and sealed, as somebody would who means harm.
fn plant(lab: &Lab, sound: &Path, file: &str, contents: &[u8]) -> PathBuf {
    let checkpoints = lab.run_dir("tiny").join("checkpoints");
    let mut writer = CheckpointWriter::begin(&checkpoints, "step-00000999", 999).unwrap();
    for name in ["config.json", "model.safetensors", "optimizer.safetensors", "state.json"] {
        let bytes = if name == file { contents.to_vec() } else { fs::read(sound.join(name)).unwrap() };
        writer.file(name, |to| to.write_all(&bytes)).unwrap();
    }
    writer.finish(Map::new()).unwrap()
}

/// Takes the real checkpoints out of the run, where they would be used in place of a planted one; where the newest is then, and how they
/// come back.
fn put_away(lab: &Lab) -> (PathBuf, impl Fn()) {
    let (there, away) = (lab.run_dir("tiny").join("checkpoints"), lab.path().join("away"));
    let newest = lab.checkpoint("tiny").file_name().unwrap().to_os_string();
    fs::rename(&there, &away).unwrap();
    fs::create_dir(&there).unwrap();
    let back = {
        let away = away.clone();
        move || {
            fs::remove_dir_all(&there).unwrap();
            fs::rename(&away, &there).unwrap();
        }
    };
    (away.join(newest), back)
}

#[test]
fn p30_hostile_weights_are_refused_as_a_checkpoint_even_when_they_are_sealed() {
    let lab = Lab::with(&short());
    let marker = lab.path().join("ran");
    lab.ok(&["train", "run.toml"]);
    let (sound, back) = put_away(&lab);
    for (what, bytes) in attacks(&marker) {
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let planted = plant(&lab, &sound, file, &bytes);
            let more = ["--set", "train.steps=4"];
            refused(&lab, what, &[&["train", "run.toml", "--resume"][..], &more].concat(), &[file]);
            fs::remove_dir_all(&planted).unwrap();
            assert!(!marker.exists(), "{what}: it ran");
        }
    }
    back();
    // What is not sealed is not even looked at: the one before is used.
    let planted = plant(&lab, &lab.checkpoint("tiny"), "", b"");
    fs::write(planted.join("model.safetensors"), pickle(&marker)).unwrap();
    let ran = lab.ok(&["train", "run.toml", "--resume", "--set", "train.steps=4"]);
    assert!(ran.stderr.contains("step-00000999 is damaged"), "{}", ran.stderr);
    assert!(!marker.exists());
}

#[test]
fn p31_hostile_states_of_a_checkpoint_are_refused() {
    let lab = Lab::with(&short());
    lab.ok(&["train", "run.toml"]);
    let before = (lab.digest("tiny"), lab.record("tiny"));
    let sound = fs::read(lab.checkpoint("tiny").join("state.json")).unwrap();
    let sound: serde_json::Value = serde_json::from_slice(&sound).unwrap();
    let (whole, back) = put_away(&lab);
    let changed = |pointer: &str, value: serde_json::Value| {
        let mut state = sound.clone();
        *state.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} is not in {sound:#}")) = value;
        state.to_string().into_bytes()
    };
    for (what, bytes, word) in [
        ("no JSON", b"{".to_vec(), "state.json"),
        ("another format", changed("/format", 2.into()), "format"),
        ("brackets", "[".repeat(300_000).into_bytes(), "state.json"),
        ("another seed", changed("/seed", 7.into()), "seed"),
        ("a place past the data", changed("/progress/cursor/batch", u64::MAX.into()), "step-00000999"),
        ("a log that is longer than the file", changed("/metrics_bytes", u64::MAX.into()), "metrics.jsonl"),
        ("no optimizers", changed("/optimizers", json!([])), "optimizers"),
    ] {
        let planted = plant(&lab, &whole, "state.json", &bytes);
        refused(&lab, what, &["train", "run.toml", "--resume", "--set", "train.steps=4"], &[word]);
        fs::remove_dir_all(&planted).unwrap();
    }
    back();
    assert_eq!((lab.digest("tiny"), lab.record("tiny")), before, "what was refused has left a trace");
}
