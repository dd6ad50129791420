//! A `tokenizer.json` and a text for it.
#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tenterhook::models::tokenizer::Tokenizer;

static DIR: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    // The fuzzer ends at every panic, also at those that we catch because the crate behind us has them.
    std::panic::set_hook(Box::new(|_| {}));
    tempfile::tempdir().expect("a directory")
});

fuzz_target!(|bytes: &[u8]| {
    let path = DIR.path().join("tokenizer.json");
    fs::write(&path, bytes).expect("a file");
    let Ok(tokenizer) = Tokenizer::load(&path) else { return };
    if let Ok(ids) = tokenizer.encode("hello größe\u{202e} <|end|>", true) {
        let _ = tokenizer.decode(&ids);
    }
});
