//! What runs are fed with: tokens, text, JSON lines, and the tokenizer between them.

use std::fs;

use candle_core::Device;
use tenterhook::models::tokenizer::Tokenizer;
use tenterhook::train::data::{Dataset, JsonlOptions, TokenFile, TokenStream, TokenType};

use crate::damage::feed;

/// Reads the first and the last example.
fn read(set: &dyn Dataset) {
    let ends = [0, set.len() - 1];
    assert!(set.batch(&ends, &Device::Cpu).is_ok());
    assert!(set.batch(&[set.len()], &Device::Cpu).is_err());
}

#[test]
fn p31_token_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("train.bin");
    let good: Vec<u8> = (0..400u16).flat_map(u16::to_le_bytes).collect();
    feed("tokens", &good, 300, |bytes| {
        fs::write(&path, bytes).unwrap();
        for (dtype, block) in
            [(TokenType::Uint16, 8), (TokenType::Uint32, 3), (TokenType::Uint16, usize::MAX)]
        {
            if let Ok(file) = TokenFile::open(&path, dtype, block) {
                let _ = file.check_vocab(300);
                read(&file);
            }
        }
    });
}

#[test]
fn p31_text() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.txt");
    let good = "Some text, größer als ein Byte.\r\n\n".repeat(20);
    feed("text", good.as_bytes(), 300, |bytes| {
        fs::write(&path, bytes).unwrap();
        let ids = |text: &str| Ok(text.chars().map(u32::from).collect());
        for stream in [
            TokenStream::from_text(std::slice::from_ref(&path), 8, None),
            TokenStream::from_text(std::slice::from_ref(&path), 8, Some(&ids)),
        ] {
            stream.iter().for_each(|stream| read(stream));
        }
    });
}

#[test]
fn p31_jsonl() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let good = "{\"text\": \"one \\u00e4 two\", \"id\": 17, \"tags\": [1, {\"a\": null}]}\n".repeat(8);
    feed("jsonl", good.as_bytes(), 300, |bytes| {
        fs::write(&path, bytes).unwrap();
        let options = JsonlOptions { separator: Some(u32::MAX), ..JsonlOptions::default() };
        if let Ok(stream) = TokenStream::from_jsonl(&path, &options, 4, None) {
            read(&stream);
        }
    });
}

/// A byte-level BPE with merges, and everything around it that real ones have.
const TOKENIZER: &str = include_str!("../data/tokenizer.json");

#[test]
fn p31_tokenizers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    fs::write(&path, TOKENIZER).unwrap();
    let sound = Tokenizer::load(&path).unwrap();
    assert_eq!(sound.encode("hello", false).unwrap(), [11]);
    feed("tokenizer.json", TOKENIZER.as_bytes(), 400, |bytes| {
        fs::write(&path, bytes).unwrap();
        let Ok(tokenizer) = Tokenizer::load(&path) else { return };
        for text in ["hello world", "", "\u{0}größe\u{202e} <|end|> xxxx", "    "] {
            for special in [false, true] {
                if let Ok(ids) = tokenizer.encode(text, special) {
                    let _ = tokenizer.decode(&ids);
                }
            }
        }
        let _ = tokenizer.decode(&[u32::MAX, 0, 12]);
        tokenizer.vocab_size();
    });
}
