//! Damaged checkpoints: the one before is used, loudly; with none left the run does not start; nothing is ever overwritten.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};
use serde_json::{Value, json};
use tenterhook::record::checkpoints::CheckpointWriter;

use crate::lab::{Lab, TINY};
use crate::support::Ran;

/// The files of a checkpoint by name.
type Files = BTreeMap<String, Vec<u8>>;

/// A finished run with three checkpoints.
fn trained() -> Lab {
    let lab =
        Lab::with(&TINY.replace("checkpoint_every = 10", "checkpoint_every = 10\nkeep_checkpoints = 3"));
    lab.ok(&["train", "run.toml"]);
    assert_eq!(lab.checkpoints("tiny"), ["step-00000020", "step-00000030", "step-00000040"]);
    lab
}

fn at(lab: &Lab, step: u64) -> PathBuf {
    lab.run_dir("tiny").join(format!("checkpoints/step-{step:08}"))
}

/// Changes one file.
fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Puts the file of one checkpoint into another.
fn swap_in(name: &str, from: &Path, to: &Path) {
    fs::copy(from.join(name), to.join(name)).unwrap();
}

fn flip(path: &Path, at: usize) {
    change(path, |bytes| bytes[at] ^= 4);
}

/// Changes what a checkpoint holds and seals it again: it verifies, and is wrong all the same.
fn reseal(checkpoint: &Path, change: impl FnOnce(&mut Files)) {
    let mut files = Files::new();
    for entry in fs::read_dir(checkpoint).unwrap() {
        let path = entry.unwrap().path();
        files.insert(path.file_name().unwrap().to_str().unwrap().to_string(), fs::read(&path).unwrap());
    }
    let manifest: Value = serde_json::from_slice(&files.remove("manifest.json").unwrap()).unwrap();
    change(&mut files);
    fs::remove_dir_all(checkpoint).unwrap();
    let name = checkpoint.file_name().unwrap().to_str().unwrap();
    let step = manifest["step"].as_u64().unwrap();
    let mut writer = CheckpointWriter::begin(checkpoint.parent().unwrap(), name, step).unwrap();
    for (name, bytes) in files {
        writer.file(&name, |to| to.write_all(&bytes)).unwrap();
    }
    writer.finish(manifest["meta"].as_object().unwrap().clone()).unwrap();
}

fn reseal_tensors(checkpoint: &Path, file: &str, change: impl FnOnce(&mut BTreeMap<String, Tensor>)) {
    reseal(checkpoint, |files| {
        let bytes = files.get_mut(file).unwrap();
        let tensors = candle_core::safetensors::load_buffer(bytes, &candle_core::Device::Cpu).unwrap();
        let mut tensors = tensors.into_iter().collect();
        change(&mut tensors);
        *bytes = safetensors::serialize(tensors, None).unwrap();
    });
}

fn reseal_state(checkpoint: &Path, change: impl FnOnce(&mut Value)) {
    reseal(checkpoint, |files| {
        let bytes = files.get_mut("state.json").unwrap();
        let mut state = serde_json::from_slice(bytes).unwrap();
        change(&mut state);
        *bytes = state.to_string().into_bytes();
    });
}

/// One kind of damage to the newest checkpoint, and what has to be said of it.
struct Damage {
    what: &'static str,
    words: &'static [&'static str],
    /// The newest checkpoint, and the one before.
    does: fn(&Path, &Path),
}

const DIGEST: &str = "its digest is not the one in the manifest";
const WEIGHT: &str = "transformer.wpe.weight";

