//! Tokens by text and by id.

use tenterhook_lens::LanguageModel;

use crate::support::*;

fn with_tokenizer() -> (tempfile::TempDir, LanguageModel) {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(directory("gpt2").join(file), dir.path().join(file)).unwrap();
    }
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/../tenterhook/tests/data/tokenizer.json");
    std::fs::copy(tokenizer, dir.path().join("tokenizer.json")).unwrap();
    let lm = LanguageModel::from_pretrained(dir.path().to_str().unwrap()).unwrap();
    (dir, lm)
}

#[test]
fn one_token_is_given_as_text_or_as_an_id() {
    let (_dir, lm) = with_tokenizer();
    assert_eq!(lm.to_single_token("hello").unwrap(), 11);
    assert_eq!(lm.to_single_token("#40").unwrap(), 40);
    assert_eq!((lm.token_label(11).as_str(), lm.token_label(40).as_str()), ("hello", "#40"));
    let error = lm.to_single_token("hellohello").unwrap_err().to_string();
    assert!(error.contains("tokens and must be one") && error.contains('#'), "{error}");
    assert!(lm.to_single_token("").unwrap_err().to_string().contains("0 tokens"));
    assert!(lm.to_single_token("#61").unwrap_err().to_string().contains("vocabulary of 61"));
}

#[test]
fn without_a_tokenizer_ids_work_and_text_says_why_not() {
    let lm = lm("gpt2");
    assert_eq!((lm.to_single_token("#5").unwrap(), lm.token_label(5).as_str()), (5, "#5"));
    let error = lm.to_single_token("hello").unwrap_err().to_string();
    assert!(error.contains("no tokenizer.json") && error.contains("#123"), "{error}");
}
