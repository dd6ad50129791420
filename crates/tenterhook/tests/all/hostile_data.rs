//! Data that cannot be trained on is found before the first step: exit code 2, the key and the file named, no run made.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::lab::Lab;

const CONFIG: &str = r#"
[model]
kind = "gpt"
vocab = 300
context = 16
d_model = 16
n_heads = 2
n_layers = 1
d_mlp = 16

[data.train]
kind = "KIND"
path = "PATH"
block = 16
batch = 2

[train]
steps = 2

[[optimizer]]
kind = "adamw"
lr = 1e-3
"#;

fn check(lab: &Lab, kind: &str, path: &str, expected: &str) {
    lab.write("run.toml", CONFIG.replace("KIND", kind).replace("PATH", path));
    let began = Instant::now();
    let ran = lab.run(&["train", "run.toml"]);
    let what = format!("{kind} from {path}");
    assert_eq!(ran.code, Some(2), "{what}: {}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("data.train") && ran.stderr.contains(expected), "{what}: {}", ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{what}: {}", ran.stderr);
    assert!(!lab.path().join("runs").exists(), "{what}: a run was made");
    assert!(began.elapsed() < Duration::from_secs(60), "{what}: took {:?}", began.elapsed());
}

#[test]
fn p33_what_is_no_file_is_refused() {
    let lab = Lab::new();
    fs::create_dir(lab.path().join("folder")).unwrap();
    let made = Command::new("mkfifo").arg(lab.path().join("pipe")).status();
    for kind in ["tokens", "text", "jsonl"] {
        check(&lab, kind, "folder", "not a regular file");
        check(&lab, kind, "nowhere.bin", "there is no file nowhere.bin");
        if cfg!(target_os = "linux") {
            check(&lab, kind, "/dev/zero", "not a regular file");
            check(&lab, kind, "/dev/null", "not a regular file");
        }
        if made.as_ref().is_ok_and(|status| status.success()) {
            check(&lab, kind, "pipe", "not a regular file");
        }
    }
    // The same for the configuration itself: nobody writes into the pipe, so opening it would wait for ever.
    if made.is_ok_and(|status| status.success()) {
        fs::rename(lab.path().join("pipe"), lab.path().join("pipe.toml")).unwrap();
        let ran = lab.run(&["train", "pipe.toml"]);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(
            ran.stderr.contains("pipe.toml") && ran.stderr.contains("not a regular file"),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn p33_too_little_data_is_refused() {
    let lab = Lab::new();
    lab.write("empty", "");
    lab.write("short", [1, 0].repeat(16));
    lab.write("odd", [1; 101]);
    check(&lab, "tokens", "empty", "has 0 tokens");
    check(&lab, "text", "empty", "has 0 tokens");
    check(&lab, "jsonl", "empty", "has 0 tokens");
    check(&lab, "tokens", "short", "has 16 tokens");
    check(&lab, "tokens", "odd", "101 bytes");
    lab.write("short.txt", "sixteen letters.");
    check(&lab, "text", "short.txt", "has 16 tokens");
}

#[test]
fn p33_data_that_does_not_fit_the_model_is_refused() {
    let lab = Lab::new();
    let mut tokens = [7u8, 0].repeat(100);
    tokens[100..102].copy_from_slice(&300u16.to_le_bytes());
    lab.write("beyond", &tokens);
    check(&lab, "tokens", "beyond", "token 50");
    lab.write("broken.jsonl", "{\"text\": \"fine\"}\n{\"text\": ");
    check(&lab, "jsonl", "broken.jsonl", "line 2");
    lab.write("other.jsonl", "{\"body\": \"fine\"}\n");
    check(&lab, "jsonl", "other.jsonl", "`body`");
    let wide = CONFIG.replace("KIND", "text").replace("PATH", "t.txt").replace("vocab = 300", "vocab = 100");
    lab.write("t.txt", "a".repeat(1000));
    lab.write("run.toml", wide);
    let ran = lab.run(&["train", "run.toml"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("256") && ran.stderr.contains("100"), "{}", ran.stderr);
    // The longest example the model takes has 16 tokens.
    let long = CONFIG.replace("KIND", "text").replace("PATH", "t.txt").replace("block = 16", "block = 17");
    lab.write("run.toml", long);
    let ran = lab.run(&["train", "run.toml"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("block"), "{}", ran.stderr);
}
