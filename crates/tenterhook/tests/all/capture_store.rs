//! `tenterhook capture` into a store: texts from everywhere, and bad input.

use std::fs;
use std::path::Path;

use candle_core::{Device, Tensor};
use serde_json::Value;
use tenterhook::lens::{CacheOptions, LanguageModel, StoreReader};

use crate::lab::Lab;
use crate::support::*;

const POINTS: [&str; 4] = ["--points", "blocks.*.hook_resid_post", "--points", "blocks.0.attn.hook_pattern"];

/// A directory with a small model that has a tokenizer.
pub(crate) fn lab() -> Lab {
    let lab = Lab::new();
    for file in ["config.json", "model.safetensors"] {
        lab.write(&format!("model_{file}"), fs::read(model("gpt2").join(file)).unwrap());
    }
    fs::create_dir(lab.path().join("gpt2")).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::rename(lab.path().join(format!("model_{file}")), lab.path().join("gpt2").join(file)).unwrap();
    }
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer.json");
    fs::copy(tokenizer, lab.path().join("gpt2/tokenizer.json")).unwrap();
    lab
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}{}", ran.stdout, ran.stderr))
}

fn capture<'a>(input: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [&["capture", "gpt2", "--out", "acts", "--json"], input, &POINTS, more].concat()
}

fn values(x: &Tensor) -> Vec<f32> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

/// What the store has for each of these texts is what the model gives for each alone.
fn check(lab: &Lab, run: &Path, texts: &[Vec<u32>], tolerance: f32) {
    let lm = LanguageModel::from_pretrained(lab.path().join("gpt2").to_str().unwrap()).unwrap();
    let reader = StoreReader::open(run).unwrap();
    assert!(reader.is_finished());
    assert_eq!(reader.sequences(), texts.len() as u64);
    assert_eq!(reader.rows("blocks.0.hook_resid_post").unwrap(), texts.concat().len() as u64);
    for (i, ids) in texts.iter().enumerate() {
        let (_, cache, _) = lm.run_with_cache(&lm.batch_of(ids).unwrap(), &CacheOptions::default()).unwrap();
        for layer in reader.layers() {
            let (got, want) =
                (reader.sequence(&layer.name, i as u64).unwrap(), cache.get(&layer.name).unwrap());
            assert_eq!(got.dims(), &want.dims()[1..], "{}", layer.name);
            for (a, b) in values(&got).into_iter().zip(values(want)) {
                assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{} {i}: {a}, not {b}", layer.name);
            }
        }
    }
}

#[test]
fn texts_come_from_everywhere() {
    let lab = lab();
    let lm = LanguageModel::from_pretrained(lab.path().join("gpt2").to_str().unwrap()).unwrap();
    let lines = ["hello", "hello hello", "oleh", "hello hell"];
    let texts = |bos: Option<bool>| lines.map(|line| lm.to_tokens(line, bos).unwrap()).to_vec();
    lab.write("lines.txt", format!("{}\r\n\n   \n{}", lines[..2].join("\n"), lines[2..].join("\n")));
    let objects: Vec<String> =
        lines.iter().map(|line| format!("{{\"id\": 1, \"text\": \"{line}\"}}\n")).collect();
    lab.write("lines.jsonl", objects.concat());
    lab.write("ids.json", serde_json::to_string(&texts(None)).unwrap());
    let by_hand: Vec<&str> = lines.iter().flat_map(|line| ["--text", line]).collect();
    for (number, input) in
        [&by_hand[..], &["--file", "lines.txt"], &["--file", "lines.jsonl"], &["--tokens-file", "ids.json"]]
            .iter()
            .enumerate()
    {
        let told = json(&lab.ok(&capture(input, &["--batch-size", "3"])));
        let name = if number == 0 { "capture".to_string() } else { format!("capture-{}", number + 1) };
        assert_eq!(Path::new(told["path"].as_str().unwrap()).file_name().unwrap(), name.as_str());
        assert_eq!((&told["texts"], &told["batches"]), (&4.into(), &2.into()));
        assert_eq!(told["receipts"][0]["fired"], 6, "three points, two batches");
        assert_eq!(told["layers"].as_array().unwrap().len(), 3);
        check(&lab, &lab.path().join("acts").join(name), &texts(None), 5e-5);
    }
    lab.ok(&capture(&by_hand, &["--run", "bare", "--no-bos", "--dtype", "f16", "--batch-size", "1"]));
    check(&lab, &lab.path().join("acts/bare"), &texts(Some(false)), 2e-3);
    let reader = StoreReader::open(lab.path().join("acts/bare")).unwrap();
    assert_eq!(reader.layers()[0].dtype.to_string(), "F16");
    assert_eq!(reader.about()["model"], "gpt2");
    // People read this.
    let told =
        lab.ok(&["capture", "gpt2", "--text", "hello", "--points", "hook_embed", "--out", "more"]).stdout;
    assert!(told.contains("1 sequences, 2 rows of 1 layers") && told.contains("more/capture"), "{told}");
}

