//! Damaged and hostile model directories: each is refused with a message that names the thing, without a panic.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;
use serde_json::{Value, json};
use tenterhook_models::config::TransformerConfig;
use tenterhook_models::files::{ModelFiles, save_model};
use tenterhook_models::tokenizer::Tokenizer;

const NAMES: [&str; 3] = ["transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f.bias"];
const SHAPES: [&[usize]; 3] = [&[11, 8], &[4, 8], &[8]];

fn config() -> TransformerConfig {
    TransformerConfig::gpt2(11, 4, 8, 1, 2)
}

fn tensors() -> Vec<(String, Tensor)> {
    let tensor = |(name, shape): (&&str, &&[usize])| {
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
        (name.to_string(), Tensor::from_vec(values, *shape, &Device::Cpu).unwrap())
    };
    NAMES.iter().zip(&SHAPES).map(tensor).collect()
}

/// A small directory that is in order. It holds three tensors of a model; which ones does not matter here.
fn sound() -> tempfile::TempDir {
    static WEIGHTS: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        save_model(dir.path(), &config().to_hf(), &tensors(), None).unwrap();
        fs::read(dir.path().join("model.safetensors")).unwrap()
    });
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config().to_hf().to_string()).unwrap();
    fs::write(dir.path().join("model.safetensors"), &*WEIGHTS).unwrap();
    dir
}

/// Opens a directory and reads its three tensors.
fn load(dir: &Path) -> Result<Vec<Vec<f32>>, String> {
    let files = ModelFiles::open(dir).map_err(|error| error.to_string())?;
    let mut weights = files.weights(DType::F32, &Device::Cpu);
    let read: candle_core::Result<Vec<_>> = NAMES
        .iter()
        .zip(SHAPES)
        .map(|(name, shape)| weights.tensor(name, shape)?.flatten_all()?.to_vec1())
        .collect();
    weights.finish_with(read).map_err(|error| error.to_string())
}

fn refused(dir: &Path, expected: &[&str]) {
    let message = load(dir).unwrap_err();
    for expected in expected {
        assert!(message.contains(expected), "{message}\nshould contain {expected}");
    }
    assert!(message.len() < 10_000);
}

fn with_weights(bytes: &[u8], expected: &[&str]) {
    let dir = sound();
    fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    refused(dir.path(), expected);
}

fn with_config(bytes: impl AsRef<[u8]>, expected: &[&str]) {
    let dir = sound();
    fs::write(dir.path().join("config.json"), bytes).unwrap();
    refused(dir.path(), &[&["config.json"], expected].concat());
}

fn file(header: &Value, data: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

#[test]
fn a_file_cut_short_anywhere_is_refused() {
    let dir = sound();
    let path = dir.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    assert!(load(dir.path()).is_ok());
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        refused(dir.path(), &["model.safetensors"]);
    }
    fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
    refused(dir.path(), &["model.safetensors", "1 bytes at its end"]);
}

/// Either the damage is noticed or it is in the comment of the header and nothing depends on it.
#[test]
fn every_flipped_byte_of_the_header_is_noticed() {
    let dir = sound();
    let path = dir.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let sound_values = load(dir.path()).unwrap();
    let header_end = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let comment = br#""format":"pt""#;
    let comment_start = whole.windows(comment.len()).position(|bytes| bytes == comment).unwrap();
    let comment = comment_start..comment_start + comment.len();
    for position in 0..header_end {
        for flip in [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff] {
            let mut damaged = whole.clone();
            damaged[position] ^= flip;
            fs::write(&path, &damaged).unwrap();
            match load(dir.path()) {
                Err(message) => assert!(message.contains(dir.path().to_str().unwrap()), "{message}"),
                Ok(values) => {
                    let padding = whole[position] == b' ';
                    assert!(
                        padding || comment.contains(&position),
                        "byte {position} flipped by {flip:#x} went unnoticed"
                    );
                    assert_eq!(values, sound_values);
                }
            }
        }
    }
}

#[test]
fn headers_that_lie_are_refused() {
    let entry = |start: u64, end: u64| json!({"dtype": "F32", "shape": [2], "data_offsets": [start, end]});
    let path = "model.safetensors";
    with_weights(
        &file(&json!({"a": entry(0, 8), "b": entry(4, 12)}), &[0; 12]),
        &[path, "`b`", "expected to start at 8"],
    );
    with_weights(
        &file(&json!({"a": entry(0, 8), "b": entry(u64::MAX - 7, u64::MAX)}), &[0; 16]),
        &[path, "`b`"],
    );
    with_weights(&file(&json!({"a": entry(0, 1 << 62)}), &[0; 8]), &[path, "`a`", "cut short"]);
    let huge = json!({"dtype": "F32", "shape": [1u64 << 62, 4], "data_offsets": [0, 8]});
    with_weights(&file(&json!({"a": huge}), &[0; 8]), &[path, "`a`", "does not fill"]);
    with_weights(
        &[&(200_000_000u64).to_le_bytes()[..], &[b' '; 64]].concat(),
        &[path, "claims 200000000 bytes"],
    );
    with_weights(&(u64::MAX).to_le_bytes(), &[path, "claims 18446744073709551615 bytes"]);
    let deep = [&[b'['; 20_000][..], b""].concat();
    with_weights(&[&(deep.len() as u64).to_le_bytes()[..], &deep].concat(), &[path, "broken"]);
    let name = format!("{}\u{1b}[31m", "x".repeat(4096));
    with_weights(&file(&json!({name: entry(4, 12)}), &[0; 12]), &[path, "xxx..."]);
}

