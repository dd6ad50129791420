//! The log of histograms that a run keeps.

use std::fs;

use tenterhook::record::metrics::{HistogramRow, for_each_histograms};

use crate::lab::{Lab, TINY};

const HOOK: &str = r#"
[[hooks]]
kind = "gradient_monitor"
log_histogram = true
log_frequency = 2
"#;

fn rows(lab: &Lab, run: &str) -> Vec<HistogramRow> {
    let mut rows = Vec::new();
    for_each_histograms(&lab.run_dir(run).join("histograms.jsonl"), |row| rows.push(row)).unwrap();
    rows
}

#[test]
fn histograms_stand_in_a_log_of_their_own() {
    let lab = Lab::with(&format!("{TINY}{HOOK}"));
    lab.ok(&["train", "run.toml", "--quiet"]);
    let rows = rows(&lab, "tiny");
    assert_eq!(rows.len(), 20);
    let bins = &rows[0].histograms["grad/transformer.wte.weight"];
    assert_eq!(bins.counts.iter().sum::<u64>(), 17 * 16, "every gradient is in a bin");
    assert!(bins.low.0 < 0.0 && bins.high.0 > 0.0);
    let plain = Lab::with(TINY);
    plain.ok(&["train", "run.toml", "--quiet"]);
    assert!(!plain.run_dir("tiny/histograms.jsonl").exists());
}

#[test]
fn p01_a_resumed_run_has_every_histogram_once() {
    let whole = Lab::with(&format!("{TINY}{HOOK}"));
    whole.ok(&["train", "run.toml", "--quiet"]);
    let lab = Lab::with(&format!("{TINY}{HOOK}"));
    let killed = lab
        .command(&["train", "run.toml", "--quiet"])
        .env("TENTERHOOK_FAULTS", "train.backward=kill@50")
        .output();
    assert!(!killed.unwrap().status.success());
    let before = rows(&lab, "tiny").len();
    assert!(before > 10, "it was killed behind the checkpoint of step 20: {before}");
    // Half a line, as a process that is killed in the middle of it leaves.
    let path = lab.run_dir("tiny/histograms.jsonl");
    let mut log = fs::read(&path).unwrap();
    log.extend(b"{\"step\":");
    fs::write(&path, log).unwrap();
    lab.ok(&["train", "run.toml", "--quiet", "--resume"]);
    let timeless = |lab: &Lab| -> Vec<HistogramRow> {
        rows(lab, "tiny").into_iter().map(|row| HistogramRow { time: Default::default(), ..row }).collect()
    };
    assert_eq!(timeless(&lab), timeless(&whole));
}