#[test]
fn long_texts_are_split_or_cut_and_positions_chosen() {
    let lab = lab();
    let long: Vec<u32> = (0..40).map(|i| i % 13).collect();
    lab.write("ids.json", serde_json::to_string(&[long.clone(), vec![1, 2]]).unwrap());
    let run = |name: &str, more: &[&str]| {
        let told = json(&lab.ok(&capture(&["--tokens-file", "ids.json", "--run", name], more)));
        (told["long_texts"].as_u64().unwrap(), lab.path().join("acts").join(name))
    };
    let blocks = |size: usize| [long.chunks(size).map(<[u32]>::to_vec).collect(), vec![vec![1, 2]]].concat();
    // The model has 16 positions.
    let (split, path) = run("split", &[]);
    check(&lab, &path, &blocks(16), 5e-5);
    assert_eq!(split, 1);
    check(&lab, &run("context", &["--context", "7"]).1, &blocks(7), 5e-5);
    check(&lab, &run("cut", &["--max-tokens", "5"]).1, &[long[..5].to_vec(), vec![1, 2]], 5e-5);
    let path = run("last", &["--positions", "-1,0"]).1;
    let reader = StoreReader::open(&path).unwrap();
    let rows = reader
        .read_rows("blocks.0.hook_resid_post", 0..reader.rows("blocks.0.hook_resid_post").unwrap())
        .unwrap();
    assert_eq!(rows.positions, [0, 15, 0, 15, 0, 7, 0, 1]);
}

