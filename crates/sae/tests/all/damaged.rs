//! Directories that are not what they should be: one readable error each, and never a panic.

use std::fs;

use crate::support::*;

use tenterhook_sae::Sae;

fn refused(dir: &std::path::Path, expected: &str) {
    let error = Sae::load(dir).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn p06_damaged_directories_are_refused_with_the_reason() {
    let dir = copy_of("jumprelu");
    let (cfg, weights) = (dir.path().join("cfg.json"), dir.path().join("sae_weights.safetensors"));
    let (cfg_bytes, weight_bytes) = (fs::read(&cfg).unwrap(), fs::read(&weights).unwrap());
    let restore = || {
        fs::write(&cfg, &cfg_bytes).unwrap();
        fs::write(&weights, &weight_bytes).unwrap();
    };
    fs::write(&weights, &weight_bytes[..weight_bytes.len() - 5]).unwrap();
    refused(dir.path(), "cut short");
    fs::write(&weights, b"PK\x03\x04pickle").unwrap();
    refused(dir.path(), "pickle");
    fs::remove_file(&weights).unwrap();
    refused(dir.path(), "sae_weights.safetensors");
    restore();
    fs::write(&cfg, "{").unwrap();
    refused(dir.path(), "is not valid JSON");
    fs::remove_file(&cfg).unwrap();
    refused(dir.path(), "has no cfg.json");
    refused(&dir.path().join("nowhere"), "has no cfg.json");
    restore();
    let text = String::from_utf8(cfg_bytes.clone()).unwrap();
    for (from, to, expected) in [
        ("\"d_sae\": 24", "\"d_sae\": 25", "expected shape [8, 25], found [8, 24]"),
        ("\"d_sae\": 24", "\"d_sae\": 99999999999", "do not fit"),
        ("\"jumprelu\"", "\"standard\"", "`threshold` is in the files but not in the model"),
        ("\"jumprelu\"", "\"gated\"", "tensor `b_gate` is missing"),
        ("\"d_sae\": 24", "\"d_sae\": 24, \"hidden\": 1", "`hidden` is not known"),
    ] {
        assert!(text.contains(from), "{text}");
        fs::write(&cfg, text.replace(from, to)).unwrap();
        refused(dir.path(), expected);
    }
    restore();
    Sae::load(dir.path()).unwrap();
}

/// Every bit of the header and of the configuration, one at a time: refused, or read as something that fits.
#[test]
fn p06_no_flipped_bit_makes_it_panic() {
    let dir = copy_of("topk");
    for file in ["cfg.json", "sae_weights.safetensors"] {
        let path = dir.path().join(file);
        let bytes = fs::read(&path).unwrap();
        for at in (0..bytes.len().min(700)).step_by(3) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(&path, &damaged).unwrap();
            if let Err(error) = Sae::load(dir.path()) {
                assert!(!error.to_string().is_empty());
            }
        }
        fs::write(&path, &bytes).unwrap();
    }
}
