//! A run's configuration, and what `--set` adds to it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenterhook::train::config::{DEFAULT_TOML, Document, Format};
use tenterhook::training::{Plan, registry};

fuzz_target!(|text: &str| {
    let format = if text.starts_with('{') { Format::Json } else { Format::Toml };
    if let Ok(document) = Document::parse(text, format)
        && let Ok(plan) = Plan::check(&document, &registry())
    {
        let again =
            Document::parse(&plan.config.to_toml(), Format::Toml).expect("what was written reads back");
        assert!(Plan::check(&again, &registry()).is_ok(), "{}", plan.config.to_toml());
    }
    if text.len() < 200
        && let Ok(mut document) = Document::parse(DEFAULT_TOML, Format::Toml)
    {
        let _ = document.set(text);
    }
});
