//! What every analysis promises: JSON that parses, a page that needs nothing else, a help text with an example, one message for bad input.

use std::path::Path;

use serde_json::Value;

use crate::support::*;

/// Runs a command that must work.
pub(crate) fn works(args: &[&str]) -> String {
    let ran = tenterhook(args);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    ran.stdout
}

/// Runs a command that must work, and reads the JSON it prints.
pub(crate) fn json(args: &[&str]) -> Value {
    let told = works(&[args, &["--json"]].concat());
    serde_json::from_str(&told).unwrap_or_else(|error| panic!("{args:?}: {error}: {told}"))
}

/// Runs a command that must be refused before any work is done, in one line that has these words.
pub(crate) fn refused(args: &[&str], words: &[&str]) {
    let ran = tenterhook(args);
    assert_eq!(ran.code, Some(2), "{args:?}: {}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.is_empty(), "{args:?}: {}", ran.stdout);
    assert!(
        ran.stderr.starts_with("error: ") && !ran.stderr.contains("panicked"),
        "{args:?}: {}",
        ran.stderr
    );
    for word in words {
        assert!(ran.stderr.contains(word), "{args:?}: `{word}` is not in: {}", ran.stderr);
    }
}

/// Runs a command that writes a page, and reads it.
pub(crate) fn page(args: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.html");
    works(&[args, &["--html", file.to_str().unwrap()]].concat());
    let page = std::fs::read_to_string(&file).unwrap();
    for outside in ["<script src", "<link", "@import", "cdn.plot.ly/plotly"] {
        assert!(!page.contains(outside), "{args:?}: {outside}");
    }
    assert!(page.contains("Plotly.newPlot(\"plot-1\""), "{args:?}");
    page
}

/// A page that cannot be written is found out before the model is read.
pub(crate) fn page_is_checked_first(args: &[&str]) {
    refused(&[args, &["--html", "/nowhere/at/all.html"]].concat(), &["/nowhere/at"]);
}

/// The help has an example that begins with the command.
pub(crate) fn has_example(command: &str) {
    let told = works(&[command, "--help"]);
    assert!(told.contains("Example") && told.contains(&format!("tenterhook {command} ./")), "{told}");
}

/// The path of a reference model.
pub(crate) fn model_path(name: &str) -> String {
    model(name).to_str().unwrap().to_string()
}

/// A copy of the GPT-2 reference model with a small tokenizer: `hello` is token 11.
pub(crate) fn with_tokenizer() -> tempfile::TempDir {
    let dir = copy_of("gpt2");
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer.json");
    std::fs::copy(tokenizer, dir.path().join("tokenizer.json")).unwrap();
    dir
}

/// A hooks file that takes all heads of block 0 away.
pub(crate) fn without_attention() -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    let hooks = "[[hooks]]\nid = \"silent\"\nkind = \"zero_ablate\"\npoints = \"blocks.0.hook_attn_out\"\n";
    std::fs::write(file.path(), hooks).unwrap();
    file
}

/// The hooks of a file take part in an analysis: what it finds changes, and receipts say why.
pub(crate) fn hooks_take_part(args: &[&str], number: impl Fn(&Value) -> Value) {
    let (plain, hooks) = (json(args), without_attention());
    assert_eq!(plain["receipts"], serde_json::json!([]), "{args:?}");
    let with = [args, &["--hooks", hooks.path().to_str().unwrap()]].concat();
    let edited = json(&with);
    assert_ne!(number(&plain), number(&edited), "{args:?}");
    assert_eq!(edited["receipts"][0]["id"], "silent", "{args:?}");
    assert_ne!(edited["receipts"][0]["edits"], 0, "{args:?}");
    let ran = tenterhook(&with);
    assert!(ran.stderr.contains("silent") && !ran.stdout.contains("silent"), "{args:?}: {}", ran.stderr);
    refused(&[args, &["--hooks", "/no/hooks.toml"]].concat(), &["/no/hooks.toml"]);
}