#[test]
fn hooks_of_a_file_take_part_and_what_they_capture_is_stored() {
    let lab = lab();
    let hooks = "[[hooks]]\nkind = \"zero_ablate\"\npoints = \"blocks.0.hook_mlp_out\"\n\n[[hooks]]\nkind = \"capture\"\npoints = [\"blocks.0.hook_mlp_out\", \"transformer.h.1\"]\n";
    lab.write("hooks.toml", hooks);
    lab.write("ablate.toml", hooks.split("\n\n").next().unwrap());
    let input = ["--text", "hello", "--text", "hello hello"];
    // Without points, what the hooks capture is stored, and nothing else.
    let args = [
        &["capture", "gpt2", "--out", "acts", "--hooks", "hooks.toml", "--json", "--batch-size", "1"][..],
        &input,
    ]
    .concat();
    let told = json(&lab.ok(&args));
    let ids: Vec<&str> =
        told["receipts"].as_array().unwrap().iter().map(|hook| hook["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["zero_ablate", "capture"]);
    let reader = StoreReader::open(lab.path().join("acts")).unwrap();
    let names: Vec<&str> = reader.layers().iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!(names, ["blocks.0.hook_mlp_out", "transformer.h.1"]);
    let rows = reader.rows("blocks.0.hook_mlp_out").unwrap();
    assert!(
        values(&reader.read("blocks.0.hook_mlp_out", 0..rows).unwrap()).iter().all(|value| *value == 0.0)
    );
    assert_eq!(reader.read("transformer.h.1", 0..rows).unwrap().dims()[0], rows as usize);
    // With points, both are; a name that is there already gets the hook's.
    lab.ok(&[&args[..], &["--points", "blocks.*.hook_mlp_out", "--run", "both"]].concat());
    let reader = StoreReader::open(lab.path().join("acts/both")).unwrap();
    let names: Vec<&str> = reader.layers().iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "blocks.0.hook_mlp_out",
            "blocks.1.hook_mlp_out",
            "capture/blocks.0.hook_mlp_out",
            "transformer.h.1"
        ]
    );
    // The same into a file.
    let file = [
        "capture",
        "gpt2",
        "--text",
        "hello",
        "--out",
        "out.safetensors",
        "--hooks",
        "hooks.toml",
        "--dtype",
        "bf16",
    ];
    lab.ok(&file);
    let tensors = candle_core::safetensors::load(lab.path().join("out.safetensors"), &Device::Cpu).unwrap();
    assert_eq!(tensors["transformer.h.1"].dims()[..2], [1, 2]);
    assert_eq!(tensors["transformer.h.1"].dtype(), candle_core::DType::BF16);
    // Nothing to write.
    for out in ["x.safetensors", "x"] {
        let ran = lab.run(&["capture", "gpt2", "--text", "hello", "--out", out, "--hooks", "ablate.toml"]);
        assert_eq!(ran.code, Some(2));
        assert!(ran.stderr.contains("nothing would be written"), "{}", ran.stderr);
        assert!(!lab.path().join(out).exists());
    }
}

