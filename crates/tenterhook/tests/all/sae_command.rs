//! `tenterhook sae train|eval|top`.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use serde_json::Value;
use tenterhook::hooks::random::Stream;
use tenterhook::lens::{CaptureToOptions, LanguageModel, LocalStore, StoreOptions};
use tenterhook::models::Transformer;
use tenterhook::models::config::TransformerConfig;
use tenterhook::models::files::save_model;
use tenterhook::sae::Sae;

use crate::support::*;

const POINT: &str = "blocks.1.hook_resid_post";

/// A tiny model with a tokenizer of bytes, and a file of texts.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), tokenizer()).unwrap();
        let config = TransformerConfig::gpt2(40, 32, 8, 2, 2);
        let model = Transformer::init(config, 3, DType::F32, &Device::Cpu).unwrap();
        let tensors: Vec<_> =
            model.params().iter().map(|param| (param.name().to_string(), param.value().clone())).collect();
        let tokenizer = dir.path().join("tokenizer.json");
        save_model(&dir.path().join("model"), &model.config_json(), &tensors, Some(&tokenizer)).unwrap();
        let random = Stream::new(5);
        let word = |i: u64| {
            (0..12).map(|j| char::from(b'a' + random.below(i * 12 + j, 26) as u8)).collect::<String>()
        };
        let texts: Vec<String> = (0..40).map(word).collect();
        fs::write(dir.path().join("texts.txt"), texts.join("\n")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_string()
    }

    /// The arguments of a training that works.
    fn train(&self, out: &str, more: &[&str]) -> Vec<String> {
        let (model, file, out) = (self.text("model"), self.text("texts.txt"), self.text(out));
        let usual = [
            "sae",
            "train",
            &model,
            "--points",
            POINT,
            "--file",
            &file,
            "--out",
            &out,
            "--k",
            "3",
            "--expansion",
            "4",
            "--batch",
            "32",
            "--steps",
            "12",
            "--context",
            "16",
            "--lr",
            "1e-2",
            "--metrics-every",
            "1",
            "--buffer",
            "200",
            "--checkpoint-every",
            "5",
        ];
        // What is given again is given in place of the usual.
        let own = |pair: &&[&str]| pair[0] == "--points" || !more.contains(&pair[0]);
        let (head, options) = usual.split_at(3);
        let options = options.chunks(2).filter(own).flatten();
        head.iter().chain(options).chain(more).map(|word| word.to_string()).collect()
    }

    fn sae(&self) -> String {
        self.text(&format!("run/saes/{POINT}"))
    }
}

/// Every letter is a token.
fn tokenizer() -> String {
    let mut vocab: Vec<String> =
        (b'a'..=b'z').map(|c| format!("\"{}\": {}", char::from(c), c - b'a')).collect();
    vocab.push("\"<unk>\": 26".to_string());
    format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {{"type": "Split", "pattern": {{"Regex": "."}}, "behavior": "Isolated", "invert": false}},
        "post_processor": null, "decoder": {{"type": "Fuse"}},
        "model": {{"type": "WordLevel", "vocab": {{{}}}, "unk_token": "<unk>"}}}}"#,
        vocab.join(", ")
    )
}

fn ok(args: &[impl AsRef<std::ffi::OsStr>]) -> Ran {
    let ran = tenterhook(args);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stdout))
}

