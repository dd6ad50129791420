//! `tenterhook points`.

use crate::support::*;

#[test]
fn lists_points_with_axes_and_aliases() {
    let ran = tenterhook(&["points".as_ref(), model("gpt2").as_os_str()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let line = ran.stdout.lines().find(|line| line.starts_with("blocks.1.attn.hook_pattern ")).unwrap();
    assert!(line.contains("batch head query_pos key_pos"));
    let line = ran.stdout.lines().find(|line| line.starts_with("blocks.1.hook_resid_post ")).unwrap();
    assert!(line.contains("transformer.h.1.hook_out"));
    assert!(!ran.stdout.contains("hook_rot_q"), "GPT-2 has no rotation");
    assert!(ran.stdout.contains("2 blocks"));
}

#[test]
fn json_says_the_same() {
    let ran = tenterhook(&["points".as_ref(), model("neox").as_os_str(), "--json".as_ref()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let names: Vec<&str> =
        json["points"].as_array().unwrap().iter().map(|point| point["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"blocks.0.attn.hook_rot_k"));
    assert!(!names.iter().any(|name| name.ends_with("hook_resid_mid")), "a parallel residual has no middle");
    let layers: Vec<&str> =
        json["layers"].as_array().unwrap().iter().map(|layer| layer.as_str().unwrap()).collect();
    assert!(layers.contains(&"gpt_neox.layers.0.attention.query_key_value"));
    let embed =
        json["points"].as_array().unwrap().iter().find(|point| point["name"] == "hook_embed").unwrap();
    assert_eq!(embed["axes"], "batch pos d_model");
    assert_eq!(embed["writable"], true);
}
