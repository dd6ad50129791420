//! Damaged checkpoints are refused with a reason, and the one before is found.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

/// A good checkpoint, its path, and its problem after it was changed.
fn problem_after(change: impl FnOnce(&Path)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), "a", 3).unwrap();
    verify(&path).unwrap();
    change(&path);
    verify(&path).unwrap_err().to_string()
}

#[test]
fn p06_every_flipped_byte_of_the_manifest_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), "a", 3).unwrap();
    let manifest = path.join(MANIFEST);
    let good = fs::read(&manifest).unwrap();
    // Reading the bytes is all that happens to them, so most of this needs no disk.
    let refused = |bad: &[u8]| Manifest::from_bytes(bad, &manifest).unwrap_err().to_string();
    for at in 0..good.len() {
        for flip in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            assert!(refused(&bad).contains("manifest.json"), "byte {at} with {flip}");
        }
        assert!(refused(&good[..at]).contains("manifest.json"), "cut to {at}");
    }
    let mut bad = good.clone();
    bad[20] ^= 1;
    fs::write(&manifest, &bad).unwrap();
    assert!(verify(&path).unwrap_err().to_string().contains("manifest.json"));
    fs::write(&manifest, &good).unwrap();
    verify(&path).unwrap();
}

#[test]
fn p06_every_flipped_or_cut_byte_of_the_data_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), "a", 3).unwrap();
    let files = ["model.safetensors", "ema/model.safetensors", "state.json"];
    let flips = (
        proptest::sample::select(files.to_vec()),
        any::<proptest::sample::Index>(),
        1..=255_u8,
        any::<bool>(),
    );
    let config = ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&flips, |(name, at, flip, cut)| {
            let file = path.join(name);
            let good = fs::read(&file).unwrap();
            let (at, mut bad) = (at.index(good.len()), good.clone());
            match cut {
                true => bad.truncate(at),
                false => bad[at] ^= flip,
            }
            fs::write(&file, &bad).unwrap();
            let refused = verify(&path);
            fs::write(&file, &good).unwrap();
            prop_assert!(refused.unwrap_err().to_string().contains(name));
            Ok(())
        })
        .unwrap();
    verify(&path).unwrap();
}

#[test]
fn p06_missing_extra_swapped_and_replaced_files_are_named() {
    let missing = problem_after(|path| fs::remove_file(path.join("state.json")).unwrap());
    assert!(missing.ends_with("state.json: is missing"), "{missing}");
    let gone = problem_after(|path| fs::remove_dir_all(path.join("ema")).unwrap());
    assert!(gone.ends_with("ema/model.safetensors: is missing"), "{gone}");
    for extra in ["model-00002.safetensors", "ema/pytorch_model.bin"] {
        let problem = problem_after(|path| fs::write(path.join(extra), "x").unwrap());
        assert!(problem.contains(extra) && problem.contains("does not belong"), "{problem}");
    }
    let deep = problem_after(|path| fs::create_dir(path.join("ema/deeper")).unwrap());
    assert!(deep.contains("deeper"), "{deep}");
    let directory = problem_after(|path| {
        fs::remove_file(path.join("state.json")).unwrap();
        fs::create_dir(path.join("state.json")).unwrap();
    });
    assert!(directory.ends_with("state.json: is not a file"), "{directory}");
    let swapped = problem_after(|path| {
        let (one, two) = (path.join("model.safetensors"), path.join("state.json"));
        let hold = fs::read(&one).unwrap();
        fs::copy(&two, &one).unwrap();
        fs::write(&two, hold).unwrap();
    });
    assert!(swapped.contains("model.safetensors: has 10 bytes, the manifest says 320"), "{swapped}");
    let none = problem_after(|path| fs::remove_file(path.join(MANIFEST)).unwrap());
    assert!(none.contains("manifest.json: cannot read"), "{none}");
}

#[test]
fn hidden_files_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), "a", 3).unwrap();
    fs::write(path.join(".DS_Store"), "x").unwrap();
    verify(&path).unwrap();
}