#[test]
fn pickle_files_are_never_read() {
    let pickle = b"\x80\x02cposix\nsystem\nq\x00X\x0b\x00\x00\x00touch /tmp/xq\x01\x85q\x02Rq\x03.";
    with_weights(pickle, &["model.safetensors", "pickle", "never read"]);
    with_weights(
        b"PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00archive/data.pkl",
        &["model.safetensors", "pickle"],
    );
    let dir = sound();
    fs::rename(dir.path().join("model.safetensors"), dir.path().join("pytorch_model.bin")).unwrap();
    refused(dir.path(), &["pytorch_model.bin", "never read", "safe_serialization=True"]);
}

#[test]
fn directories_that_are_none_say_what_was_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    refused(&dir.path().join("nowhere"), &["nowhere", "does not exist", "config.json"]);
    refused(dir.path(), &["no config.json"]);
    fs::write(dir.path().join("config.json"), config().to_hf().to_string()).unwrap();
    refused(dir.path(), &["neither model.safetensors nor model.safetensors.index.json"]);
    refused(&dir.path().join("config.json"), &["is a file", "directory"]);
    fs::create_dir(dir.path().join("model.safetensors")).unwrap();
    refused(dir.path(), &["model.safetensors", "not a regular file"]);
    refused(Path::new("bad\0name"), &["does not exist"]);
}

#[test]
fn broken_configs_are_refused_with_the_place() {
    with_config(b"", &["line 1 column 0"]);
    with_config(b"{\n  \"model_type\": \"gpt2\",\n  oops\n}", &["line 3 column 3"]);
    with_config(b"{\n\"model_type\": \"gpt\xff2\"}", &["not UTF-8", "line 2"]);
    with_config(b"{\"n_layer\": NaN}", &["not valid JSON"]);
    with_config("[".repeat(100_000), &["recursion limit"]);
    with_config(" ".repeat(5 << 20), &["larger than"]);
    with_config("null", &["must be a JSON object"]);
}

#[test]
fn absurd_sizes_in_the_config_are_refused() {
    let sizes = [
        "1000000000000",
        "1e12",
        "1152921504606846976",
        "1099511627776",
        "-5",
        "0",
        "2.5",
        "\"12\"",
        "1e400",
    ];
    for key in ["n_layer", "n_embd", "vocab_size", "n_head", "n_positions", "n_inner"] {
        for size in sizes {
            let expected = if size == "1e400" { "out of range" } else { key };
            with_config(format!("{{\"model_type\": \"gpt2\", \"{key}\": {size}}}"), &[expected]);
        }
    }
    // Possible sizes, but not the ones of the files beside them.
    let other = json!({"model_type": "gpt2", "n_embd": 1 << 20, "n_head": 2, "n_positions": 4, "vocab_size": 1 << 22});
    with_config(other.to_string(), &[]);
}

#[test]
fn wrong_shape_and_type_are_refused_by_name() {
    let dir = sound();
    let mut changed = tensors();
    changed[0].1 = changed[0].1.t().unwrap();
    changed[1].0 = "transformer.wpe.wait".to_string();
    save_model(dir.path(), &config().to_hf(), &changed, None).unwrap();
    refused(
        dir.path(),
        &[
            "`transformer.wte.weight`: expected shape [11, 8], found [8, 11]",
            "`transformer.wpe.weight` is missing; the files have `transformer.wpe.wait`",
            "`transformer.wpe.wait` is in the files",
        ],
    );
    for dtype in ["I32", "U32"] {
        let whole = fs::read(sound().path().join("model.safetensors")).unwrap();
        let position = whole.windows(3).position(|bytes| bytes == b"F32").unwrap();
        let changed = [&whole[..position], dtype.as_bytes(), &whole[position + 3..]].concat();
        with_weights(&changed, &[&format!("type {dtype} is not supported")]);
    }
}

/// The same three tensors in two shards, and an index that says so.
fn sharded() -> (tempfile::TempDir, Value) {
    let dir = sound();
    let (a, b) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    let path = |name: &str| dir.path().join(name);
    for (shard, tensors) in [(a, &tensors()[..1]), (b, &tensors()[1..])] {
        save_model(dir.path(), &config().to_hf(), tensors, None).unwrap();
        fs::rename(path("model.safetensors"), path(shard)).unwrap();
    }
    let index =
        json!({"metadata": {"total_size": 512}, "weight_map": {NAMES[0]: a, NAMES[1]: b, NAMES[2]: b}});
    fs::write(path("model.safetensors.index.json"), index.to_string()).unwrap();
    (dir, index)
}

