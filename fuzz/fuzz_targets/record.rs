//! What a run leaves behind: `run.json`, `metrics.jsonl`, and names.
#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tenterhook::record::metrics::{self, MetricsLog, Tail};
use tenterhook::record::name::{check_run_name, file_safe};
use tenterhook::record::run::{self, RunDir, RunRecord};

static RUNS: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a directory"));
static RUN: LazyLock<RunDir> = LazyLock::new(|| RunDir::create(RUNS.path(), Some("a")).expect("a run"));

fuzz_target!(|bytes: &[u8]| {
    fs::write(RUN.record_path(), bytes).and_then(|()| fs::write(RUN.metrics_path(), bytes)).expect("a file");
    let _ = RunRecord::read(&RUN);
    let _ = metrics::read(&RUN.metrics_path());
    let _ = Tail::new(&RUN.metrics_path()).next_rows();
    let _ = MetricsLog::open(&RUN.metrics_path(), Some(bytes.len() as u64 / 2));
    let text = String::from_utf8_lossy(bytes);
    let _ = run::find(RUNS.path(), &text);
    assert!(check_run_name(&file_safe(&text)).is_ok());
});
