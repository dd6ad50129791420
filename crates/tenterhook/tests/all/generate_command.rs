//! `tenterhook generate`.

use std::fs;

use candle_core::{Device, Tensor};
use serde_json::Value;

use crate::support::*;

/// Runs `generate` on a reference model with these further arguments.
fn generate(name: &str, more: &[&str]) -> Ran {
    let dir = model(name);
    let mut args = vec!["generate", dir.to_str().unwrap()];
    args.extend(more);
    tenterhook(&args)
}

fn json_of(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn goes_on_with_token_ids_and_gives_the_same_again() {
    let args = ["--tokens", "1,2,3", "--tokens", "4,5", "--max-new-tokens", "5", "--json"];
    let told = json_of(&generate("llama", &args));
    let rows = told["generations"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1]["prompt_tokens"], serde_json::json!([4, 5]));
    assert_eq!(rows[0]["new_tokens"].as_array().unwrap().len(), 5);
    assert_eq!(
        json_of(&generate("llama", &[&args[..], &["--no-cache"]].concat()))["generations"],
        told["generations"]
    );
    let sampled = |seed: &str| {
        let more = ["--tokens", "1,2,3", "--temperature", "1.5", "--top-k", "20", "--seed", seed, "--json"];
        json_of(&generate("gpt2", &[&more[..], &["--max-new-tokens", "9"]].concat()))["generations"].clone()
    };
    assert_eq!(sampled("1"), sampled("1"));
    assert_ne!(sampled("1"), sampled("2"));
}

#[test]
fn text_comes_out_as_it_was_made() {
    let dir = copy_of("gpt2");
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    fs::copy(tokenizer, dir.path().join("tokenizer.json")).unwrap();
    let path = dir.path().to_str().unwrap();
    let text = fs::read_to_string(tokenizer).unwrap();
    let vocabulary: Value = serde_json::from_str(&text).unwrap();
    let word =
        vocabulary["model"]["vocab"].as_object().unwrap().keys().find(|key| key.len() == 1).unwrap().clone();
    let args = ["generate", path, "--prompt", &word, "--max-new-tokens", "4"];
    let plain = tenterhook(&args);
    assert_eq!(plain.code, Some(0), "{}", plain.stderr);
    let told = json_of(&tenterhook(&[&args[..], &["--json"]].concat()));
    let row = &told["generations"][0];
    let whole = format!("{}{}", row["prompt"].as_str().unwrap(), row["text"].as_str().unwrap());
    assert_eq!(plain.stdout.trim_end().replace(' ', ""), whole.trim_end().replace(' ', ""));
}

#[test]
fn hooks_of_a_file_take_part_and_leave_receipts() {
    let dir = tempfile::tempdir().unwrap();
    let vector = Tensor::full(3f32, 24, &Device::Cpu).unwrap();
    candle_core::safetensors::save(&[("vector", vector)].into(), dir.path().join("direction.safetensors"))
        .unwrap();
    let hooks = dir.path().join("hooks.toml");
    let text = "[[hooks]]\nkind = \"steer\"\npoints = \"blocks.0.hook_resid_post\"\nvector = \"direction.safetensors\"\nstrength = -2.0\nneurons = [0, 1]\n\n\
                [[hooks]]\nkind = \"capture\"\npoints = \"blocks.1.hook_resid_post\"\npositions = -1\n\n\
                [[hooks]]\nkind = \"json_log\"\n";
    fs::write(&hooks, text).unwrap();
    let captures = dir.path().join("kept");
    let (file, kept) = (hooks.to_str().unwrap(), captures.to_str().unwrap());
    let args = ["--tokens", "1,2,3", "--max-new-tokens", "4", "--hooks", file, "--captures", kept, "--json"];
    let ran = generate("gpt2", &args);
    assert!(ran.stderr.contains("`json_log` takes part in training runs only"), "{}", ran.stderr);
    let told = json_of(&ran);
    let receipts = told["receipts"].as_array().unwrap();
    assert_eq!(
        (&receipts[0]["kind"], &receipts[0]["fired"], &receipts[0]["edits"]),
        (&"steer".into(), &4.into(), &4.into())
    );
    let states = candle_core::safetensors::load(captures.join("capture.safetensors"), &Device::Cpu).unwrap();
    assert_eq!(states.len(), 4);
    assert_eq!(states["step-00000003/blocks.1.hook_resid_post"].dims()[..2], [1, 1]);

    let ran = generate("gpt2", &["--tokens", "1,2,3", "--max-new-tokens", "4", "--hooks", file]);
    assert!(ran.stderr.contains("are not written: --captures DIR keeps them"), "{}", ran.stderr);
    assert!(ran.stderr.contains("steer"), "receipts: {}", ran.stderr);
}

#[test]
fn an_edit_that_a_cache_cannot_do_ends_it_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let hooks = dir.path().join("hooks.toml");
    fs::write(
        &hooks,
        "[[hooks]]\nkind = \"zero_ablate\"\npoints = \"blocks.0.hook_mlp_out\"\npositions = -1\n",
    )
    .unwrap();
    let args = ["--tokens", "1,2,3", "--max-new-tokens", "4", "--hooks", hooks.to_str().unwrap(), "--json"];
    let ran = generate("neox", &args);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("in the cache") && ran.stderr.contains("without the cache"),
        "{}",
        ran.stderr
    );
    json_of(&generate("neox", &[&args[..], &["--no-cache"]].concat()));
}

