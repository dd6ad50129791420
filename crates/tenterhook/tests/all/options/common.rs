//! The options that every hook has.

use super::cases::{Case, case, check};
use super::see::{end, logs, receipts, rows, said};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("common.id", ["\"a\"", "\"b\""], logs).on("json_log").with("log_every_n_batches = 1"),
        case("common.enabled", ["true", "false"], logs).on("json_log"),
        case("common.every", ["\"epoch\"", "2"], rows).on("lr_monitor"),
        case("common.sample_rate", ["1.0", "0.0"], rows).on("lr_monitor"),
        case("common.start_after_epoch", ["0", "1"], rows).on("lr_monitor"),
        case("common.on_error", ["\"isolate\"", "\"abort\""], end).on("test.fail"),
        case("common.quarantine_after", ["1", "0"], receipts).on("test.fail"),
        case("common.slow_after_ms", ["1", "0"], receipts).on("test.slow"),
        case("common.allow_non_finite", ["false", "true"], end)
            .on("test.edit")
            .with("points = \"blocks.0.hook_mlp_out\"\nby = 1e300"),
        case("common.observe_before_edits", ["false", "true"], rows)
            .on("activation_stats")
            .with("points = \"blocks.0.hook_mlp_out\"")
            .beside(DOUBLE),
        case("common.verbose", ["false", "true"], said).on("early_stopping").outside(),
    ]
}

const DOUBLE: &str = "[[hooks]]\nkind = \"test.edit\"\npoints = \"blocks.0.hook_mlp_out\"\nby = 2.0";

#[test]
fn every_common_option_makes_a_difference() {
    check(&cases());
}
