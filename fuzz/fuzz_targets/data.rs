//! Data files: tokens, text, JSON lines.
#![no_main]

use std::fs;
use std::sync::LazyLock;

use candle_core::Device;
use libfuzzer_sys::fuzz_target;
use tenterhook::train::data::{Dataset, JsonlOptions, TokenFile, TokenStream, TokenType};

static DIR: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a directory"));

fn read(set: &dyn Dataset) {
    assert!(set.batch(&[0, set.len() - 1], &Device::Cpu).is_ok());
}

fuzz_target!(|bytes: &[u8]| {
    let path = DIR.path().join("data");
    fs::write(&path, bytes).expect("a file");
    for dtype in [TokenType::Uint16, TokenType::Uint32] {
        if let Ok(file) = TokenFile::open(&path, dtype, 3) {
            let _ = file.check_vocab(1000);
            read(&file);
        }
    }
    let ids = |text: &str| Ok(text.chars().map(u32::from).collect());
    let options = JsonlOptions { separator: Some(7), ..JsonlOptions::default() };
    let streams = [
        TokenStream::from_text(std::slice::from_ref(&path), 3, None),
        TokenStream::from_text(std::slice::from_ref(&path), 3, Some(&ids)),
        TokenStream::from_jsonl(&path, &options, 3, None),
    ];
    streams.iter().flatten().for_each(|stream| read(stream));
});