#[cfg(unix)]
#[test]
fn p06_links_are_refused() {
    use std::os::unix::fs::symlink;
    for name in ["state.json", MANIFEST, "ema"] {
        let problem = problem_after(|path| {
            let elsewhere = path.parent().unwrap().join("elsewhere");
            fs::rename(path.join(name), &elsewhere).unwrap();
            symlink(&elsewhere, path.join(name)).unwrap();
        });
        assert!(problem.contains(name) && problem.contains("is not a"), "{problem}");
    }
}

#[test]
fn p06_a_newer_format_is_refused() {
    let problem = problem_after(|path| forge(path, |manifest| manifest.format = 2));
    assert!(problem.contains("has format 2, this version reads formats up to 1"), "{problem}");
}

#[test]
fn p06_a_huge_manifest_is_not_read() {
    let problem = problem_after(|path| {
        let file = fs::OpenOptions::new().write(true).open(path.join(MANIFEST)).unwrap();
        file.set_len((16 << 20) + 1).unwrap();
    });
    assert!(problem.contains("larger than 16777216 bytes"), "{problem}");
}

#[test]
fn p32_a_manifest_cannot_lead_out_of_its_directory() {
    let outside =
        ["../secret", "/etc/hostname", "a/../../secret", "..", "", "a\0b", "a\\b", "C:x", "a/b/c", "./a"];
    for name in outside {
        let problem = problem_after(|path| {
            fs::write(path.parent().unwrap().join("secret"), "s").unwrap();
            forge(path, |manifest| manifest.files[0].name = name.to_string());
        });
        assert!(problem.contains("manifest.json: names the file"), "{problem}");
    }
    let twice = problem_after(|path| forge(path, |manifest| manifest.files[1] = manifest.files[0].clone()));
    assert!(twice.contains("twice"), "{twice}");
    let itself = problem_after(|path| forge(path, |manifest| manifest.files[0].name = MANIFEST.to_string()));
    assert!(itself.contains("lists itself"), "{itself}");
}

#[test]
fn p07_the_one_before_is_found_and_the_reason_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> =
        (1..=3).map(|step| save(dir.path(), &format!("step-{step}"), step * 10).unwrap()).collect();
    let skipped = || -> Vec<(String, String)> {
        newest_good(dir.path()).unwrap().skipped.into_iter().map(|(one, why)| (one.name, why)).collect()
    };
    assert_eq!((newest(dir.path()), skipped().len()), (Some(30), 0));
    fs::write(paths[2].join("state.json"), "{\"step\":31}").unwrap();
    assert_eq!(newest(dir.path()), Some(20));
    let told = skipped();
    assert!(told[0].0 == "step-3" && told[0].1.contains("state.json: is damaged"), "{told:?}");
    fs::write(paths[1].join(MANIFEST), "{").unwrap();
    assert_eq!(newest(dir.path()), Some(10));
    assert_eq!(skipped().len(), 2);
    fs::remove_file(paths[0].join("model.safetensors")).unwrap();
    assert_eq!((newest(dir.path()), skipped().len()), (None, 3));
}

#[test]
fn p07_what_verifies_and_does_not_fit_is_skipped_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), "a", 3).unwrap();
    let newest = save(dir.path(), "b", 4).unwrap();
    let mut asked = Vec::new();
    let found = newest_usable(dir.path(), |path| {
        asked.push(path.to_path_buf());
        if path == newest { Err("of another model".to_string()) } else { Ok(()) }
    });
    let found = found.unwrap();
    assert_eq!(found.checkpoint.unwrap().1.step, 3);
    assert_eq!(found.skipped[0].1, "of another model");
    // Nothing that is damaged is offered.
    fs::write(newest.join("state.json"), "").unwrap();
    let found = newest_usable(dir.path(), |path| Err(path.display().to_string())).unwrap();
    assert!(found.checkpoint.is_none() && found.skipped.len() == 2, "{found:?}");
    assert!(found.skipped[0].1.contains("state.json: has 0 bytes"), "{found:?}");
    assert_eq!(asked.len(), 2);
}

#[test]
fn p07_a_directory_that_cannot_be_listed_is_an_error_not_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("checkpoints");
    fs::write(&file, "not a directory").unwrap();
    assert!(newest_good(&file).is_err());
}
