//! Hooks that write what is measured, to files and to the terminal.

use super::cases::{Case, case, check};
use super::scene::Seen;
use super::see::{events, logs, rows, said};

pub(super) fn cases() -> Vec<Case> {
    let console = |option, values| case(option, values, said).outside();
    let tensorboard = |option, values| case(option, values, events).beside(HISTOGRAMS);
    vec![
        console("console_log.log_every_n_batches", ["1", "3"]),
        console("console_log.metrics", ["[\"loss\"]", "[\"val/*\"]"]),
        console("console_log.precision", ["1", "6"]),
        case("json_log.log_every_n_batches", ["1", "2"], logs),
        case("json_log.path", ["\"logs/a.jsonl\"", "\"elsewhere/a.jsonl\""], logs),
        case("csv_log.log_every_n_batches", ["1", "2"], logs),
        case("csv_log.columns", ["[\"loss\"]", "[\"loss\", \"lr\"]"], logs),
        case("csv_log.path", ["\"logs/a.csv\"", "\"elsewhere/a.csv\""], logs),
        tensorboard("tensorboard.metrics", ["[\"loss\"]", "[\"*\"]"]).with("histograms = false"),
        tensorboard("tensorboard.histograms", ["true", "false"]),
        tensorboard("tensorboard.log_every_n_batches", ["1", "2"]),
        case("tensorboard.flush_every", ["1", "100"], rows)
            .with("metrics = [\"loss\"]")
            .beside("[[hooks]]\nkind = \"test.peek\""),
        case("progress.plain_every_s", ["0.0", "1000.0"], lines_of_progress).outside(),
        case("model_summary.max_rows", ["1", "50"], said).outside(),
        case("model_summary.depth", ["", "1"], said).outside(),
        case("throughput.window", ["1", "100"], first_step_is_forgotten)
            .beside("[[hooks]]\nkind = \"test.slow\""),
        case("lr_monitor.log_momentum", ["false", "true"], rows),
        case("lr_monitor.log_weight_decay", ["false", "true"], rows),
    ]
}

const HISTOGRAMS: &str =
    "[[hooks]]\nkind = \"gradient_monitor\"\nlog_frequency = 1\nlog_histogram = true\nlog_norm = false";

/// How many lines begin with a step.
fn lines_of_progress(seen: &Seen) -> String {
    seen.stderr.lines().filter(|line| line.starts_with("step ")).count().to_string()
}

/// Whether any later step is said to be quick: the first takes 300 ms, which stay in a mean of all six.
fn first_step_is_forgotten(seen: &Seen) -> String {
    let text = std::fs::read_to_string(seen.dir().join("metrics.jsonl")).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let times = rows.filter_map(|row| row.get("time/step_ms")?.as_f64()).skip(1);
    times.fold(f64::INFINITY, f64::min).lt(&45.0).to_string()
}

#[test]
fn every_option_of_a_log_makes_a_difference() {
    check(&cases());
}