#[test]
fn bad_input_is_named_before_anything_is_made() {
    let lab = lab();
    lab.write("bad.jsonl", "{\"text\": \"hello\"}\n{\"txt\": 1}\n");
    lab.write("broken.jsonl", "{\"text\": \"hello\"}\n{\n");
    lab.write("bytes.txt", b"hello\n\xff\xfe\n");
    lab.write("empty.txt", "\n  \n");
    lab.write("ids.json", "[[1, 2], [3]]");
    lab.write("wrong.json", "[[1, 999]]");
    fs::create_dir(lab.path().join("full")).unwrap();
    lab.write("full/notes.txt", "precious");
    let text = ["--text", "hello"];
    for (input, more, words) in [
        (&["--file", "bad.jsonl"][..], &[][..], &["bad.jsonl, line 2", "`text`"][..]),
        (&["--file", "broken.jsonl"], &[], &["broken.jsonl, line 2", "not JSON"]),
        (&["--file", "bytes.txt"], &[], &["bytes.txt, line 2", "UTF-8"]),
        (&["--file", "empty.txt"], &[], &["empty.txt", "no text"]),
        (&["--file", "nowhere.txt"], &[], &["nowhere.txt"]),
        (&["--file", "."], &[], &["not a file"]),
        (&["--text", ""], &["--no-bos"], &["--text", "at least one token"]),
        (&text, &["--gradients"], &["--gradients", ".safetensors"]),
        (&text, &["--run", "../up"], &["path separator"]),
        (&text, &["--context", "17"], &["17", "16 positions"]),
        (&text, &["--context", "0"], &["--context", "at least 1"]),
        (&text, &["--batch-size", "0"], &["--batch-size", "at least 1"]),
        (&text, &["--memory-limit", "0"], &["--memory-limit", "at least 1"]),
        (&text, &["--dtype", "f8"], &["--dtype", "bf16"]),
        (&text, &["--context", "3", "--max-tokens", "3"], &["--max-tokens"]),
        (&text, &["--points", "blok.*"], &["blok.*", "nearest"]),
        (&["--text", "hello", "--file", "empty.txt"], &[], &["--file"]),
        (&[], &[], &["--text"]),
        (&["--tokens-file", "ids.json"], &["--prepend-bos"], &["--prepend-bos"]),
    ] {
        let ran = lab.run(&capture(input, more));
        assert_eq!(ran.code, Some(2), "{input:?} {more:?}: {}{}", ran.stdout, ran.stderr);
        assert!(words.iter().all(|word| ran.stderr.contains(word)), "{input:?} {more:?}: {}", ran.stderr);
        assert!(ran.stdout.is_empty() && !lab.path().join("acts").exists(), "{input:?} {more:?}");
    }
    for (out, words) in [
        ("full", &["is a directory", "notes.txt"][..]),
        ("no/such/place", &["does not exist"]),
        ("full/notes.txt/acts", &["does not exist"]),
    ] {
        let ran = lab.run(&["capture", "gpt2", "--text", "hello", "--points", "hook_embed", "--out", out]);
        assert_eq!(ran.code, Some(2), "{out}: {}", ran.stderr);
        assert!(words.iter().all(|word| ran.stderr.contains(word)), "{out}: {}", ran.stderr);
    }
    for (more, word) in [
        (&["--memory-limit", "1"][..], "--memory-limit is for a store"),
        (&["--text", "hello hello"], "equally long"),
        (&["--run", "x"], "--run is for a store"),
    ] {
        let args = [
            &["capture", "gpt2", "--text", "hello", "--points", "hook_embed", "--out", "x.safetensors"][..],
            more,
        ]
        .concat();
        let ran = lab.run(&args);
        assert_eq!(ran.code, Some(2));
        assert!(ran.stderr.contains(word), "{}", ran.stderr);
        assert!(!lab.path().join("x.safetensors").exists());
    }
    // What is found on the way leaves what was there before.
    lab.ok(&capture(&text, &["--run", "good"]));
    let ran = lab.run(&capture(&text, &["--run", "good"]));
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("acts/good") && ran.stderr.contains("already"), "{}", ran.stderr);
    let ran = lab.run(&capture(&["--tokens-file", "wrong.json"], &["--run", "wrong"]));
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("wrong.json: sequence 0") && ran.stderr.contains("999"), "{}", ran.stderr);
    assert!(!lab.path().join("acts/wrong").exists());
    let help = lab.ok(&["capture", "--help"]).stdout;
    assert!(help.contains("Examples:") && help.contains("--memory-limit"), "{help}");
}

#[test]
fn one_text_goes_into_a_file_as_before() {
    let lab = lab();
    lab.ok(&[
        "capture",
        "gpt2",
        "--text",
        "hello hello",
        "--points",
        "hook_embed",
        "--logits",
        "--gradients",
        "--out",
        "a.safetensors",
    ]);
    let lm = LanguageModel::from_pretrained(lab.path().join("gpt2").to_str().unwrap()).unwrap();
    lab.write("ids.json", serde_json::to_string(&[lm.to_tokens("hello hello", None).unwrap()]).unwrap());
    lab.ok(&[
        "capture",
        "gpt2",
        "--tokens-file",
        "ids.json",
        "--points",
        "hook_embed",
        "--logits",
        "--gradients",
        "--out",
        "b.safetensors",
    ]);
    let read = |name: &str| fs::read(lab.path().join(name)).unwrap();
    assert_eq!(read("a.safetensors"), read("b.safetensors"));
    let two = [
        "capture",
        "gpt2",
        "--text",
        "hello hello",
        "--text",
        "hello",
        "--max-tokens",
        "2",
        "--points",
        "hook_embed",
        "--out",
        "c.safetensors",
    ];
    lab.ok(&two);
    let tensors = candle_core::safetensors::load(lab.path().join("c.safetensors"), &Device::Cpu).unwrap();
    assert_eq!(tensors["hook_embed"].dims()[..2], [2, 2]);
}
