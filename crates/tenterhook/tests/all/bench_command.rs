//! `tenterhook bench`: what it counts, what it refuses. How long anything takes decides nothing here.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use serde_json::Value;

use crate::support::*;

/// Runs a bench command with two rounds, and one before them, and reads its JSON.
fn bench(args: &[&str]) -> Value {
    let ran = tenterhook(&[&["bench"], args, &["--repeat", "2", "--warmup", "1", "--json"]].concat());
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

/// A bench command that is refused, and what is said then.
fn refused(args: &[&str]) -> String {
    let ran = tenterhook(&[&["bench"], args].concat());
    assert_eq!(ran.code, Some(2), "{args:?}: {}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.stdout, "", "{args:?}");
    ran.stderr
}

fn gpt2() -> String {
    model("gpt2").to_str().unwrap().to_string()
}

/// What every command tells.
fn check_common(told: &Value) {
    for key in ["median_ms", "min_ms", "tokens_per_s", "threads"] {
        assert!(told[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {told}");
    }
    assert!(told["min_ms"].as_f64() <= told["median_ms"].as_f64());
    if cfg!(target_os = "linux") {
        assert!(told["peak_rss_mb"].as_f64().is_some_and(|value| value > 1.0), "{told}");
    }
}

fn steering(dir: &Path) -> PathBuf {
    let vector = Tensor::full(3f32, 24, &Device::Cpu).unwrap();
    candle_core::safetensors::save(&[("vector", vector)].into(), dir.join("vector.safetensors")).unwrap();
    let hooks = dir.join("steer.toml");
    let text = "[[hooks]]\nkind = \"steer\"\npoints = \"blocks.0.hook_resid_post\"\nvector = \"vector.safetensors\"\n";
    fs::write(&hooks, text).unwrap();
    hooks
}

#[test]
fn a_forward_counts_its_tokens_points_and_bytes() {
    let bare = bench(&["forward", &gpt2(), "--batch", "2", "--seq", "5"]);
    check_common(&bare);
    assert_eq!((&bare["tokens"], &bare["points"], &bare["hooks"]), (&10.0.into(), &0.into(), &0.into()));
    assert_eq!(bare["times_ms"].as_array().unwrap().len(), 2);
    let points = ["--points", "blocks.*.hook_resid_post"];
    let watched = bench(&[&["forward", &gpt2(), "--batch", "2", "--seq", "5"][..], &points[..]].concat());
    assert_eq!((&watched["points"], &watched["bytes"]), (&2.into(), &(2 * 2 * 5 * 24 * 4).into()));
    assert_eq!(watched["flops"], bare["flops"], "hooks are not the model's work");
}

#[test]
fn logits_are_those_of_the_documented_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let config: Value =
        serde_json::from_str(&fs::read_to_string(model("gpt2").join("config.json")).unwrap()).unwrap();
    let vocab = config["vocab_size"].as_u64().unwrap();
    let ids: Vec<u64> = (0..8).map(|i| (7919 * i + 17) % vocab).collect();
    fs::write(path("ids.json"), serde_json::json!([&ids[..4], &ids[4..]]).to_string()).unwrap();
    bench(&["forward", &gpt2(), "--batch", "2", "--seq", "4", "--logits", &path("a.safetensors")]);
    bench(&["forward", &gpt2(), "--tokens-file", &path("ids.json"), "--logits", &path("b.safetensors")]);
    let logits = |name: &str| {
        let mut all = candle_core::safetensors::load(path(name), &Device::Cpu).unwrap();
        all.remove("logits").unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    assert_eq!(logits("a.safetensors"), logits("b.safetensors"));
}

#[test]
fn hooks_of_a_file_take_part() {
    let dir = tempfile::tempdir().unwrap();
    let hooks = steering(dir.path());
    let hooks = hooks.to_str().unwrap();
    let forward = bench(&["forward", &gpt2(), "--seq", "4", "--hooks", hooks]);
    assert_eq!((&forward["hooks"], &forward["edits"]), (&1.into(), &1.into()));
    let args = ["generate", &gpt2(), "--prompt-tokens", "3", "--new-tokens", "4"];
    let steered = bench(&[&args[..], &["--hooks", hooks]].concat());
    check_common(&steered);
    assert_eq!(steered["edits"], 4, "at every token");
    assert_eq!(steered["new_tokens"].as_array().unwrap().len(), 4);
    assert_eq!(bench(&args)["hooks"], 0);
}

#[test]
fn a_generation_is_that_of_generate() {
    let told = bench(&["generate", &gpt2(), "--prompt-tokens", "3", "--new-tokens", "5"]);
    let config: Value =
        serde_json::from_str(&fs::read_to_string(model("gpt2").join("config.json")).unwrap()).unwrap();
    let vocab = config["vocab_size"].as_u64().unwrap();
    let prompt: Vec<String> = (0..3).map(|i| ((7919 * i + 17) % vocab).to_string()).collect();
    let args = ["generate", &gpt2(), "--tokens", &prompt.join(","), "--max-new-tokens", "5", "--json"];
    let plain: Value = serde_json::from_str(&tenterhook(&args).stdout).unwrap();
    let made = told["new_tokens"].as_array().unwrap();
    let expected = plain["generations"][0]["new_tokens"].as_array().unwrap();
    assert_eq!(made[..expected.len()], expected[..], "a token that ends a text ends only the latter");
}

fn configuration(dir: &Path) -> String {
    let path = dir.join("run.toml");
    let text = "[model]\nkind = \"gpt\"\nvocab = 16\ncontext = 16\nd_model = 16\nn_heads = 2\nn_layers = 2\n\
                [data.train]\nkind = \"induction\"\nvocab = 16\nblock = 16\nbatch = 4\n\
                [train]\nsteps = 2\ngrad_clip = 1.0\n[[optimizer]]\nkind = \"adamw\"\nlr = 1e-3\n\
                [[hooks]]\nkind = \"lr_monitor\"\n[[hooks]]\nkind = \"json_log\"\nlog_every_n_batches = 1\n";
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn training_takes_real_steps_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = configuration(dir.path());
    let told = bench(&["train", &config]);
    check_common(&told);
    let losses = told["losses"].as_array().unwrap();
    assert_eq!(losses.len(), 3, "the one before the timed two is told as well");
    assert_eq!(told["inputs"], serde_json::json!([[4, 16]]));
    assert_eq!(told["tensors_with_gradient"], 28);
    let hooks = told["hooks"].to_string();
    assert!(hooks.contains("lr_monitor") && hooks.contains("json_log"), "{hooks}");
    let bare = bench(&["train", &config, "--bare"]);
    assert!(!bare["hooks"].to_string().contains("lr_monitor"));
    assert_eq!(&bare["losses"], &told["losses"], "who looks on changes no bit");
    let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["run.toml"]);
}

#[test]
fn products_are_those_of_the_model() {
    let told = bench(&["matmul", "--model", &gpt2(), "--batch", "2", "--seq", "5", "--training"]);
    let products = told["products"].as_array().unwrap();
    assert_eq!(products.len(), 15);
    assert_eq!(products[0]["shape"], serde_json::json!([10, 24, 72]));
    let forward = bench(&["forward", &gpt2(), "--batch", "2", "--seq", "5"]);
    let attention = 2.0 * 2.0 * 15.0 * 4.0 * 24.0;
    assert_eq!(told["flops"].as_f64().unwrap() / 3.0 + attention, forward["flops"].as_f64().unwrap());
    assert!(told["best_gflops"].as_f64() >= told["limit_gflops"].as_f64());
    let dir = tempfile::tempdir().unwrap();
    let told = bench(&["matmul", "--config", &configuration(dir.path())]);
    assert_eq!(told["products"][0]["shape"], serde_json::json!([64, 16, 48]));
    let told = bench(&["matmul", "--shape", "3x4x5"]);
    assert_eq!(told["flops"], 120.0);
}

#[test]
fn autoencoders_stores_and_growth_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let start = dir.path().join("start");
    let sae = ["sae", "--d-in", "8", "--d-sae", "16", "--k", "2", "--batch", "4"];
    let told = bench(&[&sae[..], &["--save-start", start.to_str().unwrap()]].concat());
    check_common(&told);
    assert_eq!((&told["tensors_with_gradient"], told["losses"].as_array().unwrap().len()), (&4.into(), 3));
    assert!(start.join("sae_weights.safetensors").is_file());

    let below = dir.path().join("below");
    fs::create_dir(&below).unwrap();
    let points = ["--points", "blocks.*.hook_resid_post", "--dir", below.to_str().unwrap()];
    let told = bench(&[&["capture", &gpt2(), "--sequences", "3", "--seq", "4"][..], &points[..]].concat());
    check_common(&told);
    assert!(told["bytes"].as_u64().unwrap() >= 2 * 3 * 4 * 24 * 4, "{told}");
    for key in ["mb_per_s", "disk_mb_per_s", "model_ms"] {
        assert!(told[key].as_f64().is_some_and(|value| value > 0.0), "{key}");
    }
    assert_eq!(fs::read_dir(&below).unwrap().count(), 0, "what was written is gone");

    let told = bench(&["growth", "--quick"]);
    assert_eq!(told["tokens"].as_array().unwrap().len(), 4);
    assert!((told["layers"][3]["forward"]["expected_exponent"].as_f64().unwrap() - 1.0).abs() < 0.2);
    assert_eq!(told["hooks"][1]["size"], 100);
}

#[test]
fn there_is_text_for_people() {
    let gpt2 = gpt2();
    for (args, words) in [
        (vec!["forward", &gpt2, "--seq", "4", "--points", "*"], ["median", "tokens/s", "captured"]),
        (
            vec!["generate", &gpt2, "--new-tokens", "2", "--prompt-tokens", "2"],
            ["median", "first token", "GFLOP/s"],
        ),
        (vec!["matmul", "--model", &gpt2], ["attn_qkv", "vocabulary", "best"]),
    ] {
        let ran = tenterhook(&[&["bench"], &args[..], &["--repeat", "1"]].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        words.iter().for_each(|word| assert!(ran.stdout.contains(word), "{word}: {}", ran.stdout));
    }
}

#[test]
fn what_cannot_be_is_refused_before_any_work() {
    let gpt2 = gpt2();
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.json");
    fs::write(&tokens, "[[1, 2], [3]]").unwrap();
    let cases: Vec<(Vec<&str>, &str)> = vec![
        (vec!["forward", &gpt2, "--seq", "100000"], "positions"),
        (vec!["forward", &gpt2, "--batch", "1000000000000"], "GiB of memory"),
        (vec!["forward", &gpt2, "--seq", "0"], "at least 1"),
        (
            vec!["forward", &gpt2, "--seq", "4", "--points", "blocks.*.hook_residpost"],
            "nearest: `blocks.0.hook_resid_post`",
        ),
        (vec!["forward", &gpt2, "--tokens-file", tokens.to_str().unwrap()], "equally long"),
        (vec!["forward", "nowhere/at/all"], "nowhere/at/all"),
        (vec!["forward", &gpt2, "--repeat", "0"], "at least 1"),
        (vec!["generate", &gpt2, "--prompt-tokens", "8", "--new-tokens", "1000"], "positions"),
        (vec!["generate", &gpt2, "--prompt-tokens", "99999999999999"], "GiB of memory"),
        (vec!["train", "no-such.toml"], "no-such.toml"),
        (vec!["matmul", "--shape", "3x4"], "three sizes"),
        (vec!["matmul", "--shape", "1000000000x4x1000000000"], "GiB of memory"),
        (vec!["matmul", "--training"], "--model or --config"),
        (vec!["sae", "--d-sae", "1000000000000"], "GiB of memory"),
        (vec!["sae", "--d-in", "8", "--d-sae", "4", "--k", "9"], "k"),
        (vec!["capture", &gpt2, "--seq", "4", "--points", "nothing"], "no point"),
        (vec!["capture", &gpt2, "--points", "*", "--seq", "100000"], "positions"),
        (vec!["capture", &gpt2, "--seq", "4", "--points", "*", "--dir", "no/such/dir"], "no/such/dir"),
    ];
    for (args, words) in cases {
        let told = refused(&args);
        assert!(told.contains(words), "{args:?}: {told}");
    }
}
