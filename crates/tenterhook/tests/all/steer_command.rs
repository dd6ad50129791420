//! `tenterhook steer`.

use std::path::Path;

use candle_core::Device;
use serde_json::Value;

use crate::support::*;

struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let files = Self { dir: tempfile::tempdir().unwrap() };
        files.write("up.txt", "1,2,3\n\n4, 5\n");
        files.write("down.txt", "6,7\n8\n9,10,11\n");
        files
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_string()
    }

    fn steer(&self, model: &Path, more: &[&str]) -> Ran {
        let (up, down) = (self.path("up.txt"), self.path("down.txt"));
        let mut args =
            vec!["steer", model.to_str().unwrap(), "--positive", &up, "--negative", &down, "--token-lines"];
        args.extend(more);
        tenterhook(&args)
    }
}

const POINT: [&str; 2] = ["--points", "blocks.0.hook_resid_post"];
const TRY: [&str; 6] = ["--tokens", "3,17,5", "--strengths", "-6,0,6", "--max-new-tokens", "4"];

fn json(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn a_vector_is_made_written_and_tried() {
    let files = Files::new();
    for name in ["gpt2", "llama", "neox"] {
        let out = files.path(&format!("{name}.safetensors"));
        let more =
            [&POINT[..], &TRY, &["--out", &out, "--answer", "#7", "--wrong", "#23", "--json"]].concat();
        let told = json(&files.steer(&model(name), &more));
        assert_eq!((&told["vector"]["positive"], &told["vector"]["negative"]), (&2.into(), &3.into()));
        let rows = told["sweep"]["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 3);
        assert_eq!((&rows[1]["kl"], &rows[1]["metric"]), (&0.0.into(), &told["sweep"]["unsteered"]));
        assert!(rows[0]["kl"].as_f64().unwrap() > 0.0 && rows[2]["kl"].as_f64().unwrap() > 0.0);
        assert!(rows.iter().all(|row| !row["new_tokens"].as_array().unwrap().is_empty()));
        assert_eq!(told["receipts"][0]["kind"], "steer");
        assert!(told["receipts"][0]["edits"].as_u64().unwrap() > 0);

        // The file does the same from the hooks file of another command.
        let hooks = files.path("hooks.toml");
        let strength = "[[hooks]]\nkind = \"steer\"\npoints = \"blocks.0.hook_resid_post\"\nstrength = 6.0\n";
        files.write("hooks.toml", &format!("{strength}vector = \"{name}.safetensors\"\nkey = \"vector\"\n"));
        let dir = model(name);
        let generate = [
            "generate",
            dir.to_str().unwrap(),
            "--tokens",
            "3,17,5",
            "--max-new-tokens",
            "4",
            "--hooks",
            &hooks,
            "--json",
        ];
        assert_eq!(
            json(&tenterhook(&generate))["generations"][0]["new_tokens"],
            rows[2]["new_tokens"],
            "{name}"
        );
        // And again from the file.
        let again = [
            "steer",
            dir.to_str().unwrap(),
            "--vector",
            &out,
            "--tokens",
            "3,17,5",
            "--strengths",
            "6",
            "--max-new-tokens",
            "4",
            "--json",
        ];
        let again = json(&tenterhook(&again));
        assert_eq!(again["sweep"]["rows"][0]["kl"], rows[2]["kl"]);
        assert_eq!(again["sweep"]["rows"][0]["new_tokens"], rows[2]["new_tokens"]);
        let tensors = candle_core::safetensors::load(&out, &Device::Cpu).unwrap();
        assert_eq!(tensors.keys().collect::<Vec<_>>(), ["vector"]);
    }
}

#[test]
fn people_get_a_table_and_a_page() {
    let files = Files::new();
    let page = files.path("steer.html");
    let more =
        [&POINT[..], &TRY, &["--answer", "#7", "--html", &page, "--pool", "mean", "--normalise"]].concat();
    let ran = files.steer(&model("llama"), &more);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(
        ran.stdout.starts_with(
            "blocks.0.hook_resid_post: means over tokens of 2 prompts less those of 3, length 1.0000"
        ),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("strength  KL"), "{}", ran.stdout);
    assert!(ran.stdout.contains("log probability of #7"), "{}", ran.stdout);
    assert!(ran.stdout.contains("steer"), "receipts: {}", ran.stdout);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("scatter") && html.contains("strength"));
    assert!(["<script src", "<link", "@import"].iter().all(|outside| !html.contains(outside)));
}

#[test]
fn prompts_can_be_text() {
    let (files, dir) = (Files::new(), copy_of("gpt2"));
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer.json");
    std::fs::copy(tokenizer, dir.path().join("tokenizer.json")).unwrap();
    files.write("good.txt", "hello\nhe\n");
    files.write("bad.txt", "ol\n");
    let (good, bad) = (files.path("good.txt"), files.path("bad.txt"));
    let mut args = vec!["steer", dir.path().to_str().unwrap(), "--positive", &good, "--negative", &bad];
    args.extend([
        "--points",
        "-1",
        "--prompt",
        "hell",
        "--strengths",
        "0,9",
        "--max-new-tokens",
        "3",
        "--json",
    ]);
    let told = json(&tenterhook(&args));
    assert_eq!(told["vector"]["point"], "blocks.1.hook_resid_post");
    assert!(told["sweep"]["rows"][1]["text"].is_string());
}

#[test]
fn bad_input_is_told_in_one_message_and_leaves_no_file() {
    let files = Files::new();
    let out = files.path("out.safetensors");
    let told = |more: &[&str], part: &str| {
        let ran = files.steer(&model("gpt2"), more);
        assert_eq!(ran.code, Some(2), "{more:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains(part) && ran.stdout.is_empty(), "{more:?}: {}", ran.stderr);
        assert!(!Path::new(&out).exists());
    };
    let with = |more: &[&'static str]| [&POINT[..], more].concat();
    told(&with(&[]), "give --out FILE for the vector");
    told(&["--tokens", "1"], "--points");
    told(&["--points", "blocks.*.hook_resid_post", "--out", &out], "chooses 2 points");
    told(&["--points", "nowhere", "--out", &out], "no point matches");
    told(&with(&["--tokens", "1", "--strengths", "strong"]), "strong");
    told(&with(&["--tokens", "1", "--strengths", "inf"]), "must be finite");
    told(&with(&["--tokens", "99"]), "outside the vocabulary");
    told(&with(&["--tokens", "1", "--answer", "#99"]), "--answer");
    told(&with(&["--tokens", "1", "--wrong", "#1"]), "--answer");
    told(&with(&["--prompt", "hello"]), "no tokenizer.json");
    told(&with(&["--out", "/nowhere/at/all"]), "/nowhere/at");
    files.write("down.txt", "6,7\n8,x\n");
    told(&[&POINT[..], &["--out", &out]].concat(), "down.txt:2");
    files.write("down.txt", "\n");
    told(&[&POINT[..], &["--out", &out]].concat(), "down.txt: there is no prompt in it");
    let dir = model("gpt2");
    let gone =
        tenterhook(&["steer", dir.to_str().unwrap(), "--vector", &files.path("gone"), "--tokens", "1"]);
    assert_eq!(gone.code, Some(2));
    assert!(gone.stderr.contains("gone"), "{}", gone.stderr);
    files.write("torn", "not safetensors");
    let torn =
        tenterhook(&["steer", dir.to_str().unwrap(), "--vector", &files.path("torn"), "--tokens", "1"]);
    assert_eq!(
        (torn.code, torn.stderr.contains("is no safetensors file")),
        (Some(2), true),
        "{}",
        torn.stderr
    );
    // A vector of another model.
    let llama = files.path("llama.safetensors");
    files.write("down.txt", "6,7\n");
    let made = files.steer(&model("llama"), &[&POINT[..], &["--out", &llama]].concat());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let wrong = tenterhook(&["steer", dir.to_str().unwrap(), "--vector", &llama, "--tokens", "1"]);
    assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("[20]") && wrong.stderr.contains("[24]"), "{}", wrong.stderr);
}

#[test]
fn the_help_has_an_example() {
    let ran = tenterhook(&["steer", "--help"]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.contains("tenterhook steer ./gpt2 --positive"), "{}", ran.stdout);
}
