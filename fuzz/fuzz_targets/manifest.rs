//! The manifest of a checkpoint.
#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tenterhook::record::checkpoints::{self, MANIFEST, Manifest};

static DIR: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a directory"));

fuzz_target!(|bytes: &[u8]| {
    let checkpoint = DIR.path().join("step-00000001");
    fs::create_dir_all(&checkpoint)
        .and_then(|()| fs::write(checkpoint.join(MANIFEST), bytes))
        .expect("a file");
    if let Ok(manifest) = Manifest::read(&checkpoint) {
        assert!(manifest.files.iter().all(|file| !file.name.contains("..") && !file.name.starts_with('/')));
    }
    let _ = checkpoints::newest_good(DIR.path());
});
