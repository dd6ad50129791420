//! What users write: configurations and `--set`.

use tenterhook::train::config::{DEFAULT_TOML, Document, Format};
use tenterhook::training::{Plan, registry};

use crate::damage::feed;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// As `train` does before anything starts.
fn check(text: &str, format: Format) {
    let document = match Document::parse(text, format) {
        Ok(document) => document,
        Err(problems) => return assert!(!problems.to_string().is_empty()),
    };
    match Plan::check(&document, &registry()) {
        Ok(plan) => assert!(!plan.recorded().to_toml().is_empty()),
        Err(problems) => assert!(!problems.to_string().is_empty()),
    }
}

#[test]
fn p31_toml() {
    feed("toml", DEFAULT_TOML.as_bytes(), 200, |bytes| check(&text(bytes), Format::Toml));
}

#[test]
fn p31_json() {
    let value = Document::parse(DEFAULT_TOML, Format::Toml).unwrap().value().to_string();
    feed("json", value.as_bytes(), 200, |bytes| check(&text(bytes), Format::Json));
}

#[test]
fn p31_every_hook_from_toml() {
    let hooks = registry()
        .kinds()
        .map(|kind| format!("[[hooks]]\nkind = \"{}\"\nid = \"x\"\nevery = 2\n", kind.name))
        .collect::<String>();
    let more = "[[hooks]]\nkind = 'model_checkpoint'\nfilename = 'a_{epoch}_{val/loss:.2f}'\n[[hooks]]\nkind = 'max_time'\nduration = '1h30m'\n\
                [[hooks]]\nkind = 'webhook'\nurl = 'https://a.example:8080/x?y=1'\n[[hooks]]\nkind = 'capture'\npoints = ['blocks.*', -1]\n\
                [hooks_config]\nhook_classes = ['ema']\nhook_configs = { ema = { decay = 0.9 } }\n";
    let whole = [DEFAULT_TOML, &hooks, more].concat();
    feed("hooks", whole.as_bytes(), 100, |bytes| check(&text(bytes), Format::Toml));
}

#[test]
fn p31_overrides() {
    for good in [
        "train.steps=100",
        "optimizer[0].lr=1e-3",
        "hooks.0.\"a b\".c=[1, {x = \"y\"}]",
        "data.train.path=/dev/null",
    ] {
        feed("--set", good.as_bytes(), 300, |bytes| {
            let mut document = Document::parse(DEFAULT_TOML, Format::Toml).unwrap();
            if let Err(problems) = document.set(&text(bytes)) {
                assert!(!problems.to_string().is_empty());
            }
        });
    }
}
