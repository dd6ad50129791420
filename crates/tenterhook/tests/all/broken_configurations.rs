//! Configurations that are wrong: everything is told at once, with the line and a way out, and nothing is made on the disk.

use std::fs;

use crate::lab::{Lab, TINY};

/// `TINY` with one text replaced by another.
fn tiny(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(TINY.to_string(), |config, (from, to)| {
        assert!(config.contains(from), "{from}");
        config.replacen(from, to, 1)
    })
}

fn tiny_and(more: &str) -> String {
    format!("{TINY}{more}")
}

/// Checking and training refuse it with exactly these problems: in the line that begins with the first text (`text #2`: the second such line;
/// empty: no line), with the second one in the message.
fn check(what: &str, config: &str, expected: &[(&str, &str)]) {
    let lab = Lab::with(config);
    lab.write("few.bin", [1, 0, 2, 0]);
    let before = files(&lab);
    for command in [&["config", "check", "run.toml"][..], &["train", "run.toml", "--quiet"]] {
        let ran = lab.run(command);
        assert_eq!(ran.code, Some(2), "{what}: {}{}", ran.stdout, ran.stderr);
        let told = ran.stderr.strip_prefix("error: ").unwrap_or_else(|| panic!("{what}: {}", ran.stderr));
        assert_eq!(told.lines().count(), expected.len(), "{what}: {told}");
        for (place, message) in expected {
            let place = match place.is_empty() {
                true => "run.toml: ".to_string(),
                false => format!("run.toml:{}:", line_of(config, place)),
            };
            let is_told = told.lines().any(|line| line.starts_with(&place) && line.contains(message));
            assert!(is_told, "{what}: `{place} .. {message}` is not in:\n{told}");
        }
        assert_eq!(files(&lab), before, "{what}: nothing may be made");
    }
}

fn line_of(config: &str, place: &str) -> usize {
    let (text, number) = match place.rsplit_once(" #") {
        Some((text, number)) => (text, number.parse().unwrap()),
        None => (place, 1),
    };
    let mut lines = config.lines().enumerate().filter(|(_, line)| line.starts_with(text));
    lines.nth(number - 1).unwrap_or_else(|| panic!("{place}")).0 + 1
}

