//! Whatever happens to the files of a store, nobody reads something wrong.

use std::fs;
use std::path::{Path, PathBuf};

use tenterhook_lens::{LocalStore, StoreError, StoreOptions, StoreReader};
use tenterhook_record::fault;

use crate::store::{STREAM, activations, batches, check_rows, small, write};

fn shards(run: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(run).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| path.extension().is_some_and(|end| end == "safetensors"));
    all.sort();
    all
}

/// Reads everything there is.
fn read_all(run: &Path) -> Result<(), StoreError> {
    let reader = StoreReader::open(run)?;
    reader.read_rows(STREAM, 0..reader.rows(STREAM)?)?;
    reader.batches(STREAM)?.try_for_each(|batch| batch.map(drop))
}

#[test]
fn p06_a_shard_that_is_cut_short_or_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (store, all) = (LocalStore::new(dir.path()), batches(5, 60));
    write(&store, "a", small(), &all);
    let run = dir.path().join("a");
    let shard = shards(&run)[3].clone();
    let whole = fs::read(&shard).unwrap();
    for listed in [true, false] {
        if !listed {
            fs::remove_file(run.join("shards.jsonl")).unwrap();
        }
        check_rows(&StoreReader::open(&run).unwrap(), &all);
        for length in (0..whole.len()).step_by(97).chain([whole.len() - 1]) {
            fs::write(&shard, &whole[..length]).unwrap();
            let error = read_all(&run).unwrap_err().to_string();
            assert!(error.contains("shard-00000003.safetensors"), "{error}");
        }
        fs::remove_file(&shard).unwrap();
        let error = read_all(&run).unwrap_err().to_string();
        assert!(error.contains("shard-00000003.safetensors") && error.contains("missing"), "{error}");
        fs::write(&shard, &whole).unwrap();
    }
}

#[test]
fn p31_no_byte_of_a_header_or_an_index_makes_a_reader_panic() {
    let dir = tempfile::tempdir().unwrap();
    let (store, all) = (LocalStore::new(dir.path()), batches(6, 8));
    write(&store, "a", StoreOptions::default(), &all);
    let run = dir.path().join("a");
    for (file, bytes) in
        [("index.json", usize::MAX), ("shards.jsonl", usize::MAX), ("shard-00000000.safetensors", 900)]
    {
        let path = run.join(file);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len().min(bytes) {
            for flip in [0x01, 0x10, 0x80] {
                let mut damaged = whole.clone();
                damaged[at] ^= flip;
                fs::write(&path, &damaged).unwrap();
                // Some changes are harmless, such as one in the name of a key that nobody reads; none may panic.
                let _ = read_all(&run);
            }
        }
        fs::write(&path, whole).unwrap();
    }
    check_rows(&StoreReader::open(&run).unwrap(), &all);
}

#[test]
fn p31_numbers_that_lie_are_refused_before_memory_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let (store, all) = (LocalStore::new(dir.path()), batches(6, 8));
    write(&store, "a", StoreOptions::default(), &all);
    let run = dir.path().join("a");
    let lines = fs::read_to_string(run.join("shards.jsonl")).unwrap();
    let rows = all.iter().flatten().flatten().count();
    for lie in ["18446744073709551615", "4611686018427387904", &(rows + 1).to_string()] {
        fs::write(
            run.join("shards.jsonl"),
            lines.replace(&format!("\"rows\":{rows}"), &format!("\"rows\":{lie}")),
        )
        .unwrap();
        let error = read_all(&run).unwrap_err().to_string();
        assert!(error.contains("shard-00000000.safetensors"), "{error}");
    }
    fs::write(run.join("shards.jsonl"), &lines).unwrap();
    let head = fs::read_to_string(run.join("index.json")).unwrap();
    for (from, to, word) in [
        ("\"version\": 1", "\"version\": 2", "version is 2"),
        ("tenterhook-store", "something", "format"),
        ("\"F32\"", "\"F8_E4M3\"", "F8_E4M3"),
        ("[\n        5\n      ]", "[4611686018427387904, 8]", "expected F32"),
        (STREAM, "../../etc", "../../etc"),
    ] {
        assert!(head.contains(from), "{head}");
        fs::write(run.join("index.json"), head.replace(from, to)).unwrap();
        let error = read_all(&run).unwrap_err().to_string();
        assert!(error.contains(word) || error.contains("no layer"), "{error}");
    }
}

