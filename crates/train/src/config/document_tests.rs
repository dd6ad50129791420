use proptest::prelude::*;
use serde_json::json;

use super::*;

fn line(document: &Document, path: &str) -> Option<Line> {
    let mut problems = document.problems();
    problems.add(path, "x");
    problems.iter().next().and_then(|problem| problem.line)
}

#[test]
fn toml_keys_know_their_lines() {
    let text = "top = 1\n\n[data.train]\npath = 'a'\nlist = [\n  1,\n  { deep = 2 },\n]\n\n\
                [[optimizer]]\nlr = 1\n[[optimizer]]\nlr.start = 2\n[hook_configs.\"my.Hook\"]\nx = 1\n";
    let document = Document::parse(text, Format::Toml).unwrap();
    assert_eq!(document.value()["data"]["train"]["list"], json!([1, {"deep": 2}]));
    for (path, expected) in [
        ("top", 1),
        ("data.train", 3),
        ("data.train.path", 4),
        ("data.train.absent", 3),
        ("data.train.list", 5),
        ("data.train.list[0]", 6),
        ("data.train.list[1].deep", 7),
        ("optimizer[0]", 10),
        ("optimizer[0].lr", 11),
        ("optimizer[1].absent", 12),
        ("optimizer[1].lr.start", 13),
        ("hook_configs.\"my.Hook\"", 14),
        ("hook_configs.\"my.Hook\".x", 15),
    ] {
        assert_eq!(line(&document, path), Some(Line::At(expected)), "{path}");
    }
    assert_eq!(line(&document, "absent"), None);
}

#[test]
fn json_keys_know_their_lines() {
    let text = "{\n \"a\": {\"x\\\"y\": [1,\n  {\"deep\": -1.5e3}]},\n\n \"b\": \"}{\\\\\",\n \"gone\": null,\n \"c\": []}";
    let document = Document::parse(text, Format::Json).unwrap();
    assert_eq!(*document.value(), json!({"a": {"x\"y": [1, {"deep": -1500.0}]}, "b": "}{\\", "c": []}));
    for (path, expected) in [
        ("a", 2),
        ("a.\"x\\\"y\"", 2),
        ("a.\"x\\\"y\"[0]", 2),
        ("a.\"x\\\"y\"[1]", 3),
        ("a.\"x\\\"y\"[1].deep", 3),
        ("b", 5),
        ("c", 7),
    ] {
        assert_eq!(line(&document, path), Some(Line::At(expected)), "{path}");
    }
}

#[test]
fn bad_text_is_refused_with_its_place() {
    for (format, text, expected) in [
        (Format::Toml, "a = 1\nb = = 2\n", "line 2, column 5: "),
        (Format::Toml, "[a]\nx = 1\nx = 2\n", "line 3, column 1: duplicate key"),
        (Format::Toml, "a = \"ü\" x", "line 1, column 9: "),
        (Format::Toml, "a = 1\nb.c = [1, nan]\n", "line 2: b.c[1]: NaN is no usable number"),
        (Format::Json, "{\"a\": 1,\n \"b\" 2}", "line 2, column 6: expected `:`"),
        (Format::Json, "", "line 1, column 1: EOF while parsing a value"),
        (Format::Json, "[1]", "line 1: a configuration is an object: { ... }"),
        (Format::Json, "{\"a\": 1,\n \"a\": 2}", "line 2, column 2: a: the key is given twice"),
        (Format::Json, "{\"a\": [1,\nnull]}", "line 2: a[1]: null in a list"),
        (Format::Json, "{\"a\": 9223372036854775808}", "line 1: a: the number is above 9223372036854775807"),
    ] {
        let problems = Document::parse(text, format).unwrap_err().to_string();
        assert!(problems.starts_with(expected), "{text}: {problems}");
    }
}

#[test]
fn files_are_read_by_extension_and_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    assert_eq!(Document::read(&write("a.toml", "\u{feff}x = 1")).unwrap().value()["x"], 1);
    assert_eq!(Document::read(&write("a.json", "{\"x\": 1}")).unwrap().value()["x"], 1);
    let big = format!("# {}\n", "x".repeat(4 << 20));
    for (path, expected) in [
        (write("a.yaml", "x: 1"), "a configuration ends with .toml or .json"),
        (write("big.toml", &big), "bytes, more than 4194304"),
        (dir.path().join("absent.toml"), "cannot be read: "),
    ] {
        let problems = Document::read(&path).unwrap_err().to_string();
        assert!(problems.starts_with(&format!("{}: ", path.display())), "{problems}");
        assert!(problems.contains(expected), "{problems}");
    }
    let path = write("bad.toml", "a = 1\nb");
    assert!(Document::read(&path).unwrap_err().to_string().starts_with(&format!("{}:2:", path.display())));
}

#[test]
fn deep_nesting_is_refused() {
    let dotted = format!("{}x", "a.".repeat(70));
    let texts = [
        (Format::Toml, format!("a = {}{}", "[".repeat(100_000), "]".repeat(100_000))),
        (Format::Toml, format!("a = {}1{}", "{a = ".repeat(100_000), "}".repeat(100_000))),
        (Format::Toml, format!("{}x = 1", "a.".repeat(100_000))),
        // Each part is allowed by itself.
        (Format::Toml, format!("[{dotted}]\n{dotted} = 1")),
        (Format::Json, format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000))),
        (Format::Json, "{\"a\":".repeat(100_000)),
    ];
    for (format, text) in texts {
        let problems = Document::parse(&text, format).unwrap_err().to_string();
        assert!(problems.contains("recur") || problems.contains("nested deeper"), "{problems}");
        assert!(problems.len() < 1000);
    }
}

