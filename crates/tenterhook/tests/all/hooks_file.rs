//! One file of hooks runs unchanged while a model trains, in inference and while it generates.

use serde_json::Value;

use crate::lab::{Lab, TINY};

const HOOKS: &str = r#"
[[hooks]]
kind = "capture"
points = "blocks.0.hook_resid_post"
positions = 0
retention = "last"

[[hooks]]
kind = "activation_stats"
points = "blocks.0.hook_mlp_out"

[[hooks]]
kind = "zero_ablate"
points = "blocks.0.attn.hook_z"
heads = [1]
"#;

fn receipt<'a>(receipts: &'a Value, kind: &str) -> &'a Value {
    let all = receipts.as_array().or_else(|| receipts["hooks"].as_array()).unwrap();
    all.iter().find(|hook| hook["kind"] == kind).unwrap_or_else(|| panic!("no {kind} in {receipts}"))
}

#[test]
fn the_same_hooks_train_capture_and_generate() {
    let lab = Lab::with(TINY);
    lab.write("hooks.toml", HOOKS);
    lab.ok(&["train", "run.toml", "--hooks", "hooks.toml"]);
    let receipts: Value =
        serde_json::from_slice(&std::fs::read(lab.run_dir("tiny").join("receipts.json")).unwrap()).unwrap();
    assert!(receipt(&receipts, "zero_ablate")["elements_changed"].as_u64().unwrap() > 0);
    assert!(receipt(&receipts, "capture")["bytes_captured"].as_u64().unwrap() > 0);
    assert!(lab.metrics("tiny").iter().any(|row| row.get("act/blocks.0.hook_mlp_out/mean").is_some()));
    let recorded = lab.record("tiny");
    assert_eq!(receipt(&recorded["hooks"], "zero_ablate")["options"]["heads"], serde_json::json!([1]));

    // The record has them: a rerun needs no file of hooks.
    lab.ok(&["runs", "rerun", "tiny"]);

    let checkpoint = lab.checkpoint("tiny");
    let args = ["generate", checkpoint.to_str().unwrap(), "--tokens", "1,2,3", "--max-new-tokens", "4"];
    let ran = lab.ok(&[&args[..], &["--hooks", "hooks.toml", "--captures", "kept", "--json"]].concat());
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    // The prompt's head and those of the three tokens after it: 16 numbers of the stream, 8 of each head.
    assert_eq!(receipt(&told["receipts"], "zero_ablate")["edits"], 4);
    assert!(receipt(&told["receipts"], "zero_ablate")["elements_changed"].as_u64().unwrap() > 0);
    assert!(told["metrics"]["act/blocks.0.hook_mlp_out/mean"].is_f64());
    assert_eq!(receipt(&told["receipts"], "capture")["bytes_captured"], 16 * 4);

    lab.write("ids.json", "[[1, 2, 3], [4, 5, 6]]");
    for out in ["kept.safetensors", "store"] {
        let args = ["capture", checkpoint.to_str().unwrap(), "--tokens-file", "ids.json"];
        let ran = lab.ok(&[&args[..], &["--hooks", "hooks.toml", "--out", out, "--json"]].concat());
        let told: Value = serde_json::from_str(&ran.stdout).unwrap();
        // Two texts of three tokens, eight numbers of the head each.
        assert_eq!(receipt(&told["receipts"], "zero_ablate")["elements_changed"], 2 * 3 * 8, "{out}");
        assert!(told["metrics"]["act/blocks.0.hook_mlp_out/mean"].is_f64(), "{out}: {told}");
    }
    let kept = candle_core::safetensors::load(lab.path().join("kept.safetensors"), &candle_core::Device::Cpu)
        .unwrap();
    assert_eq!(kept["blocks.0.hook_resid_post"].dims(), [2, 1, 16]);
}

#[test]
fn gradients_that_will_never_come_are_told() {
    let lab = Lab::with(TINY);
    lab.ok(&["train", "run.toml"]);
    lab.write(
        "hooks.toml",
        "[[hooks]]\nkind = \"capture\"\npoints = \"blocks.0.hook_resid_post\"\ngradients = true\n",
    );
    lab.write("ids.json", "[[1, 2, 3]]");
    let checkpoint = lab.checkpoint("tiny");
    let args = [
        "capture",
        checkpoint.to_str().unwrap(),
        "--tokens-file",
        "ids.json",
        "--hooks",
        "hooks.toml",
        "--out",
        "x.safetensors",
    ];
    let ran = lab.ok(&args);
    assert!(ran.stderr.contains("`capture` listens to gradients, and there are none here"), "{}", ran.stderr);
    let ran = lab.ok(&[&args[..], &["--gradients"]].concat());
    assert!(!ran.stderr.contains("gradients"), "{}", ran.stderr);
    let kept =
        candle_core::safetensors::load(lab.path().join("x.safetensors"), &candle_core::Device::Cpu).unwrap();
    assert!(
        kept.contains_key("blocks.0.hook_resid_post") && kept.contains_key("grad.blocks.0.hook_resid_post")
    );
}

#[test]
fn files_are_looked_for_beside_the_file_that_names_them() {
    let lab = Lab::with(TINY);
    std::fs::create_dir(lab.path().join("sub")).unwrap();
    let vector = candle_core::Tensor::ones(16, candle_core::DType::F32, &candle_core::Device::Cpu).unwrap();
    let path = lab.path().join("sub/v.safetensors");
    candle_core::safetensors::save(&[("vector", vector)].into(), path).unwrap();
    let steer = "[[hooks]]\nkind = \"steer\"\npoints = \"blocks.0.hook_resid_post\"\nvector = \"v.safetensors\"\nstrength = 0.1\n";
    lab.write("sub/hooks.toml", steer);
    lab.ok(&["train", "run.toml", "--hooks", "sub/hooks.toml", "--set", "train.steps=8"]);
    lab.ok(&["runs", "rerun", "tiny"]);
    // In the configuration itself the file would have to stand beside that.
    lab.write("with.toml", format!("{TINY}\n{steer}").replace("\"tiny\"", "\"other\""));
    let ran = lab.run(&["train", "with.toml"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("v.safetensors"), "{}", ran.stderr);
    let ran = lab.run(&["train", "run.toml", "--hooks", "none.toml", "--set", "run.name=third"]);
    assert_eq!((ran.code, ran.stderr.contains("none.toml")), (Some(2), true), "{}", ran.stderr);
}
