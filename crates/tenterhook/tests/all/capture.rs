//! `tenterhook capture`.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::support::*;

fn reference(name: &str) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(model(name).join("reference.safetensors"), &Device::Cpu).unwrap()
}

/// Writes the reference's tokens as JSON and captures with these further arguments.
fn run(name: &str, more: &[&str], out: &Path) -> Ran {
    let ids: Vec<Vec<i64>> = reference(name)["input_ids"].to_dtype(DType::I64).unwrap().to_vec2().unwrap();
    let tokens = out.with_file_name("ids.json");
    std::fs::write(&tokens, serde_json::to_string(&ids).unwrap()).unwrap();
    let mut args = vec!["capture", "DIR", "--tokens-file", "IDS", "--out", "OUT"];
    let dir = model(name);
    args[1] = dir.to_str().unwrap();
    args[3] = tokens.to_str().unwrap();
    args[5] = out.to_str().unwrap();
    args.extend(more);
    tenterhook(&args)
}

fn assert_close(what: &str, got: &Tensor, want: &Tensor) {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let values = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    for (a, b) in values(got).into_iter().zip(values(want)) {
        assert!(a == b || (a - b).abs() <= 5e-5 * b.abs().max(1.0), "{what}: {a} instead of {b}");
    }
}

#[test]
fn writes_values_logits_loss_and_gradients() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.safetensors");
    for name in ["gpt2", "llama", "gemma2", "neox"] {
        let more = [
            "--points",
            "blocks.*.hook_resid_post",
            "--points",
            "blocks.0.attn.hook_pattern",
            "--logits",
            "--gradients",
        ];
        let ran = run(name, &more, &out);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stdout.contains("capture_gradients"), "{}", ran.stdout);
        let (file, want) = (candle_core::safetensors::load(&out, &Device::Cpu).unwrap(), reference(name));
        for key in ["logits", "loss", "grad.blocks.0.hook_resid_post", "grad.blocks.1.hook_resid_post"] {
            assert_close(&format!("{name} {key}"), &file[key], &want[key]);
        }
        for key in ["blocks.1.hook_resid_post", "blocks.0.attn.hook_pattern"] {
            assert_close(&format!("{name} {key}"), &file[key], &want[&format!("point.{key}")]);
        }
    }
}

#[test]
fn a_tensor_is_stored_under_the_name_that_matched() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.safetensors");
    let points = [
        "--points",
        "transformer.h.0",
        "--points",
        "-1",
        "--points",
        "transformer.h.*.attn.c_attn",
        "--points",
        "ln_final.hook_scale",
    ];
    let ran = run("gpt2", &points, &out);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let mut names: Vec<String> =
        candle_core::safetensors::load(&out, &Device::Cpu).unwrap().into_keys().collect();
    names.sort();
    let want = [
        "ln_final.hook_scale",
        "transformer.h.0",
        "transformer.h.0.attn.c_attn",
        "transformer.h.1",
        "transformer.h.1.attn.c_attn",
    ];
    assert_eq!(names, want);
}

#[test]
fn everything_at_once_and_costly_points_only_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.safetensors");
    let ran = run("qwen3", &["--points", "*", "--gradients", "--json"], &out);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let tensors = json["tensors"].as_object().unwrap();
    assert!(
        tensors.contains_key("blocks.1.attn.hook_z") && tensors.contains_key("grad.blocks.1.attn.hook_z")
    );
    assert!(!tensors.contains_key("blocks.0.attn.hook_result"));
    assert!(json["receipts"][0]["fired"].as_u64().unwrap() > 50);
    let ran = run("qwen3", &["--points", "blocks.*.attn.hook_result"], &out);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_close(
        "result",
        &candle_core::safetensors::load(&out, &Device::Cpu).unwrap()["blocks.0.attn.hook_result"],
        &reference("qwen3")["point.blocks.0.attn.hook_result"],
    );
}

#[test]
fn an_existing_file_survives_a_failure_and_is_replaced_on_success() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.safetensors");
    std::fs::write(&out, "precious").unwrap();
    assert_eq!(run("gpt2", &["--points", "nothing_like_this"], &out).code, Some(2));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "precious");
    assert_eq!(run("gpt2", &["--points", "hook_embed"], &out).code, Some(0));
    assert!(candle_core::safetensors::load(&out, &Device::Cpu).unwrap().contains_key("hook_embed"));
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "only the file and the tokens: {left:?}");
}
