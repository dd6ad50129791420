use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;
use crate::config::{Document, Format, TrainSection};

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
struct Kitchen {
    name: String,
    #[serde(default)]
    mode: Mode,
    oven: Oven,
    spare: Option<Oven>,
    #[serde(default)]
    shelves: Vec<Shelf>,
    #[serde(default)]
    stock: BTreeMap<String, u32>,
    drink: Option<Drink>,
    #[serde(default)]
    hours: [u8; 2],
    #[serde(default, alias = "loafs")]
    #[schemars(extend("aliases" = ["loafs"]))]
    loaves: u8,
}

#[derive(Debug, Default, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Mode {
    #[default]
    Slow,
    Fast,
}

// Without `deny_unknown_fields`: unknown keys are found nevertheless.
#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
struct Oven {
    heat: f64,
    #[serde(default)]
    minutes: u32,
}

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
struct Shelf {
    height: i32,
}

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum Drink {
    Tea { minutes: u32 },
    Coffee { beans: String, milk: Option<bool> },
}

fn check(text: &str, expected: &[&str]) {
    let document = Document::parse(text, Format::Toml).unwrap();
    let mut problems = document.problems();
    let kitchen: Option<Kitchen> = read_section(document.value(), "", &mut problems);
    let found = problems.to_string();
    assert_eq!(found.lines().collect::<Vec<_>>(), expected, "{text}");
    assert_eq!(kitchen.is_some(), expected.is_empty());
}

#[test]
fn a_good_section_is_read() {
    check("name = 'a'\noven.heat = 1\n", &[]);
    check(
        "name = 'a'\nmode = 'fast'\noven.heat = 1.5\nspare = {heat = 2, minutes = 3}\nshelves = [{height = -1}]\nloafs = 2\n\
         stock = {a = 1, 'b c' = 2}\ndrink = {kind = 'coffee', beans = 'x', milk = true}\n",
        &[],
    );
}

#[test]
fn every_mistake_is_found_at_once() {
    check(
        "nam = 3\nmode = 'fats'\nloafs = 300\n[oven]\nheat = 'hot'\nminuts = 1\nminutes = -2\n[spare]\nminutes = 1.5\n\
         [[shelves]]\n[[shelves]]\nheight = [1]\ncolour = 'red'\n[stock]\na = true\nb = 1\n[drink]\nkind = 'coffee'\nminutes = 3\nmilk = 'no'\n",
        &[
            "name: missing key",
            "line 1: nam: unknown key; did you mean `name`?",
            "line 2: mode: is `fats`, expected `slow` or `fast`; did you mean `fast`?",
            "line 3: loafs: is `300`, expected a whole number, not negative",
            "line 5: oven.heat: is the text \"hot\", expected a number",
            "line 6: oven.minuts: unknown key; did you mean `minutes`?",
            "line 7: oven.minutes: is `-2`, expected a whole number, not negative",
            "line 8: spare.heat: missing key",
            "line 9: spare.minutes: is `1.5`, expected a whole number, not negative",
            "line 10: shelves[0].height: missing key",
            "line 12: shelves[1].height: is a list, expected a whole number",
            "line 13: shelves[1].colour: unknown key; there are `height`",
            "line 15: stock.a: is `true`, expected a whole number, not negative",
            "line 17: drink.beans: missing key",
            "line 19: drink.minutes: unknown key; did you mean `kind`?",
            "line 20: drink.milk: is the text \"no\", expected true or false",
        ],
    );
}

#[test]
fn a_wrong_kind_is_told_with_the_others() {
    let good = "name = 'a'\noven.heat = 1\n";
    check(
        &format!("{good}drink = {{kind = 'coffe', beens = 'x'}}\n"),
        &["line 3: drink.kind: `coffe` is none of `tea`, `coffee`; did you mean `coffee`?"],
    );
    check(&format!("{good}drink = {{}}\n"), &["line 3: drink.kind: missing key; one of `tea`, `coffee`"]);
    check(&format!("{good}drink = {{kind = 1}}\n"), &["line 3: drink.kind: must be one of `tea`, `coffee`"]);
    check(&format!("{good}drink = 5\n"), &["line 3: drink: is `5`, expected internally tagged enum Drink"]);
    check(
        &format!("{good}stock = 5\nshelves = 3\n"),
        &["line 3: stock: is `5`, expected a table", "line 4: shelves: is `3`, expected a list"],
    );
}

#[test]
fn a_list_of_fixed_length_is_judged_as_a_whole() {
    let bad = "name = 1\noven.heat = 1\n";
    check(&format!("{bad}hours = [8, 18]\n"), &["line 1: name: is `1`, expected a text"]);
    check(
        "name = 'a'\noven.heat = 1\nhours = [8]\n",
        &["line 3: hours: invalid length 1, expected an array of length 2"],
    );
}

#[test]
fn a_section_that_is_no_table_is_refused() {
    let mut problems = Problems::default();
    assert_eq!(read_section::<Kitchen>(&serde_json::json!([1]), "kitchen", &mut problems), None);
    check("name = 'a'\noven = [1.5, 3]\n", &["line 2: oven: is a list, expected a table"]);
    assert_eq!(problems.len(), 1);
    assert!(problems.to_string().starts_with("kitchen: "), "{problems}");
}

#[test]
fn values_are_looked_at_beside_wrong_keys() {
    let wrong = |train: &TrainSection| train.problems();
    for (text, expected) in [
        ("steps = 5\ngrad_clip = -1.0\nstepz = 1", &["train.grad_clip: must", "train.stepz: unknown"][..]),
        // Nothing is said about a key that is missing only because it was taken out.
        ("steps = 'x'\nlog_every = 0", &["train.log_every: is 0", "train.steps: is the text"]),
        ("steps = 5\nepochs = 'x'", &["train.epochs: is the text"]),
        ("steps = 5\nepochs = 1", &["train.epochs: `steps` is given too"]),
    ] {
        let document = Document::parse(&format!("[train]\n{text}\n"), Format::Toml).unwrap();
        let mut problems = Problems::default();
        check_section(&document.value()["train"], "train", &mut problems, wrong);
        let mut told: Vec<String> = problems.to_string().lines().map(str::to_string).collect();
        told.sort();
        assert_eq!(told.len(), expected.len(), "{told:?}");
        assert!(told.iter().zip(expected).all(|(told, expected)| told.starts_with(expected)), "{told:?}");
    }
}