fn files(lab: &Lab) -> Vec<String> {
    let entries = fs::read_dir(lab.path()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn p33_broken_configurations_are_refused_with_every_problem() {
    check("syntax", &tiny(&[("[model]", "[model")]), &[("[model", "expected `]`")]);
    check(
        "unknown keys",
        &tiny(&[("n_layers", "n_layer"), ("steps = 40", "stepz = 40"), ("warmup", "warm_up")]),
        &[
            ("n_layer", "model.n_layer: unknown key; did you mean `n_layers`?"),
            ("stepz", "train.stepz: unknown key; did you mean `steps`?"),
            ("warm_up", "schedule.warm_up: unknown key; did you mean `warmup`?"),
        ],
    );
    check(
        "unknown and missing sections",
        &tiny(&[("[[optimizer]]", "[[optimiser]]"), ("[model]", "[modle]")]),
        &[
            ("", "model: missing section, such as [model] with kind = \"gpt\""),
            ("", "optimizer: missing section, such as [[optimizer]] with kind = \"adamw\""),
            ("[modle]", "did you mean `model`?"),
            ("[[optimiser]]", "did you mean `optimizer`?"),
        ],
    );
    check(
        "wrong types",
        &tiny(&[("steps = 40", "steps = \"many\""), ("d_model = 16", "d_model = 1.5"), ("3e-3", "\"fast\"")]),
        &[
            ("steps", "train.steps: is the text \"many\", expected a whole number"),
            ("d_model", "model.d_model: is `1.5`, expected a whole number"),
            ("lr", "optimizer[0].lr: is the text \"fast\", expected a number"),
        ],
    );
    check(
        "out of range",
        &tiny(&[("dropout = 0.1", "dropout = 1.5"), ("batch = 4", "batch = 0"), ("3e-3", "-1.0")]),
        &[
            ("dropout", "model.dropout"),
            ("batch = 0", "data.train[0].batch: is 0; use 1"),
            ("lr", "optimizer[0].lr: is -1; it must be 0 or more, 3e-4 is usual"),
        ],
    );
    check(
        "a wrong key beside wrong values",
        &tiny(&[
            ("steps = 40", "steps = 40\nepochs = 2\nstrategy = 1"),
            ("grad_clip = 1.0", "grad_clip = 0"),
        ]),
        &[
            ("epochs", "train.epochs: `steps` is given too; remove one of them"),
            ("strategy", "train.strategy: unknown key; did you mean `loader_strategy`?"),
            ("grad_clip", "train.grad_clip: must be above 0; leave it out to clip nothing"),
        ],
    );
    check(
        "words",
        &tiny(&[("\"gpt\"", "\"gtp\""), ("\"cosine\"", "\"cosin\""), ("round_robin", "round_robbin")]),
        &[
            ("kind = \"gtp\"", "did you mean `gpt`?"),
            ("kind = \"cosin\"", "did you mean `cosine`?"),
            ("loader_strategy", "did you mean `round_robin`?"),
        ],
    );
    check(
        "sizes that do not fit",
        &tiny(&[("n_heads = 2", "n_heads = 3"), ("warmup = 5", "warmup = 5\nsteps = 2")]),
        &[
            ("n_heads", "3 heads cannot divide `d_model` 16 among themselves: 2 or 4 could"),
            ("warmup", "schedule.warmup: is 5, but the schedule has only 2 steps"),
        ],
    );
    check(
        "files that are not there",
        &tiny(&[
            (
                "[model]\nkind = \"gpt\"\nvocab = 17\ncontext = 16\nd_model = 16\nn_heads = 2\nn_layers = 1\nd_mlp = 32\n",
                "[model]\nfrom = \"no/model\"\n",
            ),
            ("kind = \"induction\"\nexamples = 24", "kind = \"text\"\npath = \"no.txt\""),
        ]),
        &[
            ("from", "there is no directory no/model"),
            ("path", "data.train[0].path: there is no file no.txt"),
        ],
    );
    check(
        "data sets of one name",
        &tiny(&[("name = \"repeats\"", "name = \"sums\"")]),
        &[("name = \"sums\" #2", "data.train[1].name: another set is named `sums`")],
    );
    check(
        "data that does not fit the model",
        &tiny(&[
            ("kind = \"induction\"\nexamples = 24", "kind = \"tokens\"\npath = \"few.bin\""),
            ("block = 16", "block = 64"),
            ("lr = 3e-3", "lr = 3e-3\nparams = \"nothing.*\""),
        ]),
        &[("[[data.train]]", "data.train[0]"), ("[[optimizer]]", "no parameter matches `nothing.*`")],
    );
    check(
        "a schedule longer than the run",
        &tiny(&[("warmup = 5", "warmup = 500")]),
        &[("warmup", "schedule.warmup: is 500, but the schedule has only 40 steps")],
    );
    check(
        "a name that is none",
        &tiny(&[("name = \"tiny\"", "name = \"../tiny\"")]),
        &[("name", "run.name: \"../tiny\" cannot be a name: it contains a path separator")],
    );
    check(
        "a directory that cannot be made",
        &tiny(&[("[run]", "[run]\ndir = \"run.toml/runs\""), ("steps = 40", "steps = 0")]),
        &[
            ("dir", "run.dir: run.toml/runs cannot be made: run.toml is not a directory"),
            ("steps", "train.steps: is 0, it must be at least 1"),
        ],
    );
    #[cfg(target_os = "linux")]
    check(
        "a directory that cannot be written",
        &tiny(&[("[run]", "[run]\ndir = \"/proc/self\""), ("context = 16", "context = 0")]),
        &[("dir", "run.dir: /proc/self cannot be written"), ("context", "model.context: must be from 1")],
    );
}

#[test]
fn p33_broken_hooks_are_refused_with_every_problem() {
    check(
        "kinds and options",
        &tiny_and(
            "[[hooks]]\nkind = \"erly_stopping\"\n[[hooks]]\nkind = \"early_stopping\"\npatince = 3\nmode = \"least\"\nevery = 0\n\
             [[hooks]]\nkind = \"max_time\"\n",
        ),
        &[
            (
                "kind = \"erly",
                "hooks[0].kind: there is no hook kind `erly_stopping`; did you mean `early_stopping`?",
            ),
            ("patince", "hooks[1].patince: unknown key; did you mean `patience`?"),
            ("mode", "hooks[1].mode: is `least`, expected `min` or `max`"),
            ("every", "hooks[1].every: is 0, it must be at least 1"),
            ("[[hooks]] #3", "hooks[2].duration: missing key"),
        ],
    );
    check(
        "two hooks of one id",
        &tiny_and("[[hooks]]\nkind = \"ema\"\nid = \"a\"\n[[hooks]]\nkind = \"console_log\"\nid = \"a\"\n"),
        &[("id = \"a\" #2", "hooks[1].id: another hook has the id `a`")],
    );
    check(
        "points that are not there",
        &tiny_and(
            "[[hooks]]\nkind = \"capture\"\npoints = \"blocks.0.hook_residpost\"\n[[hooks]]\nkind = \"monitor\"\npoints = 7\n",
        ),
        &[
            ("[[hooks]]", "no point matches `blocks.0.hook_residpost`; nearest: `blocks.0.hook_resid_post`"),
            ("[[hooks]] #2", "block 7 does not exist: the model has 1 blocks"),
        ],
    );
    check(
        "a secret that is not there",
        &tiny_and(
            "[[hooks]]\nkind = \"webhook\"\nurl_env = \"NOBODY_HAS_SET_THIS\"\n[[hooks]]\nkind = \"webhook\"\nurl = \"<redacted>\"\n",
        ),
        &[
            ("url_env", "hooks[0].url_env: the environment variable `NOBODY_HAS_SET_THIS` is not set"),
            ("url = ", "hooks[1].url: the address is secret and was left out"),
        ],
    );
    check(
        "options of a class that is not used",
        &tiny_and("[hooks_config]\nhook_configs = { \"a.B\" = {} }\nenable_logging_hok = true\n"),
        &[("enable_logging_hok", "did you mean `enable_logging_hook`?")],
    );
}

#[test]
fn p33_overrides_are_refused_by_their_keys() {
    let lab = Lab::with(TINY);
    let cases: &[(&[&str], &[&str])] = &[
        (&["train.steps"], &["`train.steps`: an override is written key.key=value, such as train.steps=100"]),
        (&["train.stepz=4"], &["train.stepz: unknown key; did you mean `steps`?"]),
        (&["optimizer.lr=1"], &["optimizer: is a list: write optimizer[0].lr"]),
        (
            &["optimizer.4.lr=1"],
            &["optimizer[4]: the list has 1 elements, counted from 0; optimizer[1] would be the next"],
        ),
        (&["a b=1", "model.kind.x=1"], &["`a`: an override is written", "model.kind: is a single value"]),
        (
            &["model.n_heads=3", "train.steps=no"],
            &["model.n_heads: 3 heads", "train.steps: is the text \"no\""],
        ),
    ];
    for (set, expected) in cases {
        let mut args = vec!["train", "run.toml"];
        args.extend(set.iter().flat_map(|set| ["--set", set]));
        let ran = lab.run(&args);
        assert_eq!(ran.code, Some(2), "{set:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), expected.len(), "{set:?}: {}", ran.stderr);
        for expected in *expected {
            let expected = format!("--set: {expected}");
            let mut told = ran.stderr.trim_start_matches("error: ").lines();
            assert!(told.any(|line| line.starts_with(&expected)), "{expected}: {}", ran.stderr);
        }
    }
    assert_eq!(files(&lab), ["run.toml"]);
}

#[test]
fn p33_problems_as_json() {
    let lab = Lab::with(&tiny(&[("n_layers", "n_layer")]));
    let ran = lab.run(&["config", "check", "run.toml", "--set", "train.steps=no", "--json"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(told["ok"], false);
    let (first, second) = (&told["problems"][0], &told["problems"][1]);
    assert_eq!((&first["path"], &first["suggestion"]), (&"model.n_layer".into(), &"n_layers".into()));
    assert!(first["line"].as_u64().unwrap() > 1);
    assert_eq!((&second["path"], &second["on_command_line"]), (&"train.steps".into(), &true.into()));
}