#[test]
fn overrides_reach_every_place() {
    let text = "[train]\nsteps = 1\n[[optimizer]]\nlr = 1.0\n[sizes]\n0 = 'zero'\n";
    for (assignment, path, expected) in [
        ("train.steps=100", "train.steps", json!(100)),
        (" train . steps = 100 ", "train.steps", json!(100)),
        ("train.lr=1e-3", "train.lr", json!(1e-3)),
        ("optimizer.0.lr=2.5", "optimizer[0].lr", json!(2.5)),
        ("optimizer[0].betas=[0.9, 0.99]", "optimizer[0].betas", json!([0.9, 0.99])),
        ("optimizer[1].lr=3.0", "optimizer[1].lr", json!(3.0)),
        ("sizes.0=one", "sizes.0", json!("one")),
        ("run.name=a=b #c", "run.name", json!("a=b #c")),
        ("run.name=\"7\"", "run.name", json!("7")),
        ("run.debug=true", "run.debug", json!(true)),
        ("new.table.key=00:30:00", "new.table.key", json!("00:30:00")),
        ("hook_configs.\"my.Hook\".x=1", "hook_configs.\"my.Hook\".x", json!(1)),
        ("train={steps = 5}", "train", json!({"steps": 5})),
    ] {
        let mut document = Document::parse(text, Format::Toml).unwrap();
        document.set(assignment).unwrap();
        assert_eq!(line(&document, path), Some(Line::Set), "{assignment}");
        assert_eq!(line(&document, "sizes"), Some(Line::At(5)));
        let pointer = path.replace("\"my.Hook\"", "my_Hook").replace(['.', '['], "/").replace(']', "");
        let pointer = format!("/{}", pointer.replace("my_Hook", "my.Hook"));
        assert_eq!(document.value().pointer(&pointer), Some(&expected), "{assignment}");
    }
    let mut document = Document::parse(text, Format::Toml).unwrap();
    document.set("train={steps = 5}").unwrap();
    assert_eq!(line(&document, "train.steps"), Some(Line::Set), "the old line is gone");
}

#[test]
fn bad_overrides_are_refused_and_change_nothing() {
    let text = "[train]\nsteps = 1\n[[optimizer]]\nlr = 1.0\n";
    for (assignment, expected) in [
        ("train.steps", "--set: `train.steps`: an override is written key.key=value"),
        ("", "--set: a key is made of"),
        ("=1", "--set: a key is made of"),
        ("train..steps=1", "--set: `train..steps`: a key is made of"),
        ("train.[0]x=1", "--set: `train.[0]x`: an override is written"),
        ("train.steps=", "--set: train.steps: no value after `=`"),
        ("train.steps=[1, 2", "--set: train.steps: "),
        ("train.steps=nan", "--set: train.steps: NaN is no usable number"),
        ("train.steps.x=1", "--set: train.steps: is a single value"),
        ("optimizer.lr=1", "--set: optimizer: is a list: write optimizer[0].lr"),
        ("optimizer[2].lr=1", "--set: optimizer[2]: the list has 1 elements"),
        ("train[0]=1", "--set: train: is a table, not a list"),
        ("optimizer[x]=1", "--set: `optimizer[x]`: what is between [ and ] must be a number"),
        ("\"train=1", "--set: `\"train`: a quoted key does not end"),
        ("a.b.c.optimizer[5]=1", "--set: a.b.c.optimizer[5]: the list has 0 elements"),
    ] {
        let mut document = Document::parse(text, Format::Toml).unwrap();
        let before = document.value().clone();
        let problems = document.set(assignment).unwrap_err().to_string();
        assert!(problems.starts_with(expected), "{assignment}: {problems}");
        assert_eq!(*document.value(), before, "{assignment}");
    }
    let mut document = Document::parse(text, Format::Toml).unwrap();
    assert!(document.set(&format!("{}x=1", "a.".repeat(200))).unwrap_err().to_string().contains("nested"));
}

proptest! {
    #[test]
    fn no_text_makes_parsing_panic(text in ".{0,200}", marks in "[\\[\\]{}\"'=.,:#a1\\\\ \n\r-]{0,60}") {
        for text in [text.as_str(), marks.as_str(), &format!("{{\"a\": {marks}}}"), &format!("a = {marks}")] {
            for format in [Format::Toml, Format::Json] {
                if let Err(problems) = Document::parse(text, format) {
                    prop_assert!(!problems.is_empty() && !problems.to_string().is_empty());
                }
            }
            let mut document = Document::parse("[[a]]\nb = 1", Format::Toml).unwrap();
            let _ = document.set(text);
            let _ = document.set(&format!("a[0].b={text}"));
        }
    }

    /// Every JSON text is read to what `serde_json` reads, and each key has the line it was printed on.
    #[test]
    fn json_lines_match_the_printed_ones(keys in prop::collection::btree_set("[a-z\\.\"\\\\ü]{1,4}", 1..6)) {
        let table: serde_json::Map<String, Value> =
            keys.iter().enumerate().map(|(index, key)| (key.clone(), json!([index, {"x": "}]\\\","}]))).collect();
        let text = serde_json::to_string_pretty(&table).unwrap();
        let document = Document::parse(&text, Format::Json).unwrap();
        prop_assert_eq!(document.value(), &Value::Object(table));
        // Each entry takes six lines: the key, the number, {, x, } and ].
        for (index, key) in keys.iter().enumerate() {
            let path = super::super::path::join("", key);
            prop_assert_eq!(line(&document, &path), Some(Line::At(2 + 6 * index)));
            prop_assert_eq!(line(&document, &format!("{path}[1].x")), Some(Line::At(5 + 6 * index)));
        }
    }
}