#[test]
fn an_autoencoder_is_trained_measured_and_looked_at() {
    let scene = Scene::new();
    let ran = ok(&scene.train("run", &["--json", "--points", "blocks.0.attn.hook_z"]));
    let told = json(&ran);
    assert_eq!((told["status"].as_str(), told["steps"].as_u64()), (Some("completed"), Some(12)));
    assert!(told["metrics"][format!("sae/{POINT}/explained_variance")].as_f64().is_some(), "{told}");
    assert_eq!(told["saes"].as_array().unwrap().len(), 2);
    assert!(told["receipts"].as_array().unwrap().iter().any(|hook| hook["kind"] == "sae_training"));
    let sae = Sae::load(Path::new(&scene.sae())).unwrap();
    assert_eq!((sae.config().d_in, sae.config().d_sae, sae.config().hook_name()), (8, 32, Some(POINT)));
    assert!(scene.path("run/run.json").is_file() && scene.path("run/metrics.jsonl").is_file());
    let listed = ok(&["runs", "show", "run", "--runs-dir", scene.dir.path().to_str().unwrap()]);
    assert!(listed.stdout.contains("completed"), "{}", listed.stdout);

    let (model, file) = (scene.text("model"), scene.text("texts.txt"));
    for dir in [scene.sae(), scene.text("run/saes/blocks.0.attn.hook_z")] {
        let page = scene.text("eval.html");
        let eval =
            ["sae", "eval", &model, &dir, "--file", &file, "--context", "16", "--json", "--html", &page];
        let told = json(&ok(&eval));
        let found = &told["evaluation"];
        assert!(
            found["l0"].as_f64().unwrap() <= 3.0 && found["explained_variance"].as_f64().unwrap() > 0.0,
            "{found}"
        );
        let loss = &found["cross_entropy"];
        assert!(loss["ce_loss_score"].as_f64().is_some_and(f64::is_finite), "{loss}");
        assert!(told["receipts"].as_array().unwrap().iter().any(|hook| hook["kind"] == "sae"), "{told}");
        self_contained(&page);
    }

    fs::write(scene.path("names.csv"), "latent,name\n5,the fifth\n").unwrap();
    let (names, page) = (scene.text("names.csv"), scene.text("top.html"));
    let top = ["sae", "top", &model, &scene.sae(), "--file", &file, "--names", &names, "--html", &page];
    let by_name = json(&ok(&[&top[..], &["--latents", "the fifth,7", "--json"]].concat()));
    let latents = by_name["latents"].as_array().unwrap();
    assert_eq!(
        (latents[0]["latent"].as_u64(), latents[0]["name"].as_str(), latents.len()),
        (Some(5), Some("the fifth"), 2)
    );
    self_contained(&page);
    let ran = ok(&top);
    assert!(ran.stdout.contains("[[") && ran.stdout.contains("tokens"), "{}", ran.stdout);
    let all = json(&ok(&[&top[..], &["--json", "--limit", "4"]].concat()));
    let all = all["latents"].as_array().unwrap();
    assert!(all.len() <= 4 && !all.is_empty());
    for text in all.iter().flat_map(|latent| latent["texts"].as_array().unwrap()) {
        let place = text["position"].as_u64().unwrap() - text["start"].as_u64().unwrap();
        let (strongest, at) =
            (text["activation"].as_f64().unwrap(), text["activations"][place as usize].as_f64().unwrap());
        assert!((strongest - at).abs() < 1e-5, "{text}");
    }
}

fn self_contained(page: &str) {
    let html = fs::read_to_string(page).unwrap();
    assert!(html.contains("Plotly.newPlot") && !html.contains("<script src") && !html.contains("<link"));
}

#[test]
fn p04_a_training_goes_on_where_it_was() {
    let scene = Scene::new();
    ok(&scene.train("straight", &["--quiet"]));
    ok(&scene.train("run", &["--quiet", "--steps", "7"]));
    let again = scene.train("run", &["--quiet", "--resume"]);
    ok(&again);
    let read =
        |out: &str| fs::read(scene.path(&format!("{out}/saes/{POINT}/sae_weights.safetensors"))).unwrap();
    assert_eq!(read("straight"), read("run"));
    let changed = scene.train("run", &["--resume", "--arch", "gated"]);
    let ran = tenterhook(&changed);
    assert!(ran.code == Some(2) && ran.stderr.contains("What changed"), "{}", ran.stderr);
}

#[test]
fn activations_come_from_a_store_too() {
    let scene = Scene::new();
    let lm = LanguageModel::from_pretrained(&scene.text("model")).unwrap();
    let store = LocalStore::new(scene.path("store"));
    let mut writer = store.create("one", StoreOptions::default()).unwrap();
    let texts = fs::read_to_string(scene.path("texts.txt")).unwrap();
    let options = CaptureToOptions::points(vec![POINT, "blocks.0.attn.hook_z"]);
    lm.capture_to(&mut writer, texts.lines(), &options, |_| {}).unwrap();
    writer.finish().unwrap();
    let store = scene.text("store");
    let args: Vec<String> = scene.train(
        "run",
        &["--store", &store, "--arch", "standard", "--json", "--points", "blocks.0.attn.hook_z"],
    );
    let args: Vec<&str> = args
        .iter()
        .map(String::as_str)
        .filter(|word| *word != "--file" && !word.ends_with("texts.txt"))
        .collect();
    // What is stored has its context already.
    let ran = tenterhook(&args);
    assert_eq!((ran.code, ran.stderr.contains("--context")), (Some(2), true), "{}", ran.stderr);
    let args: Vec<&str> = args.iter().copied().filter(|word| !["--context", "16"].contains(word)).collect();
    let told = json(&ok(&args));
    assert_eq!(told["saes"].as_array().unwrap().len(), 2);
    let other = scene.text("other");
    let globbed: Vec<&str> = args
        .iter()
        .map(|word| match *word {
            "blocks.0.attn.hook_z" => "blocks.*.hook_[zq]",
            word if word == scene.text("run") => &other,
            word => word,
        })
        .collect();
    assert_eq!(json(&ok(&globbed))["saes"].as_array().unwrap().len(), 2);
    let sae = Sae::load(&scene.path("run/saes/blocks.0.attn.hook_z")).unwrap();
    assert_eq!(sae.config().reshape_activations.name(), "hook_z");
}