#[test]
fn a_killed_writer_leaves_lines_and_files_that_the_next_one_puts_right() {
    let dir = tempfile::tempdir().unwrap();
    let (store, all) = (LocalStore::new(dir.path()), batches(7, 40));
    write(&store, "a", small(), &all[..30]);
    let run = dir.path().join("a");
    let lines = fs::read_to_string(run.join("shards.jsonl")).unwrap();
    // The last lines are not there, one is half there, and a shard has only begun.
    let cut = lines.len() - lines.lines().last().unwrap().len() - 20;
    fs::write(run.join("shards.jsonl"), &lines[..cut]).unwrap();
    fs::write(run.join(".shard-00000099.safetensors.123-4.tmp"), "half").unwrap();
    check_rows(&StoreReader::open(&run).unwrap(), &all[..30]);
    let mut writer = store.append("a", small()).unwrap();
    let mut first = all[..30].iter().flatten().count() as u64;
    for batch in &all[30..] {
        let mut open = writer.batch(batch.clone()).unwrap();
        open.add(STREAM, "batch pos d_model", &activations(batch, first, &vec![0; batch.len()])).unwrap();
        writer.append(open).unwrap();
        first += batch.len() as u64;
    }
    writer.finish().unwrap();
    let reader = StoreReader::open(&run).unwrap();
    check_rows(&reader, &all);
    assert_eq!(reader.rows(STREAM).unwrap() as usize, all.iter().flatten().flatten().count());
    let text = fs::read_to_string(run.join("shards.jsonl")).unwrap();
    assert!(text.starts_with(&lines), "the lines are those they were");
    assert_eq!(text.lines().count(), shards(&run).len());
    assert!(
        fs::read_dir(&run).unwrap().all(|entry| !entry
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .ends_with(".tmp"))
    );
}

#[test]
fn p09_a_run_has_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::new(dir.path());
    let writer = store.create("a", StoreOptions::default()).unwrap();
    let error = store.append("a", StoreOptions::default()).unwrap_err();
    assert!(error.is_bad_input() && error.to_string().contains("is being written by process"), "{error}");
    drop(writer);
    store.append("a", StoreOptions::default()).unwrap();
}

#[test]
#[cfg(debug_assertions)]
fn p03_a_failing_disk_is_told_and_what_is_whole_stays() {
    let all = batches(8, 60);
    for spec in [
        "disk.write=enospc@30",
        "disk.write=short@41",
        "disk.sync=eio@7",
        "disk.rename=eio@5",
        "disk.create=enospc@9",
        "disk.sync_dir=eio@6",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::new(dir.path());
        let run = || -> Result<_, StoreError> {
            let mut writer = store.create("a", small())?;
            let mut first = 0;
            for batch in &all {
                let mut open = writer.batch(batch.clone())?;
                open.add(STREAM, "batch pos d_model", &activations(batch, first, &vec![0; batch.len()]))?;
                writer.append(open)?;
                first += batch.len() as u64;
            }
            writer.finish()
        };
        let faults = fault::install(spec).unwrap();
        let error = run().unwrap_err();
        drop(faults);
        assert!(!error.is_bad_input(), "{spec}: {error}");
        let reader = StoreReader::open(dir.path().join("a")).unwrap();
        assert!(!reader.is_finished(), "{spec}");
        if !reader.layers().is_empty() {
            check_rows(&reader, &all);
        }
        store.append("a", small()).unwrap().finish().unwrap();
        if !reader.layers().is_empty() {
            check_rows(&StoreReader::open(dir.path()).unwrap(), &all);
        }
    }
}
