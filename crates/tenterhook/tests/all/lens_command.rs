//! `tenterhook lens`.

use crate::shown::*;

#[test]
fn the_last_row_is_what_the_model_says_and_the_table_says_the_same() {
    let model = model_path("llama");
    let args = ["lens", &model, "--tokens", "5,6,7,8", "--top", "3"];
    let data = json(&args);
    assert_eq!(data["tokens"][2]["id"], 7);
    let rows = data["rows"].as_array().unwrap();
    let labels: Vec<&str> = rows.iter().map(|row| row["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["0_pre", "0_post", "1_post"]);
    let best = &rows[2]["cells"][3]["top"][0];
    assert_eq!(rows[2]["cells"][0]["top"].as_array().unwrap().len(), 3);
    assert_eq!(rows[1]["cells"][0]["target"]["id"], 6, "the next token is followed");
    let told = works(&args);
    let line = told.lines().find(|line| line.starts_with("1_post")).unwrap();
    let want = format!("{} {:.2}", best["token"].as_str().unwrap(), best["probability"].as_f64().unwrap());
    assert!(line.ends_with(&want), "{line}\n{want}");
}

#[test]
fn texts_targets_and_points() {
    let dir = with_tokenizer();
    let model = dir.path().to_str().unwrap();
    let told = works(&["lens", model, "--prompt", "hello", "--target", "hello", "--points", "mid"]);
    assert!(told.lines().next().unwrap().ends_with("\"hello\""), "{told}");
    assert!(told.contains("0_mid") && told.contains("\"hello\" after the last token"), "{told}");
    let data = json(&["lens", model, "--prompt", "hello", "--no-bos", "--points", "blocks.*.hook_attn_out"]);
    assert_eq!(data["tokens"].as_array().unwrap().len(), 1);
    assert_eq!(data["rows"][1]["point"], "blocks.1.hook_attn_out");
    let data = json(&["lens", model, "--tokens", "1,2", "--target", "#33"]);
    assert_eq!(data["rows"][0]["cells"][1]["target"]["token"], "#33");
}

#[test]
fn long_texts_are_cut_in_the_table_only() {
    let ids = (0..30).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
    let model = model_path("neox");
    let told = works(&["lens", &model, "--tokens", &ids]);
    assert!(told.contains("the last 10 of 30 tokens"), "{told}");
    assert_eq!(json(&["lens", &model, "--tokens", &ids])["rows"][0]["cells"].as_array().unwrap().len(), 30);
}

#[test]
fn the_page_has_both_maps() {
    let dir = with_tokenizer();
    let page = page(&["lens", dir.path().to_str().unwrap(), "--prompt", "hello"]);
    assert!(page.contains("\\u0026lt;|end|\\u0026gt;") && page.contains("Plotly.newPlot(\"plot-2\""));
}

#[test]
fn bad_input_is_refused() {
    let model = model_path("gpt2");
    refused(&["lens", &model], &["--prompt TEXT or --tokens"]);
    refused(&["lens", &model, "--prompt", "x"], &["--prompt", "no tokenizer.json"]);
    refused(&["lens", &model, "--tokens", "1,61"], &["--tokens", "token id 61", "vocabulary of 61"]);
    refused(&["lens", &model, "--tokens", "1,x"], &["--tokens", "invalid"]);
    refused(&["lens", &model, "--tokens", ["1"; 17].join(",").as_str()], &["17 tokens", "16 positions"]);
    refused(&["lens", &model, "--tokens", "1", "--prompt", "x"], &["cannot be used with"]);
    refused(&["lens", &model, "--tokens", "1", "--no-bos"], &["cannot be used with"]);
    refused(&["lens", &model, "--tokens", "1", "--target", "x"], &["--target", "#123"]);
    refused(&["lens", &model, "--tokens", "1", "--target", "#99"], &["--target", "token id 99"]);
    refused(&["lens", &model, "--tokens", "1", "--points", "blocks.*.hook_nope"], &["hook_nope"]);
    refused(&["lens", &model, "--tokens", "1", "--points", "blocks.0.attn.hook_z"], &["batch pos d_model"]);
    refused(&["lens", "/nowhere", "--tokens", "1"], &["/nowhere"]);
    page_is_checked_first(&["lens", "/no/model", "--tokens", "1"]);
    let dir = with_tokenizer();
    let model = dir.path().to_str().unwrap();
    refused(&["lens", model, "--prompt", "hello", "--target", "hellohello"], &["--target", "must be one"]);
    refused(&["lens", model, "--prompt", "", "--no-bos"], &["--prompt", "at least one token"]);
    has_example("lens");
}

#[test]
fn hooks_of_a_file_take_part() {
    hooks_take_part(&["lens", &model_path("gpt2"), "--tokens", "1,2,3"], |data| {
        data["rows"][2]["cells"][2]["top"][0]["logit"].clone()
    });
}
