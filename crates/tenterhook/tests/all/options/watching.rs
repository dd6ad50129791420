//! Hooks that look at activations and gradients.

use super::cases::{Case, case, check};
use super::see::{captures, end, events, receipts, rows, said};

pub(super) fn cases() -> Vec<Case> {
    [measuring(), heads(), capture(), debug(), gradients()].concat()
}

fn measuring() -> Vec<Case> {
    const HERE: &str = "\"blocks.0.hook_mlp_out\"";
    const THERE: &str = "\"blocks.0.hook_attn_out\"";
    vec![
        case("activation_stats.points", [HERE, THERE], rows),
        case("activation_stats.stats", ["[\"mean\"]", "[\"max\"]"], rows),
        case("activation_stats.positions", ["0", "-1"], rows).with("points = \"blocks.0.hook_mlp_out\""),
        case("activation_stats.heads", ["[0]", "[1]"], rows).with("points = \"blocks.0.attn.hook_z\""),
        case("activation_stats.neurons", ["[0]", "[1]"], rows).with("points = \"blocks.0.hook_mlp_out\""),
        case("activation_stats.validation", ["false", "true"], rows),
        case("monitor.points", [HERE, THERE], rows),
        case("monitor.metrics", ["[\"mean\"]", "[\"norm\", {percentiles = [50.0]}]"], rows)
            .with("points = \"blocks.0.hook_mlp_out\""),
    ]
}

fn heads() -> Vec<Case> {
    vec![
        case(
            "head_scores.points",
            ["\"blocks.0.attn.hook_pattern\"", "\"blocks.1.attn.hook_pattern\""],
            rows,
        )
        .set("model.n_layers=2"),
        case("head_scores.kinds", ["[\"previous_token\"]", "[\"duplicate_token\"]"], rows),
        case("head_scores.max_texts", ["", "1"], rows),
        case("head_scores.validation", ["false", "true"], rows),
    ]
}

fn capture() -> Vec<Case> {
    let kept = |option, values| case(option, values, captures).with("points = \"transformer.h.0.mlp.c_fc\"");
    vec![
        case("capture.points", ["\"blocks.0.hook_mlp_out\"", "\"blocks.0.hook_attn_out\""], captures),
        kept("capture.layer_idx", ["", "7"]),
        kept("capture.capture_input", ["false", "true"]),
        kept("capture.capture_output", ["true", "false"])
            .with("points = \"transformer.h.0.mlp.c_fc\"\ncapture_input = true"),
        kept("capture.gradients", ["false", "true"]),
        kept("capture.retention", ["\"all\"", "{ring = 2}"]),
        kept("capture.positions", ["", "-1"]),
        kept("capture.heads", ["", "[1]"]).with("points = \"blocks.0.attn.hook_z\""),
        kept("capture.neurons", ["", "[1]"]),
    ]
}

/// Everything is below a thousand million.
fn debug() -> Vec<Case> {
    const POINT: &str = "points = \"blocks.0.hook_mlp_out\"";
    const FINDS: &str = "points = \"blocks.0.hook_mlp_out\"\nconditions = [{below = 1e9}]";
    const DUMPS: &str =
        "points = \"blocks.0.hook_mlp_out\"\nconditions = [{below = 1e9}]\nactions = [\"dump\"]";
    const NAN: &str = "[[hooks]]\nkind = \"test.edit\"\npoints = \"blocks.0.hook_mlp_out\"\nby = 1e300\n\
                       allow_non_finite = true";
    vec![
        case("debug.points", ["\"blocks.0.hook_mlp_out\"", "\"blocks.0.hook_attn_out\""], receipts)
            .with("conditions = [{below = 1e9}]"),
        case("debug.conditions", ["[{below = 1e9}]", "[{above = 1e9}]"], receipts).with(POINT),
        case("debug.actions", ["[]", "[\"stop\"]"], end).with(FINDS),
        case("debug.gradients", ["false", "true"], receipts).with(FINDS),
        case("debug.break_on_nan", ["false", "true"], end).with(POINT).beside(NAN),
        case("debug.log_shapes", ["false", "true"], said).with(POINT).outside(),
        case("debug.max_findings", ["1", "3"], receipts).with(FINDS),
        case("debug.max_dumps", ["1", "3"], captures).with(DUMPS),
    ]
}

fn gradients() -> Vec<Case> {
    // So small that every gradient behind it is zero; with 0 itself candle passes none on at all.
    const DEAD: &str = "[[hooks]]\nkind = \"test.edit\"\npoints = \"blocks.0.hook_mlp_out\"\nby = 1e-45";
    let flow = |option, values| case(option, values, rows).with("points = \"blocks.0.hook_mlp_out\"");
    let monitor = |option, values| case(option, values, rows).with("log_frequency = 1");
    vec![
        case("gradient_flow.points", ["\"blocks.0.hook_mlp_out\"", "\"blocks.0.hook_attn_out\""], rows),
        flow("gradient_flow.vanishing_below", ["0.0", "1e2"]),
        flow("gradient_flow.exploding_above", ["1e3", "1e-6"]),
        case("gradient_monitor.log_frequency", ["1", "3"], rows),
        case("gradient_monitor.log_histogram", ["true", "false"], events)
            .with("log_frequency = 1")
            .beside("[[hooks]]\nkind = \"tensorboard\""),
        monitor("gradient_monitor.log_norm", ["true", "false"]),
        monitor("gradient_monitor.param_filter", ["[]", "[\"ln\"]"]),
        monitor("gradient_monitor.percentiles", ["[10, 90]", "[50]"]),
        monitor("gradient_monitor.vanishing_below", ["0.0", "1e2"]),
        monitor("gradient_monitor.exploding_above", ["1e3", "1e-6"]),
        case("grad_coverage.zero", ["\"ignore\"", "\"stop\""], end).beside(DEAD),
        case("grad_coverage.every_step", ["false", "true"], rows).beside(DEAD),
    ]
}

#[test]
fn every_option_of_a_hook_that_watches_makes_a_difference() {
    check(&cases());
}

/// A histogram that is measured reaches TensorBoard.
#[test]
fn histograms_of_a_monitor_are_logged() {
    let with = "points = \"blocks.0.hook_mlp_out\"";
    let histogram = case("monitor.metrics", ["[\"mean\"]", "[\"mean\", {histogram = 4}]"], events);
    check(&[histogram.with(with).beside("[[hooks]]\nkind = \"tensorboard\"")]);
}
