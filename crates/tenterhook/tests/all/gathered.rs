//! What hooks gather in a run from a configuration is there for the user afterwards.

use std::fs;

use safetensors::SafeTensors;
use serde_json::Value;

use crate::lab::{Lab, TINY};

const HOOKS: &str = r#"
[[hooks]]
kind = "capture"
points = "blocks.0.hook_resid_post"
gradients = true
positions = -1
every = 20

[[hooks]]
kind = "monitor"
points = "transformer.h.0.mlp.c_fc"
metrics = ["mean", "std", {percentiles = [50.0]}, {histogram = 8}, "time"]

[[hooks]]
kind = "gradient_flow"
id = "flow"
points = ["blocks.0.hook_attn_out", "blocks.0.hook_mlp_out"]
vanishing_below = 1e2

[[hooks]]
kind = "debug"
id = "large"
points = "blocks.0.hook_mlp_out"
conditions = [{above = -1e9}]
actions = ["log", "dump"]
max_findings = 3
max_dumps = 2
every = 10

[[hooks]]
kind = "tensorboard"
"#;

fn trained() -> (Lab, String) {
    let lab = Lab::with(&format!("{TINY}{HOOKS}"));
    let ran = lab.ok(&["train", "run.toml"]);
    (lab, ran.stderr)
}

/// The names and shapes of the tensors in a file, and what its metadata says of them.
fn captured(lab: &Lab, file: &str) -> (Vec<(String, Vec<usize>)>, Value) {
    let bytes = fs::read(lab.run_dir("tiny").join("captures").join(file)).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut shapes: Vec<_> =
        tensors.iter().map(|(name, tensor)| (name.to_string(), tensor.shape().to_vec())).collect();
    shapes.sort();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    (shapes, serde_json::from_str(&metadata.metadata().as_ref().unwrap()["states"]).unwrap())
}

#[test]
fn captures_metrics_findings_and_receipts_are_left_behind() {
    let (lab, stderr) = trained();

    // Two batches make a step; of a validation after 20 steps there are passes too.
    let (tensors, states) = captured(&lab, "capture-00000000.safetensors");
    let names: Vec<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
    for name in ["blocks.0.hook_resid_post", "grad.blocks.0.hook_resid_post", "blocks.0.hook_resid_post#2"] {
        assert!(names.contains(&format!("step-00000000/{name}").as_str()), "{names:?}");
    }
    assert!(names.contains(&"step-00000020/blocks.0.hook_resid_post"), "{names:?}");
    assert!(tensors.iter().all(|(_, shape)| shape[1..] == [1, 16]), "one position: {tensors:?}");
    assert_eq!(states.as_array().unwrap().len(), tensors.len());
    assert_eq!((&states[0]["layer_idx"], &states[0]["site"]), (&0.into(), &"forward".into()));

    let rows = lab.metrics("tiny");
    let steps: Vec<&Value> = rows.iter().filter(|row| row.get("loss").is_some()).collect();
    for name in [
        "monitor/transformer.h.0.mlp.c_fc/mean",
        "monitor/transformer.h.0.mlp.c_fc/p50",
        "flow/blocks.0.hook_mlp_out/norm",
        "flow/blocks.0.hook_attn_out/ratio",
        "flow/vanishing",
    ] {
        assert!(steps.iter().all(|row| row[name].is_number()), "{name}: {}", steps[0]);
    }
    assert_eq!((&steps[0]["flow/vanishing"], &steps[0]["flow/exploding"]), (&2.0.into(), &0.0.into()));
    assert!(
        stderr.contains("the gradient at `blocks.0.hook_attn_out` is vanishing, its norm is"),
        "{stderr}"
    );
    let text = fs::read_to_string(lab.run_dir("tiny").join("metrics.jsonl")).unwrap();
    assert!(text.contains("\"time/monitor/transformer.h.0.mlp.c_fc\""), "times are among the times");

    assert!(stderr.contains("`blocks.0.hook_mlp_out`, step 0: above -1000000000 in"), "{stderr}");
    assert_eq!(captured(&lab, "large-00000000.safetensors").0.len(), 2, "max_dumps");
    let receipts: Value =
        serde_json::from_slice(&fs::read(lab.run_dir("tiny").join("receipts.json")).unwrap()).unwrap();
    let of = |id: &str| receipts.as_array().unwrap().iter().find(|hook| hook["id"] == id).unwrap();
    assert_eq!(of("large")["findings"].as_array().unwrap().len(), 3, "max_findings");
    assert_eq!(of("large")["findings"][0]["point"], "blocks.0.hook_mlp_out");
    assert_eq!(of("flow")["layers"][1]["verdict"], "vanishing");
    let layer = &of("monitor")["layers"]["transformer.h.0.mlp.c_fc"];
    assert_eq!(layer["histogram"]["counts"].as_array().unwrap().len(), 8);
    assert!(of("capture")["bytes_captured"].as_u64().unwrap() > 0);
}

/// What a hook has counted survives a restart, so that a run that was cut logs the same numbers.
#[test]
fn counts_go_on_after_a_restart() {
    let (whole, _) = trained();
    let lab = Lab::with(&format!("{TINY}{HOOKS}"));
    lab.ok(&["train", "run.toml", "--set", "train.steps=20", "--set", "schedule.steps=40"]);
    lab.ok(&["train", "run.toml", "--resume", "--set", "schedule.steps=40"]);
    let counts = |lab: &Lab| -> Vec<Value> {
        lab.metrics("tiny").iter().filter_map(|row| row.get("large/findings").cloned()).collect()
    };
    assert_eq!(counts(&lab), counts(&whole));
}