const DAMAGES: &[Damage] = &[
    Damage {
        what: "flip in the manifest",
        words: &["manifest.json"],
        does: |new, _| flip(&new.join("manifest.json"), 40),
    },
    Damage {
        what: "flip in the state",
        words: &["state.json", DIGEST],
        does: |new, _| flip(&new.join("state.json"), 200),
    },
    Damage {
        what: "flip in the weights",
        words: &["model.safetensors", DIGEST],
        does: |new, _| change(&new.join("model.safetensors"), |bytes| *bytes.last_mut().unwrap() ^= 1),
    },
    Damage {
        what: "flip in the header",
        words: &["optimizer.safetensors", DIGEST],
        does: |new, _| flip(&new.join("optimizer.safetensors"), 3),
    },
    Damage {
        what: "empty weights",
        words: &["model.safetensors: has 0 bytes"],
        does: |new, _| fs::write(new.join("model.safetensors"), "").unwrap(),
    },
    Damage {
        what: "half an optimizer",
        words: &["optimizer.safetensors: has", "the manifest says"],
        does: |new, _| change(&new.join("optimizer.safetensors"), |bytes| bytes.truncate(bytes.len() / 2)),
    },
    Damage {
        what: "a manifest without its last byte",
        words: &["manifest.json"],
        does: |new, _| change(&new.join("manifest.json"), |bytes| bytes.truncate(bytes.len() - 1)),
    },
    Damage {
        what: "no state",
        words: &["state.json: is missing"],
        does: |new, _| fs::remove_file(new.join("state.json")).unwrap(),
    },
    Damage {
        what: "no manifest",
        words: &["manifest.json: cannot read"],
        does: |new, _| fs::remove_file(new.join("manifest.json")).unwrap(),
    },
    Damage {
        what: "another file",
        words: &["model-00002.safetensors: does not belong"],
        does: |new, _| fs::write(new.join("model-00002.safetensors"), "x").unwrap(),
    },
    Damage {
        what: "the weights of the one before",
        words: &["model.safetensors", DIGEST],
        does: |new, old| {
            swap_in("model.safetensors", old, new)
        },
    },
    Damage {
        what: "the manifest of the one before",
        words: &["step-00000040", DIGEST],
        does: |new, old| swap_in("manifest.json", old, new),
    },
    Damage {
        what: "a newer format",
        words: &["manifest.json: has format 2", "use the version that wrote it"],
        does: |new, _| {
            change(&new.join("manifest.json"), |bytes| {
                let text = String::from_utf8(std::mem::take(bytes)).unwrap();
                *bytes = text.replacen("\"format\": 1", "\"format\": 2", 1).into_bytes();
            });
        },
    },
    Damage {
        what: "a newer state",
        words: &["state.json: has format Some(2)"],
        does: |new, _| reseal_state(new, |state| state["format"] = json!(2)),
    },
    Damage {
        what: "a state without progress",
        words: &["state.json", "progress"],
        does: |new, _| reseal_state(new, |state| state["progress"] = json!(null)),
    },
    Damage {
        what: "learning rates of other groups",
        words: &["step-00000040", "learning rates"],
        does: |new, _| {
            reseal_state(new, |state| state["progress"]["lr_scale"] = json!([[1.0, 1.0, 1.0, 1.0]]))
        },
    },
    Damage {
        what: "a place in other data",
        words: &["step-00000040", "data sets"],
        does: |new, _| reseal_state(new, |state| state["progress"]["cursor"]["taken"] = json!([7])),
    },
    Damage {
        what: "a checkpoint somewhere else",
        words: &["step-00000040", "../../../elsewhere"],
        does: |new, _| {
            reseal_state(new, |state| state["progress"]["place"]["removes"] = json!(["../../../elsewhere"]));
        },
    },
    Damage {
        what: "an extra tensor",
        words: &["model.safetensors: `one.too.many` is not of this model"],
        does: |new, _| {
            reseal_tensors(new, "model.safetensors", |tensors| {
                tensors.insert("one.too.many".to_string(), tensors[WEIGHT].clone());
            });
        },
    },
    Damage {
        what: "a missing tensor",
        words: &["model.safetensors: `transformer.wpe.weight` is missing"],
        does: |new, _| reseal_tensors(new, "model.safetensors", |tensors| drop(tensors.remove(WEIGHT))),
    },
    Damage {
        what: "a wrong shape",
        words: &["model.safetensors: `transformer.wpe.weight` has shape [8, 32], the model's has [16, 16]"],
        does: |new, _| {
            reseal_tensors(new, "model.safetensors", |tensors| {
                let reshaped = tensors[WEIGHT].reshape((8, 32)).unwrap();
                tensors.insert(WEIGHT.to_string(), reshaped);
            });
        },
    },
    Damage {
        what: "a wrong dtype",
        words: &["model.safetensors: `transformer.wpe.weight` is F64"],
        does: |new, _| {
            reseal_tensors(new, "model.safetensors", |tensors| {
                let wider = tensors[WEIGHT].to_dtype(DType::F64).unwrap();
                tensors.insert(WEIGHT.to_string(), wider);
            });
        },
    },
    Damage {
        what: "half a moment",
        words: &["step-00000040", "exp_avg/transformer.wpe.weight` is missing"],
        does: |new, _| {
            reseal_tensors(new, "optimizer.safetensors", |tensors| {
                tensors.retain(|name, _| !name.ends_with("exp_avg/transformer.wpe.weight"));
            });
        },
    },
];

fn check_says(what: &str, ran: &Ran, words: &[&str]) {
    assert!(!ran.stderr.contains("panicked"), "{what}: {}", ran.stderr);
    for word in words {
        assert!(ran.stderr.contains(word), "{what}: `{word}` is not in: {}", ran.stderr);
    }
}

