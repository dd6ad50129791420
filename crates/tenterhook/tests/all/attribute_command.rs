//! `tenterhook attribute`.

use serde_json::Value;

use crate::shown::*;

fn sum(data: &Value) -> f64 {
    let parts = data["components"].as_array().unwrap().iter().map(|part| part["value"].as_f64().unwrap());
    parts.sum::<f64>() + data["constant"].as_f64().unwrap() + data["others"].as_f64().unwrap_or(0.0)
}

#[test]
fn parts_add_up_to_the_logit() {
    for (name, parts) in [("gpt2", [6, 14, 78]), ("llama", [5, 11, 59]), ("neox", [5, 11, 77])] {
        let model = model_path(name);
        for (by, parts) in ["layer", "head", "neuron"].iter().zip(parts) {
            let args =
                ["attribute", &model, "--tokens", "5,6,7", "--answer", "#3", "--wrong", "#9", "--by", by];
            let data = json(&args);
            assert_eq!(data["components"].as_array().unwrap().len(), parts, "{name} by {by}");
            let logit = data["logit"].as_f64().unwrap();
            assert!((sum(&data) - logit).abs() < 1e-4, "{name} by {by}");
            let short = json(&[&args[..], &["--top", "2"]].concat());
            assert_eq!(short["components"].as_array().unwrap().len(), 2);
            assert!((sum(&short) - logit).abs() < 1e-4, "{name} by {by}, the others");
            let told = works(&args);
            assert!(told.contains("logit of #3 minus logit of #9 after token 2"), "{told}");
            let last = told.lines().last().unwrap();
            assert!(last.starts_with("sum") && last.ends_with(&format!("{logit:+.4}")), "{told}");
        }
    }
}

#[test]
fn a_soft_cap_is_named_and_positions_count_from_both_ends() {
    let model = model_path("gemma2");
    let args = ["attribute", &model, "--tokens", "5,6,7", "--answer", "#3"];
    assert!(works(&args).contains("before the soft cap of 8"));
    let at = |position: &str| json(&[&args[..], &["--position", position, "--by", "head"]].concat());
    assert_eq!(at("1")["logit"], at("-2")["logit"]);
    assert_ne!(at("1")["logit"], at("2")["logit"]);
}

#[test]
fn texts_work_and_pages_show_bars_and_heads() {
    let dir = with_tokenizer();
    let model = dir.path().to_str().unwrap();
    let args = ["attribute", model, "--prompt", "hello", "--answer", "hello", "--wrong", "#2"];
    assert!(works(&args).contains("logit of \"hello\" minus logit of \"l\" after token 1"));
    assert!(page(&args).contains("0_attn_out"));
    let heads = page(&[&args[..], &["--by", "head"]].concat());
    assert!(heads.contains("L0H1") && heads.contains("\"heatmap\""));
    assert!(page(&[&args[..], &["--by", "neuron", "--top", "3"]].concat()).contains("\"bar\""));
}

#[test]
fn bad_input_is_refused() {
    let model = model_path("gpt2");
    let with = |more: &[&'static str], words: &[&str]| {
        refused(&[&["attribute", &model, "--tokens", "1,2"], more].concat(), words);
    };
    with(&[], &["--answer"]);
    with(&["--answer", "#61"], &["--answer", "vocabulary of 61"]);
    with(&["--answer", "#1", "--wrong", "word"], &["--wrong", "no tokenizer.json"]);
    with(&["--answer", "#1", "--position", "2"], &["position 2", "0 to 1 or -2 to -1"]);
    with(&["--answer", "#1", "--position", "-3"], &["position -3"]);
    with(&["--answer", "#1", "--by", "block"], &["--by", "layer, head, neuron"]);
    refused(&["attribute", &model, "--answer", "#1"], &["--prompt TEXT or --tokens"]);
    page_is_checked_first(&["attribute", "/no/model", "--tokens", "1", "--answer", "#1"]);
    has_example("attribute");
}

#[test]
fn hooks_of_a_file_take_part() {
    let model = model_path("neox");
    hooks_take_part(&["attribute", &model, "--tokens", "1,2,3", "--answer", "#4"], |data| {
        data["logit"].clone()
    });
}
