//! `tenterhook heads`.

use crate::shown::*;

#[test]
fn every_head_gets_a_score_per_habit() {
    let model = model_path("gpt2");
    let data = json(&["heads", &model]);
    let kinds = data["detectors"]["kinds"].as_array().unwrap();
    let names: Vec<&str> = kinds.iter().map(|kind| kind["kind"].as_str().unwrap()).collect();
    assert_eq!(names, ["induction", "previous_token", "duplicate_token"]);
    for kind in kinds {
        let scores: Vec<Vec<f64>> = serde_json::from_value(kind["scores"].clone()).unwrap();
        assert_eq!((scores.len(), scores[0].len()), (2, 4));
        assert!(scores.iter().flatten().all(|score| (0.0..=1.0).contains(score)));
    }
    let told = works(&["heads", &model]);
    assert!(
        told.contains("4 texts of 7 random tokens that come twice"),
        "the model has 16 positions: {told}"
    );
    assert!(told.contains("block  H0") && told.contains("induction ("), "{told}");
    assert_eq!(told, works(&["heads", &model]), "the same seed, the same tokens");
    assert_ne!(told, works(&["heads", &model, "--seed", "1"]));
}

#[test]
fn habits_are_looked_for_in_a_text_too() {
    let dir = with_tokenizer();
    let model = dir.path().to_str().unwrap();
    let told = works(&["heads", model, "--prompt", "hello hello", "--detect", "duplicate,previous"]);
    assert!(told.contains("tokens of the given text") && !told.contains("induction"), "{told}");
    let told = works(&["heads", model, "--tokens", "1,2,3", "--detect", "induction"]);
    assert!(told.contains("no token of the text comes twice"), "{told}");
}

#[test]
fn patterns_of_chosen_heads() {
    let model = model_path("llama");
    let args = ["heads", &model, "--tokens", "5,6,7", "--patterns", "--layers", "1", "--heads", "3"];
    let data = json(&args);
    assert!(data.get("detectors").is_none(), "only what was asked for");
    let heads = data["patterns"]["heads"].as_array().unwrap();
    assert_eq!((heads.len(), &heads[0]["block"], &heads[0]["head"]), (1, &1.into(), &3.into()));
    let pattern: Vec<Vec<f64>> = serde_json::from_value(heads[0]["pattern"].clone()).unwrap();
    assert!(pattern.iter().all(|row| (row.iter().sum::<f64>() - 1.0).abs() < 1e-5));
    let told = works(&args);
    assert!(told.contains("attention of L1H3") && told.contains("#7"), "{told}");
    assert!(told.contains(&format!("{:.2}", pattern[2][1])), "{told}");
    assert!(page(&args).contains("Attention of L1H3"));
    let told = works(&args[..5]);
    assert_eq!(told.lines().filter(|line| line.starts_with('L')).count(), 8, "{told}");
}

#[test]
fn circuits_and_composition_come_from_the_weights_alone() {
    let model = model_path("llama");
    let args = ["heads", &model, "--circuits", "--layers", "1", "--composition", "Q,k,V", "--top", "4"];
    let data = json(&args);
    let heads = data["circuits"]["heads"].as_array().unwrap();
    assert_eq!(heads.len(), 4);
    assert_eq!(heads[0]["ov"]["singular_values"].as_array().unwrap().len(), 6);
    assert_eq!(heads[0]["ov"]["directions"][0]["to"].as_array().unwrap().len(), 4);
    let kinds: Vec<&str> =
        data["composition"].as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["Q", "K", "V"]);
    let told = works(&args);
    assert!(told.contains("leaves the rotation out") && told.contains("K: writes"), "{told}");
    assert!(page(&args).contains("OV copying scores"));
}

#[test]
fn bad_input_is_refused() {
    let model = model_path("gpt2");
    let with = |more: &[&'static str], words: &[&str]| {
        refused(&[&["heads", &model], more].concat(), words);
    };
    with(&["--detect", "copying"], &["--detect", "induction, previous, duplicate"]);
    with(&["--seq-len", "9"], &["--seq-len", "between 1 and 7"]);
    with(&["--seq-len", "0"], &["between 1 and 7"]);
    with(&["--texts", "0"], &["--texts"]);
    with(&["--tokens", "1,2", "--seq-len", "3"], &["cannot be used with"]);
    with(&["--patterns"], &["--prompt TEXT or --tokens"]);
    with(&["--patterns", "--tokens", "1,2", "--layers", "2"], &["no block 2"]);
    with(&["--circuits", "--heads", "0,4"], &["no head 4"]);
    with(&["--composition", "X"], &["--composition", "Q, K, V"]);
    with(&["--tokens", "70"], &["token id 70"]);
    page_is_checked_first(&["heads", "/no/model"]);
    has_example("heads");
}

#[test]
fn hooks_of_a_file_take_part() {
    hooks_take_part(&["heads", &model_path("llama"), "--seq-len", "5"], |data| {
        data["detectors"]["kinds"][0]["scores"][1][0].clone()
    });
}