#[test]
fn p06_p07_every_kind_of_damage_is_named_and_the_one_before_is_used() {
    let straight = trained();
    for Damage { what, words, does } in DAMAGES {
        let lab = straight.copy();
        does(&at(&lab, 40), &at(&lab, 30));

        let ran = lab.run(&["eval", "tiny", "--json"]);
        assert_eq!(ran.code, Some(0), "{what}: {}", ran.stderr);
        check_says(what, &ran, words);
        check_says(what, &ran, &["WARNING", "step-00000040 is damaged", "step-00000030, step 30"]);
        let told: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(told["step"], 30, "{what}");

        let ran = lab.ok(&["train", "run.toml", "--resume"]);
        check_says(what, &ran, words);
        check_says(what, &ran, &["WARNING", "step-00000040 is damaged", "step-00000030, step 30"]);
        assert_eq!(lab.digest("tiny"), straight.digest("tiny"), "{what}");
        assert_eq!(lab.metrics("tiny"), straight.metrics("tiny"), "{what}");
        let kept = lab.run_dir("tiny").join("checkpoints/.damaged-0-step-00000040");
        assert!(kept.is_dir(), "{what}: what was damaged is kept for whoever wants to look at it");
    }
}

#[test]
fn p07_two_damaged_ones_leave_the_third() {
    let straight = trained();
    let lab = straight.copy();
    flip(&at(&lab, 40).join("state.json"), 9);
    fs::remove_file(at(&lab, 30).join("model.safetensors")).unwrap();
    let ran = lab.ok(&["train", "run.toml", "--resume"]);
    check_says(
        "two",
        &ran,
        &["step-00000040 is damaged", "step-00000030 is damaged", "step-00000020, step 20"],
    );
    assert_eq!(lab.digest("tiny"), straight.digest("tiny"));
    assert_eq!(lab.metrics("tiny"), straight.metrics("tiny"));
}

#[test]
fn p07_with_none_left_nothing_starts_and_nothing_changes() {
    let lab = trained();
    flip(&at(&lab, 40).join("manifest.json"), 60);
    change(&at(&lab, 30).join("optimizer.safetensors"), |bytes| bytes.truncate(100));
    reseal_state(&at(&lab, 20), |state| state["format"] = json!(7));
    let before = lab.tree();
    for args in [
        &["train", "run.toml", "--resume"][..],
        &["train", "run.toml", "--resume", "tiny"],
        &["eval", "tiny"],
    ] {
        let ran = lab.run(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
        let words = [
            "no good checkpoint",
            "manifest.json",
            "optimizer.safetensors: has 100 bytes",
            "state.json: has format",
        ];
        check_says("all", &ran, &words);
        assert_eq!(lab.tree(), before, "{args:?}");
    }
    // Nor does a new run take its place.
    let ran = lab.run(&["train", "run.toml"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    check_says("new", &ran, &["there is a run `tiny` already"]);
    assert_eq!(lab.tree(), before);
}

#[test]
fn p06_another_configuration_is_no_damage() {
    let lab = trained();
    let before = lab.tree();
    for (set, words) in [
        ("model.d_model=32", &["model.d_model: was 16, is 32"][..]),
        ("train.grad_clip=2.0", &["train.grad_clip: was 1.0, is 2.0"]),
        ("run.seed=7", &["saved with the seed 42, and this run has 7"]),
    ] {
        let ran = lab.run(&["train", "run.toml", "--resume", "--set", set]);
        assert_eq!(ran.code, Some(2), "{set}: {}", ran.stderr);
        check_says(set, &ran, words);
        assert_eq!(lab.tree(), before, "{set}: good checkpoints stay where they are");
    }
    lab.ok(&["train", "run.toml", "--resume"]);
}

#[test]
fn p07_a_damaged_record_is_no_new_run() {
    let straight = trained();
    for (file, words) in [
        ("run.json", &["run.json"][..]),
        ("config.toml", &["config.toml"]),
        ("metrics.jsonl", &["metrics.jsonl"]),
    ] {
        let lab = straight.copy();
        change(&lab.run_dir("tiny").join(file), |bytes| bytes.truncate(20));
        let newest = lab.digest("tiny");
        let ran = lab.run(&["train", "run.toml", "--resume"]);
        assert_eq!(ran.code, Some(2), "{file}: {}", ran.stderr);
        check_says(file, &ran, words);
        assert_eq!(lab.digest("tiny"), newest, "{file}");
    }
}