#[test]
fn bad_input_is_told_in_one_message() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).to_str().unwrap().to_string()
    };
    let typo = write("typo.toml", "[[hooks]]\nkind = \"zero_ablat\"\npoints = \"*\"\n");
    let unknown = write("unknown.toml", "[[hook]]\nkind = \"zero_ablate\"\n");
    let option = write("option.toml", "[[hooks]]\nkind = \"zero_ablate\"\npoints = \"blocks.0.hook_z\"\n");
    let missing = write(
        "missing.toml",
        "[[hooks]]\nkind = \"steer\"\npoints = \"blocks.0.hook_resid_post\"\nvector = \"no.safetensors\"\n",
    );
    let training = write("training.toml", "[[hooks]]\nkind = \"early_stopping\"\n");
    let empty = write("empty.toml", "");
    let one = ["--tokens", "1,2,3"];
    let cases: [(&[&str], &str); 14] = [
        (&[], "--prompt TEXT or --tokens"),
        (&["--prompt", "hello"], "no tokenizer.json"),
        (&["--tokens", "1,x"], "is no list of token ids"),
        (&["--tokens", "1,99999"], "outside the vocabulary"),
        (&["--tokens", "1", "--temperature", "-1"], "`temperature` is -1"),
        (&["--tokens", "1", "--top-p", "2"], "`top_p` is 2"),
        (&["--tokens", "1", "--max-new-tokens", "500"], "positions: at most"),
        (&["--tokens", "1", "--stop", "word"], "--stop"),
        (&["--hooks", &typo], "zero_ablate"),
        (&["--hooks", &unknown], "unknown section"),
        (&["--hooks", &option], "no point matches"),
        (&["--hooks", &missing], "no.safetensors"),
        (&["--hooks", &training], "training runs only"),
        (&["--hooks", &empty], "[[hooks]]"),
    ];
    for (more, part) in cases {
        let more = if more.first() == Some(&"--hooks") { [&one[..], more].concat() } else { more.to_vec() };
        let ran = generate("gpt2", &more);
        assert_eq!(ran.code, Some(2), "{more:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(part) && ran.stdout.is_empty(), "{more:?}: {}", ran.stderr);
    }
    let ran = tenterhook(&["generate", "./no-such-model", "--tokens", "1"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(tenterhook(&["generate", "--help"]).stdout.contains("Examples:"));
}

#[test]
fn a_hook_that_comes_and_goes_cannot_edit_what_is_cached() {
    let dir = tempfile::tempdir().unwrap();
    let hooks = dir.path().join("hooks.toml");
    for option in ["every = 2", "sample_rate = 0.5"] {
        fs::write(
            &hooks,
            format!("[[hooks]]\nkind = \"zero_ablate\"\npoints = \"blocks.0.hook_mlp_out\"\n{option}\n"),
        )
        .unwrap();
        let args =
            ["--tokens", "1,2,3", "--max-new-tokens", "4", "--hooks", hooks.to_str().unwrap(), "--json"];
        let ran = generate("gpt2", &args);
        assert_eq!((ran.code, ran.stderr.contains("in some passes only")), (Some(2), true), "{}", ran.stderr);
        json_of(&generate("gpt2", &[&args[..], &["--no-cache"]].concat()));
    }
}

#[test]
fn what_is_read_is_not_written_over() {
    let model = copy_of("gpt2");
    let weights = model.path().join("model.safetensors");
    let before = fs::read(&weights).unwrap();
    let (dir, out) = (model.path().to_str().unwrap(), weights.to_str().unwrap());
    let ids = model.path().join("../ids-not-overwritten.json");
    fs::write(&ids, "[[1, 2]]").unwrap();
    let file = ids.to_str().unwrap();
    let cases: [&[&str]; 4] = [
        &["generate", dir, "--tokens", "1", "--logits", out],
        &["capture", dir, "--tokens-file", file, "--points", "0", "--out", out],
        &["lens", dir, "--tokens", "1,2", "--html", file],
        &["heads", dir, "--texts", "1000000000000"],
    ];
    for args in cases {
        let ran = tenterhook(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{args:?}: {}", ran.stderr);
    }
    assert_eq!(fs::read(&weights).unwrap(), before);
    assert_eq!(fs::read_to_string(&ids).unwrap(), "[[1, 2]]");
    fs::remove_file(&ids).unwrap();
}

#[test]
fn an_edit_that_reaches_nothing_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let hooks = dir.path().join("hooks.toml");
    fs::write(
        &hooks,
        "[[hooks]]\nkind = \"zero_ablate\"\npoints = \"blocks.0.hook_mlp_out\"\npositions = 15\n",
    )
    .unwrap();
    let args = ["--tokens", "1,2,3", "--max-new-tokens", "4", "--hooks", hooks.to_str().unwrap()];
    let ran = generate("gpt2", &args);
    assert!(ran.stderr.contains("`zero_ablate` was called 4 times and changed no element"), "{}", ran.stderr);
    let told = json_of(&generate("gpt2", &[&args[..], &["--json"]].concat()));
    assert_eq!(told["warnings"].as_array().unwrap().len(), 1);
}