#[test]
fn shards_that_do_not_match_their_index_are_refused() {
    let (dir, index) = sharded();
    assert_eq!(load(dir.path()), load(sound().path()));
    let path = |name: &str| dir.path().join(name);
    let (a, b) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    let rewrite = |index: Value| fs::write(path("model.safetensors.index.json"), index.to_string()).unwrap();

    fs::rename(path(a), path("aside")).unwrap();
    refused(dir.path(), &["model.safetensors.index.json", &format!("shard `{a}` is missing")]);
    // Swapped: every tensor is somewhere, none where it should be.
    fs::rename(path(b), path(a)).unwrap();
    fs::rename(path("aside"), path(b)).unwrap();
    refused(
        dir.path(),
        &["6 problems", &format!("`{}` is not in {a}", NAMES[0]), &format!("`{}` is in {a}", NAMES[1])],
    );
    fs::rename(path(b), path("aside")).unwrap();
    fs::rename(path(a), path(b)).unwrap();
    fs::rename(path("aside"), path(a)).unwrap();

    for outside in
        ["../a.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "a\0.safetensors", "weights.bin"]
    {
        let mut changed = index.clone();
        changed["weight_map"][NAMES[0]] = json!(outside);
        rewrite(changed);
        refused(dir.path(), &["is not the name of a safetensors file in this directory"]);
    }
    let mut changed = index.clone();
    changed["weight_map"]["transformer.extra"] = json!(b);
    rewrite(changed);
    refused(dir.path(), &["`transformer.extra` is not in"]);
    rewrite(json!({"weight_map": {}}));
    refused(dir.path(), &["`weight_map` is empty"]);
    rewrite(json!({"weight_map": [1]}));
    refused(dir.path(), &["model.safetensors.index.json", "line 1 column"]);
    rewrite(index);
    let whole = fs::read(path(a)).unwrap();
    fs::write(path(a), &whole[..whole.len() - 1]).unwrap();
    refused(dir.path(), &[a, "cut short"]);
}

#[test]
fn broken_tokenizers_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    let message = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Tokenizer::load(&path).unwrap_err().to_string()
    };
    for bytes in [&b""[..], b"{}", b"[", b"\xff\xfe", b"{\"model\": {\"type\": \"BPE\", \"vocab\": 3}}"] {
        let message = message(bytes);
        assert!(message.contains("tokenizer.json") && message.contains("not a tokenizer"), "{message}");
    }
    assert!(Tokenizer::load(&dir.path().join("none.json")).unwrap_err().to_string().contains("none.json"));
    let sound = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"hello": 0, "world": 1, "?": 2}, "unk_token": "?"},
    });
    fs::write(&path, sound.to_string()).unwrap();
    let tokenizer = Tokenizer::load(&path).unwrap();
    assert_eq!(tokenizer.encode("world hello moon", true).unwrap(), [1, 0, 2]);
    assert_eq!(tokenizer.decode(&[0, 1]).unwrap(), "hello world");
    assert_eq!(tokenizer.vocab_size(), 3);
}

#[test]
fn a_text_is_neither_cut_nor_padded_whatever_the_tokenizer_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    let cutting = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 1u64 << 40}, "direction": "Right", "pad_to_multiple_of": null,
                    "pad_id": 2, "pad_type_id": 0, "pad_token": "?"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"},
    });
    fs::write(&path, cutting.to_string()).unwrap();
    let tokenizer = Tokenizer::load(&path).unwrap();
    assert_eq!(tokenizer.encode("a b a b a b", true).unwrap(), [0, 1, 0, 1, 0, 1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_bytes_never_open(bytes in prop::collection::vec(any::<u8>(), 0..400), json_like: bool) {
        let dir = sound();
        let header = if json_like {
            let text: Vec<u8> = bytes.iter().map(|byte| br#"{}[]":,0123456789.eE-F32dtypeshape "#[usize::from(*byte) % 35]).collect();
            [&(text.len() as u64).to_le_bytes()[..], &text].concat()
        } else {
            bytes.clone()
        };
        fs::write(dir.path().join("model.safetensors"), header).unwrap();
        prop_assert!(load(dir.path()).is_err());
        fs::write(dir.path().join("config.json"), bytes).unwrap();
        prop_assert!(load(dir.path()).is_err());
    }

    #[test]
    fn random_damage_to_a_header_never_panics(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let dir = sound();
        let path = dir.path().join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        for (index, byte) in changes {
            let position = index.index(300.min(bytes.len()));
            bytes[position] = byte;
        }
        fs::write(&path, bytes).unwrap();
        let _ = load(dir.path());
    }
}
