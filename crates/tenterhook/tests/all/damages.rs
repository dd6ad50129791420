//! The kinds of damage a checkpoint can suffer.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use candle_core::{DType, Tensor};
use serde_json::{Value, json};
use tenterhook::record::checkpoints::CheckpointWriter;

/// The files of a checkpoint by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Changes one file.
pub(crate) fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Puts the file of one checkpoint into another.
fn swap_in(name: &str, from: &Path, to: &Path) {
    fs::copy(from.join(name), to.join(name)).unwrap();
}

pub(crate) fn flip(path: &Path, at: usize) {
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

pub(crate) fn reseal_state(checkpoint: &Path, change: impl FnOnce(&mut Value)) {
    reseal(checkpoint, |files| {
        let bytes = files.get_mut("state.json").unwrap();
        let mut state = serde_json::from_slice(bytes).unwrap();
        change(&mut state);
        *bytes = state.to_string().into_bytes();
    });
}

/// One kind of damage to the newest checkpoint, and what has to be said of it.
pub(crate) struct Damage {
    pub(crate) what: &'static str,
    pub(crate) words: &'static [&'static str],
    /// The newest checkpoint, and the one before.
    pub(crate) does: fn(&Path, &Path),
}

const DIGEST: &str = "its digest is not the one in the manifest";
const WEIGHT: &str = "transformer.wpe.weight";

/// Whatever is to be read from it, it is refused.
pub(crate) const DAMAGES: &[Damage] = &[
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
        does: |new, old| swap_in("model.safetensors", old, new),
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
        words: &["state.json", "expected struct Progress"],
        does: |new, _| reseal_state(new, |state| state["progress"] = json!(null)),
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
];

/// The weights are good, but nobody could go on from there.
pub(crate) const MISFITS: &[Damage] = &[
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
        what: "half a moment",
        words: &["step-00000040", "exp_avg/transformer.wpe.weight` is missing"],
        does: |new, _| {
            reseal_tensors(new, "optimizer.safetensors", |tensors| {
                tensors.retain(|name, _| !name.ends_with("exp_avg/transformer.wpe.weight"));
            });
        },
    },
];
