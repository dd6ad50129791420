//! Hooks that change what the model computes: every option changes what is learnt.

use super::cases::{Case, case, check};
use super::see::rows;
use crate::example_files::quoted;

const STREAM: &str = "points = \"blocks.0.hook_resid_post\"";
/// With the whole stream replaced nothing could be learnt, and the run would end.
const PART: &str = "points = \"blocks.0.hook_resid_post\"\nneurons = [0, 3]";
const HEADS: &str = "points = \"blocks.0.attn.hook_z\"";

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, more) in kinds() {
        let option = |name: &str| leak(format!("{kind}.{name}"));
        cases.push(
            case(option("points"), ["\"blocks.0.hook_resid_post\"", "\"blocks.0.hook_resid_pre\""], rows)
                .with(leak(format!(
                    "{more}\nstrength = 0.9{}",
                    if kind == "patch" { "\nkey = \"other\"" } else { "" }
                ))),
        );
        let here = |text: &str| leak(format!("{text}\n{more}"));
        cases.push(case(option("positions"), ["0", "[1, -1]"], rows).with(here(STREAM)));
        cases.push(case(option("neurons"), ["[0]", "[1, 5]"], rows).with(here(STREAM)));
        cases.push(case(option("strength"), ["0.5", "0.7"], rows).with(here(STREAM)));
        // Where there are heads, their four numbers take a value, but no tensor of the stream.
        let by_value = match kind {
            "patch" | "steer" => continue,
            _ => here(HEADS),
        };
        cases.push(case(option("heads"), ["[0]", "[1]"], rows).with(by_value));
    }
    cases.extend(own_options());
    cases
}

/// The kinds with what they cannot do without.
fn kinds() -> Vec<(&'static str, String)> {
    vec![
        ("zero_ablate", String::new()),
        ("mean_ablate", String::new()),
        ("scale", "factor = 2.0".to_string()),
        ("noise", "std = 0.5".to_string()),
        ("replace", "value = 0.5".to_string()),
        ("steer", format!("vector = {}", quoted("direction.safetensors"))),
        ("patch", format!("from = {}", quoted("clean.safetensors"))),
    ]
}

fn own_options() -> Vec<Case> {
    let stream = |more: &str| leak(format!("{PART}\n{more}"));
    let file = |name: &str| leak(quoted(name));
    let key = |option, kind_option: &str, name: &str| {
        case(option, ["", "\"other\""], rows).with(stream(&format!("{kind_option} = {}", quoted(name))))
    };
    let heads = |kind: &str, key: &str| {
        // The head's own numbers: a vector of one number goes with any.
        let more = format!("{HEADS}\n{key} = {}\nkey = \"one\"", quoted("one.safetensors"));
        case(leak(format!("{kind}.heads")), ["[0]", "[1]"], rows).with(leak(more))
    };
    vec![
        case("scale.factor", ["2.0", "3.0"], rows).with(PART),
        case("noise.std", ["0.1", "0.2"], rows).with(PART),
        case("noise.seed", ["1", "2"], rows).with(stream("std = 0.1")),
        case("replace.value", ["0.1", "0.2"], rows).with(PART),
        case("replace.tensor", [file("tensors.safetensors"), file("other.safetensors")], rows).with(PART),
        key("replace.key", "tensor", "tensors.safetensors"),
        case("mean_ablate.mean", [file("means.safetensors"), file("other.safetensors")], rows).with(PART),
        key("mean_ablate.key", "mean", "means.safetensors"),
        case("steer.vector", [file("direction.safetensors"), file("other.safetensors")], rows).with(PART),
        key("steer.key", "vector", "direction.safetensors"),
        heads("steer", "vector"),
        case("patch.from", [file("clean.safetensors"), file("other.safetensors")], rows).with(PART),
        key("patch.key", "from", "clean.safetensors"),
        case("patch.heads", ["[0]", "[1]"], rows)
            .with(leak(format!("{HEADS}\nfrom = {}\nkey = \"heads\"", quoted("one.safetensors")))),
        case("patch.from_positions", ["[0]", "[1]"], rows)
            .with(stream(&format!("positions = 2\nfrom = {}", quoted("clean.safetensors")))),
        case(
            "knockout.points",
            ["\"blocks.0.attn.hook_attn_scores\"", "\"blocks.0.attn.hook_pattern\""],
            rows,
        )
        .with("edges = [[2, 0]]"),
        case("knockout.heads", ["[0]", "[1]"], rows).with("edges = [[2, 0]]"),
        case("knockout.queries", ["1", "2"], rows).with("keys = 0"),
        case("knockout.keys", ["0", "1"], rows).with("queries = 2"),
        case("knockout.edges", ["[[2, 0]]", "[[2, 1]]"], rows),
        case("knockout.strength", ["0.2", "0.9"], rows).with("edges = [[2, 0]]"),
    ]
}

fn leak(text: String) -> &'static str {
    text.leak()
}

#[test]
fn every_option_of_a_controller_makes_a_difference() {
    check(&cases());
}
