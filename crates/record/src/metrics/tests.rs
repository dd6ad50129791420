use std::fs;
use std::io::Write;

use proptest::prelude::*;

use super::*;

fn row(step: u64, loss: f64) -> Row {
    Row { step, epoch: step / 10, time: step as f64 + 0.125, values: [("loss".to_string(), loss)].into() }
}

/// A log with these steps, in a directory of its own.
fn log_of(steps: std::ops::Range<u64>) -> (tempfile::TempDir, PathBuf, MetricsLog) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.jsonl");
    let mut log = MetricsLog::open(&path, None).unwrap();
    steps.for_each(|step| log.append(&row(step, 1.0 / (step + 1) as f64)).unwrap());
    (dir, path, log)
}

fn steps(rows: &[Row]) -> Vec<u64> {
    rows.iter().map(|row| row.step).collect()
}

#[test]
fn values_without_a_json_number_survive() {
    let (_dir, path, mut log) = log_of(0..0);
    let odd = [f64::INFINITY, f64::NEG_INFINITY, -0.0, f64::MIN_POSITIVE / 4.0, f64::MAX, 0.1 + 0.2];
    odd.iter().for_each(|value| log.append(&row(1, *value)).unwrap());
    log.append(&row(2, f64::NAN)).unwrap();
    let read = read(&path).unwrap();
    let bits: Vec<u64> = read[..6].iter().map(|row| row.values["loss"].to_bits()).collect();
    assert_eq!(bits, odd.map(f64::to_bits));
    assert!(read[6].values["loss"].is_nan());
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.ends_with("{\"step\":2,\"epoch\":0,\"time\":2.125,\"loss\":\"NaN\"}\n"), "{text}");
}

#[test]
fn a_metric_cannot_take_the_name_of_a_field() {
    let (_dir, path, mut log) = log_of(0..1);
    for name in ["step", "epoch", "time"] {
        let bad = Row { values: [(name.to_string(), 1.0)].into(), ..row(1, 0.0) };
        assert!(log.append(&bad).unwrap_err().to_string().contains(name));
    }
    assert_eq!(read(&path).unwrap().len(), 1);
}

#[test]
fn p38_cut_anywhere_every_earlier_line_still_reads() {
    let (dir, path, _log) = log_of(0..4);
    let whole = fs::read(&path).unwrap();
    let rows = read(&path).unwrap();
    let cut = dir.path().join("cut.jsonl");
    for length in 0..=whole.len() {
        fs::write(&cut, &whole[..length]).unwrap();
        let lines = whole[..length].iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(read(&cut).unwrap(), rows[..lines], "cut to {length}");
        // The next attempt adds to whole lines only.
        let mut log = MetricsLog::open(&cut, None).unwrap();
        log.append(&row(99, 0.5)).unwrap();
        let again = read(&cut).unwrap();
        assert_eq!((again.len(), again[lines].step), (lines + 1, 99), "cut to {length}");
    }
}

#[test]
fn p38_a_resumed_run_drops_what_came_after_its_checkpoint() {
    let (_dir, path, log) = log_of(0..5);
    let position = log.position();
    drop(log);
    let mut log = MetricsLog::open(&path, None).unwrap();
    assert_eq!(log.position(), position);
    (5..9).for_each(|step| log.append(&row(step, 7.0)).unwrap());
    let mut log = MetricsLog::open(&path, Some(position)).unwrap();
    (5..7).for_each(|step| log.append(&row(step, 8.0)).unwrap());
    log.sync().unwrap();
    assert_eq!(steps(&read(&path).unwrap()), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(read(&path).unwrap()[5].values["loss"], 8.0);
}

#[test]
fn a_position_that_is_not_in_the_log_is_refused() {
    let (_dir, path, log) = log_of(0..2);
    let whole = fs::read(&path).unwrap();
    for (wanted, problem) in [(log.position() + 1, "it has only"), (log.position() - 1, "no line ends there")]
    {
        let error = MetricsLog::open(&path, Some(wanted)).unwrap_err().to_string();
        assert!(error.contains(problem) && error.contains("metrics.jsonl"), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), whole);
}

#[test]
fn a_bad_line_is_named() {
    let (_dir, path, _log) = log_of(0..1);
    for bad in
        ["{", "[]", "{\"step\":1}", "{\"step\":1,\"epoch\":0,\"time\":1,\"loss\":\"nan\"}", "", "\u{0}"]
    {
        let mut text = fs::read_to_string(&path).unwrap().lines().next().unwrap().to_string();
        text.push_str(&format!("\n{bad}\n"));
        fs::write(&path, text).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl: line 2: "), "{error}");
    }
}

/// Whether the log was cut, and the steps that are new.
fn news(tail: &mut Tail) -> (bool, Vec<u64>) {
    let was_cut = tail.was_cut().unwrap();
    let mut steps = Vec::new();
    while tail.read(60, |_, row| steps.push(row.step)).unwrap().more {}
    (was_cut, steps)
}

#[test]
fn a_tail_follows_a_live_log_line_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.jsonl");
    let mut tail = Tail::new(&path);
    assert_eq!(news(&mut tail), (false, vec![]));
    let mut log = MetricsLog::open(&path, None).unwrap();
    (0..3).for_each(|step| log.append(&row(step, 1.0)).unwrap());
    assert_eq!(news(&mut tail), (false, vec![0, 1, 2]));
    assert_eq!(news(&mut tail), (false, vec![]));
    // Half a line is not there yet.
    let line = "{\"step\":3,\"epoch\":0,\"time\":1}\n";
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(&line.as_bytes()[..9]).unwrap();
    assert_eq!(news(&mut tail), (false, vec![]));
    file.write_all(&line.as_bytes()[9..]).unwrap();
    assert_eq!(news(&mut tail), (false, vec![3]));
    assert_eq!(tail.rows(), 4);
    // A bad line is told every time, and what is before it is given once.
    file.write_all(b"{\"step\":4,\"epoch\":0,\"time\":1}\nbad\n").unwrap();
    let mut steps = Vec::new();
    let error = tail.read(1 << 20, |_, row| steps.push(row.step)).unwrap_err().to_string();
    assert!(error.contains("line 6: "), "{error}");
    assert!(tail.read(1 << 20, |_, row| steps.push(row.step)).is_err());
    assert_eq!(steps, [4]);
}

