//! `tenterhook patch`.

use serde_json::Value;

use crate::support::*;

/// A model with the tests' tokenizer, which knows few words.
fn with_tokenizer() -> tempfile::TempDir {
    let dir = copy_of("gpt2");
    let tokenizer = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer.json");
    std::fs::copy(tokenizer, dir.path().join("tokenizer.json")).unwrap();
    dir
}

fn patch(name: &str, more: &[&str]) -> Ran {
    let dir = model(name);
    let mut args = vec!["patch", dir.to_str().unwrap()];
    args.extend(["--clean-tokens", "3,17,5,40", "--corrupt-tokens", "3,18,5,40", "--answer", "#7"]);
    args.extend(more);
    tenterhook(&args)
}

fn json(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn a_sweep_is_a_table_of_blocks_and_positions() {
    let ran = patch("gpt2", &["--wrong", "#23"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[0], "resid_pre: clean activations into the corrupted run");
    assert!(
        lines[1].starts_with("0 is the corrupted prompt (") && lines[1].ends_with("logit of #7 - #23"),
        "{}",
        lines[1]
    );
    assert!(lines[3].starts_with("block  0 #3") && lines[3].contains("1 #18"), "{}", lines[3]);
    let cells = |line: &str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    // All of the difference enters at position 1, and nothing before it.
    assert_eq!(cells(lines[4])[..4], ["0", "0.000", "1.000", "0.000"]);
    assert!(lines.last().unwrap().contains("blocks were run in place of 20"), "{}", ran.stdout);
    assert!(ran.stderr.is_empty(), "{}", ran.stderr);
}

#[test]
fn json_has_everything_and_all_the_usual_sweeps() {
    for (name, sweeps) in [("gpt2", 6), ("llama", 6), ("neox", 5)] {
        let told = json(&patch(name, &["--sweep", "all", "--method", "both", "--json"]));
        let grids = told["grids"].as_array().unwrap();
        assert_eq!(
            (grids.len(), told["agreement"].as_array().unwrap().len()),
            (2 * sweeps, sweeps),
            "{name}"
        );
        for grid in grids {
            let values = grid["values"].as_array().unwrap();
            assert_eq!(values.len(), grid["rows"].as_array().unwrap().len());
            assert_eq!(values[0].as_array().unwrap().len(), grid["columns"].as_array().unwrap().len());
            assert_eq!(grid["metric"], "log probability of token 7");
            assert!(grid["normalised"].is_array() && grid["clean"] != grid["corrupted"]);
        }
        assert_eq!((&grids[0]["method"], &grids[1]["method"]), (&"exact".into(), &"attribution".into()));
        assert_eq!(told["corrupted"]["ids"], serde_json::json!([3, 18, 5, 40]));
        assert!(told["receipts"].as_array().unwrap().is_empty() && told["path"].is_null());
    }
}

#[test]
fn every_option_has_its_effect() {
    let first = |more: &[&str]| json(&patch("llama", &[more, &["--json"]].concat()))["grids"][0].clone();
    let plain = first(&["--wrong", "#23", "--sweep", "z"]);
    assert_eq!((&plain["column_axis"], plain["rows"].as_array().unwrap().len()), (&"head".into(), 2));
    let noise = first(&["--wrong", "#23", "--sweep", "z", "--direction", "noise"]);
    assert_eq!((&noise["clean"], &noise["direction"]), (&plain["clean"], &"noise".into()));
    assert_ne!(noise["values"], plain["values"]);
    let at_end = first(&["--wrong", "#23", "--sweep", "z", "--by", "head", "--at", "-1"]);
    assert_ne!(at_end["values"], plain["values"]);
    let both = first(&["--wrong", "#23", "--sweep", "z", "--by", "head-position"]);
    assert_eq!((both["rows"].as_array().unwrap().len(), both["columns"].as_array().unwrap().len()), (8, 4));
    let whole = first(&["--sweep", "z", "--by", "layer"]);
    assert_eq!(whole["columns"], serde_json::json!(["all"]));
    let earlier = first(&["--wrong", "#23", "--position", "2"]);
    assert_ne!(earlier["clean"], plain["clean"]);
    let probability = first(&["--metric", "prob"])["clean"].as_f64().unwrap();
    let logarithm = first(&["--metric", "logprob"])["clean"].as_f64().unwrap();
    assert!((probability.ln() - logarithm).abs() < 1e-5);
    let named = first(&["--sweep", "blocks.1.hook_mlp_out"]);
    assert_eq!(named["rows"], serde_json::json!(["1"]));
    let alone = first(&["--wrong", "#23", "--sweep", "z", "--batch-size", "1"]);
    assert_eq!(alone["values"], plain["values"]);
}

#[test]
fn paths_from_one_head_and_from_all() {
    let ran = patch("gpt2", &["--wrong", "#23", "--sender", "0.1", "--receiver", "1.0.q"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.starts_with("from 0.1 to 1.0.q: "), "{}", ran.stdout);
    let one = json(&patch("gpt2", &["--wrong", "#23", "--sender", "0.1", "--receiver", "1.0.q", "--json"]));
    let all = json(&patch("gpt2", &["--wrong", "#23", "--receiver", "1.0.q", "--json"]));
    assert_eq!(all["grids"][0]["values"][0][1], one["path"]["value"]);
    assert_eq!(all["grids"][0]["sweep"], "heads to 1.0.q");
    let frozen = json(&patch(
        "gpt2",
        &["--wrong", "#23", "--sender", "0.1", "--receiver", "1.0.q", "--freeze-mlps", "--json"],
    ));
    assert_ne!(frozen["path"]["value"], one["path"]["value"]);
}

#[test]
fn text_hooks_and_a_page() {
    let (dir, out) = (with_tokenizer(), tempfile::tempdir().unwrap());
    let page = out.path().join("patch.html");
    let hooks = out.path().join("hooks.toml");
    std::fs::write(
        &hooks,
        "[[hooks]]\nkind = \"scale\"\npoints = \"blocks.0.hook_attn_out\"\nfactor = 0.5\n",
    )
    .unwrap();
    let model = dir.path().to_str().unwrap();
    let mut args =
        vec!["patch", model, "--clean", "hollo", "--corrupt", "eollo", "--answer", "h", "--wrong", "o"];
    args.extend(["--sweep", "attn_out", "--method", "both", "--html", page.to_str().unwrap()]);
    let plain = tenterhook(&args);
    assert_eq!(plain.code, Some(0), "{}", plain.stderr);
    assert!(plain.stdout.contains("logit of \"h\" - \"o\""), "{}", plain.stdout);
    assert!(plain.stdout.contains("rank correlation of exact and attribution, attn_out"), "{}", plain.stdout);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("Corrupted:") && html.contains("heatmap"));
    assert!(["<script src", "<link", "@import"].iter().all(|outside| !html.contains(outside)));
    args.extend(["--hooks", hooks.to_str().unwrap()]);
    let hooked = tenterhook(&args);
    assert_eq!(hooked.code, Some(0), "{}", hooked.stderr);
    assert!(hooked.stdout.contains("scale") && hooked.stdout != plain.stdout, "{}", hooked.stdout);
}

#[test]
fn bad_input_is_told_in_one_message() {
    let dir = model("gpt2");
    let dir = dir.to_str().unwrap();
    let told = |more: &[&str], part: &str| {
        let ran = patch("gpt2", more);
        assert_eq!(ran.code, Some(2), "{more:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains(part) && ran.stdout.is_empty(), "{more:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("panicked"));
    };
    told(&["--wrong", "#99"], "--wrong: token id 99");
    told(&["--wrong", "yes"], "no tokenizer.json; give a token id");
    told(&["--metric", "logit_diff"], "give --wrong TOKEN");
    told(&["--sweep", "resid_middle"], "no point matches");
    told(&["--sweep", "attn_out", "--by", "head"], "has no heads");
    told(&["--sweep", "z", "--at", "1"], "give --by head as well");
    told(&["--sweep", "z", "--by", "head", "--at", "4"], "position 4 is not in the text");
    told(&["--position", "9"], "position 9 is not in the text");
    told(&["--sender", "0.1"], "--receiver");
    told(&["--sender", "0.1", "--receiver", "0.0.q"], "no path leads to `0.0.q`");
    told(&["--receiver", "1.9.q"], "there is no head 9");
    told(&["--receiver", "1.9"], "is no receiver");
    told(&["--batch-size", "0"], "`batch_size` is 0");
    told(&["--html", "/nowhere/at/all.html"], "/nowhere/at");
    let uneven =
        tenterhook(&["patch", dir, "--clean-tokens", "1,2,3", "--corrupt-tokens", "1,2", "--answer", "#7"]);
    assert_eq!(uneven.code, Some(2));
    assert!(uneven.stderr.contains("--clean has 3 tokens and --corrupt 2"), "{}", uneven.stderr);
    assert!(uneven.stderr.contains("clean:     #1 #2 #3"), "{}", uneven.stderr);
    let text = tenterhook(&["patch", dir, "--clean", "a", "--corrupt", "b", "--answer", "#7"]);
    assert_eq!(text.code, Some(2));
    assert!(text.stderr.contains("no tokenizer.json"), "{}", text.stderr);
    let same = tenterhook(&["patch", dir, "--clean-tokens", "1", "--corrupt-tokens", "1", "--answer", "#7"]);
    assert_eq!(same.code, Some(2));
    assert!(same.stderr.contains("nothing to patch"), "{}", same.stderr);
}

#[test]
fn the_help_has_an_example() {
    let ran = tenterhook(&["patch", "--help"]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.contains("tenterhook patch ./gpt2 --clean"), "{}", ran.stdout);
}