#[test]
fn every_architecture_and_normalisation_trains() {
    let scene = Scene::new();
    for (i, more) in [
        &["--arch", "standard", "--normalize", "layer_norm", "--unit-norm-decoder"][..],
        &["--arch", "batchtopk", "--normalize", "expected_average_only_in"],
        &["--arch", "jumprelu", "--sparsity", "tanh", "--normalize", "constant_norm_rescale"],
        &["--arch", "gated", "--resample-every", "3", "--dead-after", "1", "--no-b-dec-on-input"],
        &["--arch", "jumprelu", "--sparsity", "quadratic", "--target-l0", "3"],
    ]
    .iter()
    .enumerate()
    {
        let out = format!("run{i}");
        ok(&scene.train(&out, &[more, &["--quiet"][..]].concat()));
        Sae::load(&scene.path(&format!("{out}/saes/{POINT}"))).unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_before_any_work() {
    let scene = Scene::new();
    let refused = |args: &[String], expected: &str| {
        let ran = tenterhook(args);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(expected) && !ran.stderr.contains("panicked"), "{}", ran.stderr);
        assert!(!scene.path("bad").exists(), "nothing is left behind");
    };
    let train = |more: &[&str]| scene.train("bad", more);
    refused(&train(&["--points", "blocks.9.hook_resid_post"]), "blocks.9.hook_resid_post");
    refused(&train(&["--points", "blocks.0.attn.hook_pattern"]), "one vector per token");
    refused(&train(&["--points", "blocks.0.attn.hook_q"]), "knows only hook_z");
    refused(&train(&["--k", "99"]), "`k` is 99");
    refused(&train(&["--k", "2.5"]), "whole number");
    refused(&train(&["--arch", "jumprelu", "--sparsity", "quadratic"]), "target_l0");
    refused(&train(&["--resume"]), "there is no run");
    refused(&train(&["--store", "nowhere"]), "cannot be used with");
    refused(&train(&["--lr", "nan"]), "lr");
    refused(&train(&["--batch", "0"]), "0");
    refused(&train(&["--skip-first", "99"]), "no activations");
    let without: Vec<String> =
        train(&[]).iter().map(|word| word.replace("texts.txt", "missing.txt")).collect();
    refused(&without, "missing.txt");
    let taken = scene.train("model", &[]);
    let ran = tenterhook(&taken);
    assert!(ran.code == Some(2) && ran.stderr.contains("is there already"), "{}", ran.stderr);
    let (model, file) = (scene.text("model"), scene.text("texts.txt"));
    let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
    refused(&words(&["sae", "eval", &model, &model, "--file", &file]), "has no cfg.json");
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sae/tests/data/topk");
    let other = other.to_str().unwrap();
    refused(
        &words(&["sae", "top", &model, other, "--file", &file, "--latents", "24"]),
        "there is no latent 24",
    );
    refused(
        &words(&["sae", "top", &model, other, "--file", &file, "--latents", "days"]),
        "no latent is named `days`",
    );
    refused(
        &words(&["sae", "eval", &model, other, "--file", &file, "--point", "blocks.0.mlp.hook_post"]),
        "width 8",
    );
    for command in ["train", "eval", "top"] {
        assert!(ok(&["sae", command, "--help"]).stdout.contains("Example"));
    }
}

/// A latent is steered while a model generates, by the hook in a file.
#[test]
fn a_latent_is_steered_by_a_hooks_file() {
    let scene = Scene::new();
    ok(&scene.train("run", &["--quiet"]));
    let hooks = |latents: &str| {
        let text = format!("[[hooks]]\nkind = \"sae\"\npath = \"run/saes/{POINT}\"\nlatents = [{latents}]\n");
        fs::write(scene.path("hooks.toml"), text).unwrap();
        let (model, file) = (scene.text("model"), scene.text("hooks.toml"));
        let base =
            ["generate", &model, "--tokens", "1,2,3", "--max-new-tokens", "6", "--json", "--hooks", &file];
        let (cached, whole) = (json(&ok(&base)), json(&ok(&[&base[..], &["--no-cache"]].concat())));
        assert_eq!(cached["generations"], whole["generations"]);
        assert!(cached["receipts"][0]["edits"].as_u64().unwrap() >= 6, "{cached}");
        cached["generations"][0]["new_tokens"].clone()
    };
    let none = hooks("{latent = 0, scale = 1.0}");
    let all: Vec<Value> =
        (0..6).map(|latent| hooks(&format!("{{latent = {latent}, set = 200.0}}"))).collect();
    assert!(all.iter().any(|tokens| *tokens != none), "{none} {all:?}");
}

#[test]
fn sizes_that_no_machine_has_are_refused_before_any_work() {
    let scene = Scene::new();
    for more in [["--expansion", "1000000000000"], ["--batch", "1000000000000"]] {
        let ran = tenterhook(&scene.train("run", &more));
        assert_eq!(ran.code, Some(2), "{more:?}: {}", ran.stderr);
        assert!(
            ran.stderr.contains("GiB of memory") && !scene.path("run").exists(),
            "{more:?}: {}",
            ran.stderr
        );
    }
}