#[test]
fn a_tail_begins_again_when_a_resumed_run_went_back() {
    let (_dir, path, mut log) = log_of(0..5);
    let position = log.position();
    (5..9).for_each(|step| log.append(&row(step, 7.0)).unwrap());
    let mut tail = Tail::new(&path);
    assert_eq!(news(&mut tail), (false, (0..9).collect()));
    let mut log = MetricsLog::open(&path, Some(position)).unwrap();
    assert_eq!(news(&mut tail), (true, (0..5).collect()));
    (5..7).for_each(|step| log.append(&row(step, 8.0)).unwrap());
    assert_eq!(news(&mut tail), (false, vec![5, 6]));
    // Cut and grown past the old end between two looks.
    let mut log = MetricsLog::open(&path, Some(position)).unwrap();
    (5..20).for_each(|step| log.append(&row(step, 9.0)).unwrap());
    assert_eq!(news(&mut tail), (true, (0..20).collect()));
    fs::remove_file(&path).unwrap();
    assert_eq!(news(&mut tail), (true, vec![]));
}

#[test]
fn a_tail_reads_in_pieces_and_a_part_is_read_again() {
    let (_dir, path, _log) = log_of(0..100);
    let mut tail = Tail::new(&path);
    let (mut begins, mut pieces) = (Vec::new(), 0);
    while tail.read(200, |begin, _| begins.push(begin)).unwrap().more {
        pieces += 1;
    }
    assert!(pieces > 10 && begins.len() == 100, "{pieces} {}", begins.len());
    let mut steps = Vec::new();
    read_part(&path, begins[30], begins[33], |row| steps.push(row.step)).unwrap();
    assert_eq!(steps, [30, 31, 32]);
}

#[cfg(debug_assertions)]
#[test]
fn p03_a_line_that_fails_is_taken_back() {
    use crate::fault;
    let (_dir, path, mut log) = log_of(0..2);
    for faults in ["disk.write=short", "disk.write=eio", "disk.write=short;disk.truncate=eio"] {
        let installed = fault::install(faults).unwrap();
        let error = log.append(&row(50, 1.0)).unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl: cannot write"), "{error}");
        drop(installed);
        assert_eq!(read(&path).unwrap().len(), 2, "{faults}");
    }
    log.append(&row(2, 1.0)).unwrap();
    assert_eq!(steps(&read(&path).unwrap()), [0, 1, 2]);
    assert_eq!(log.position(), fs::metadata(&path).unwrap().len());
}

#[cfg(debug_assertions)]
#[test]
fn p38_a_line_is_one_write() {
    use crate::fault::{self, Op};
    let (_dir, path, mut log) = log_of(0..0);
    let trace = fault::trace();
    log.append(&row(1, 0.5)).unwrap();
    assert_eq!(trace.ops(), [Op::Write(path, log.position() as usize)]);
}

proptest! {
    #[test]
    fn any_row_reads_back(
        step in any::<u64>(),
        epoch in any::<u64>(),
        time in -1e12..1e12,
        values in proptest::collection::btree_map(any::<String>(), any::<f64>(), 0..8),
    ) {
        prop_assume!(!["step", "epoch", "time"].iter().any(|name| values.contains_key(*name)));
        let row = Row { step, epoch, time, values };
        let line = serde_json::to_string(&row).unwrap();
        prop_assert!(!line.contains('\n'));
        let back: Row = serde_json::from_str(&line).unwrap();
        let bits = |row: &Row| -> Vec<(String, Option<u64>)> {
            let known = |value: f64| (!value.is_nan()).then(|| value.to_bits());
            row.values.iter().map(|(name, value)| (name.clone(), known(*value))).collect()
        };
        prop_assert_eq!((back.step, back.epoch, back.time), (row.step, row.epoch, row.time));
        prop_assert_eq!(bits(&back), bits(&row));
    }
}

#[cfg(unix)]
#[test]
fn p03_a_log_that_was_moved_removed_or_replaced_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.jsonl");
    let mut log = MetricsLog::open(&path, None).unwrap();
    log.append(&Row::default()).unwrap();
    log.sync().unwrap();
    let elsewhere = dir.path().join("elsewhere.jsonl");
    fs::rename(&path, &elsewhere).unwrap();
    let error = log.sync().unwrap_err().to_string();
    assert!(error.contains("metrics.jsonl: cannot go on"), "{error}");
    fs::write(&path, "").unwrap();
    let error = log.sync().unwrap_err().to_string();
    assert!(error.contains("another file is in its place"), "{error}");
    fs::rename(&elsewhere, &path).unwrap();
    log.sync().unwrap();
}
