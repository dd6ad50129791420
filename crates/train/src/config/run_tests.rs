use proptest::prelude::*;
use serde_json::json;
use tenterhook_hooks::HookRegistry;

use super::*;
use crate::config::{DEFAULT_TOML, Format, Line, read_section, resume_differences, schema_of};

const GOOD: &str =
    "[model]\nkind = 'gpt'\n[data.train]\nkind = 'text'\n[train]\nsteps = 5\n[[optimizer]]\nlr = 1\n";

fn read(text: &str) -> Result<RunConfig, Problems> {
    let document = Document::parse(text, Format::Toml)?;
    let mut problems = document.problems();
    let config = RunConfig::from_document(&document, &mut problems);
    assert_eq!(config.is_some(), problems.is_empty(), "{text}: {problems}");
    config.ok_or(problems)
}

#[test]
fn defaults_are_filled_in() {
    let config = read(GOOD).unwrap();
    assert_eq!(config.run, RunSection { seed: 42, name: None, dir: "runs".into() });
    assert_eq!(config.train, TrainSection { steps: Some(5), ..TrainSection::default() });
    assert_eq!(config.data.train[0].path, "data.train");
    let value = config.to_value();
    assert_eq!(value["data"], json!({"train": [{"kind": "text"}], "val": []}));
    assert_eq!((&value["train"]["keep_checkpoints"], value["train"].get("epochs")), (&json!(2), None));
    let sections: Vec<&String> = value.as_object().unwrap().keys().collect();
    assert_eq!(sections, ["run", "model", "data", "train", "optimizer", "hooks"]);
}

#[test]
fn a_section_is_resolved_by_its_owner() {
    let mut section = Section { path: "run".to_string(), value: json!({"seed": 3}) };
    let mut problems = Problems::default();
    let run: RunSection = section.resolve(&mut problems, RunSection::problems).unwrap();
    assert_eq!((run.seed, section.value), (3, json!({"seed": 3, "dir": "runs"})));
    let mut section = Section { path: "run".to_string(), value: json!({"seeed": 3}) };
    assert_eq!(section.resolve(&mut problems, RunSection::problems), None);
    assert_eq!(problems.to_string(), "run.seeed: unknown key; did you mean `seed`?");
}

#[test]
fn the_default_file_is_good_and_has_every_key() {
    let config = read(DEFAULT_TOML).unwrap();
    assert_eq!((config.train.steps, config.optimizer.len(), config.hooks.len()), (Some(300), 1, 1));
    let section = |name: &str| {
        let start = DEFAULT_TOML.find(&format!("\n[{name}]")).unwrap() + 2;
        DEFAULT_TOML[start..].split("\n[").next().unwrap()
    };
    let given = |text: &str, key: &str| {
        text.lines().find_map(|line| {
            let (found, rest) = line.trim_start_matches("# ").split_once(" = ")?;
            (found == key).then(|| {
                (line.starts_with('#'), rest.split(" # ").next().unwrap_or_default().trim().to_string())
            })
        })
    };
    for (name, schema) in [("run", schema_of::<RunSection>()), ("train", schema_of::<TrainSection>())] {
        for (key, property) in schema["properties"].as_object().unwrap() {
            let (is_comment, written) =
                given(section(name), key).unwrap_or_else(|| panic!("{name}.{key} is not there"));
            let default = property.get("default").filter(|default| !default.is_null());
            assert_eq!(
                default.is_none() && !["steps", "validate_every", "grad_clip"].contains(&key.as_str()),
                is_comment
            );
            if let Some(default) = default {
                let written = crate::config::toml::value(&written.parse().unwrap()).unwrap();
                assert_eq!(written, *default, "{name}.{key}");
            }
        }
    }
    let switches = DEFAULT_TOML.split_once("# [hooks_config]").unwrap().1.replace("\n# ", "\n");
    let document = Document::parse(&switches, Format::Toml).unwrap();
    let mut problems = document.problems();
    assert!(read_section::<HooksConfig>(document.value(), "", &mut problems).is_some(), "{problems}");
}

/// Texts with mistakes, and what is told about them.
const BROKEN: [(&str, &[&str]); 13] = [
    (
        "",
        &[
            "train: either `steps` or `epochs` is needed, such as steps = 1000",
            "model: missing section, such as [model] with kind = \"gpt\"",
            "data.train: missing section, such as [data.train] with kind = \"text\" and a path",
            "optimizer: missing section, such as [[optimizer]] with kind = \"adamw\" and lr = 3e-4",
        ],
    ),
    (
        "GOOD\n[trian]\nsteps = 3\n[hook]\nkind = 'x'\n",
        &[
            "line 10: trian: unknown section; there are run, model, data, train, optimizer, schedule, ranks, hooks, hooks_config; did you mean `train`?",
            "line 12: hook: unknown section; there are run, model, data, train, optimizer, schedule, ranks, hooks, hooks_config; did you mean `hooks`?",
        ],
    ),
    (
        "GOOD\n[run]\nsede = 1\nname = ' '\ndir = 3\n",
        &[
            "line 11: run.sede: unknown key; did you mean `seed`?",
            "line 12: run.name: is empty; leave it out",
            "line 13: run.dir: is `3`, expected a text",
        ],
    ),
    (
        "GOOD\n[run]\nname = ' '\ndir = ''\n",
        &[
            "line 11: run.name: is empty; leave it out",
            "line 12: run.dir: is empty; `.` is the current directory",
        ],
    ),
    (
        "[train]\nstepz = 3\nepochs = 'two'\ngrad_clip = true\non_non_finite = 'skp'\nloader_strategy = 'weigted'\nmax_time = '5 parsecs'\nvalidate_every = 'epoc'\nfast_dev_run = -1\n[model]\n[data.train]\n[[optimizer]]\n",
        &[
            "line 2: train.stepz: unknown key; did you mean `steps`?",
            "line 3: train.epochs: is the text \"two\", expected a whole number, not negative",
            "line 4: train.grad_clip: is `true`, expected a number",
            "line 5: train.on_non_finite: is `skp`, expected `stop` or `skip`; did you mean `skip`?",
            "line 6: train.loader_strategy: is `weigted`, expected one of `sequential`, `round_robin`, `weighted`, `alternating`; did you mean `weighted`?",
            "line 7: train.max_time: is the text \"5 parsecs\", expected seconds above 0, or a text such as \"1h30m\", \"90s\" or \"00:12:00:00\"",
            "line 8: train.validate_every: is the text \"epoc\", expected a number of steps or \"epoch\"; did you mean `epoch`?",
            "line 9: train.fast_dev_run: is `-1`, expected true, false or a number of batches",
        ],
    ),
    (
        "[train]\nsteps = 0\nepochs = 3\nvalidate_every = 0\nkeep_checkpoints = 0\ngrad_clip = -1\ngrad_clip_value = 0.5\nlog_every = 0\nthreads = 0\ndevice = ''\n[model]\n[data.train]\n[optimizer]\n",
        &[
            "line 2: train.steps: is 0, it must be at least 1",
            "line 3: train.epochs: `steps` is given too; remove one of them",
            "line 4: train.validate_every: is 0, it must be at least 1",
            "line 5: train.keep_checkpoints: is 0, it must be at least 1",
            "line 6: train.grad_clip: must be above 0; leave it out to clip nothing",
            "line 7: train.grad_clip_value: `grad_clip` is given too; remove one of them",
            "line 8: train.log_every: is 0, it must be at least 1",
            "line 9: train.threads: is 0, it must be at least 1",
            "line 10: train.device: is empty",
        ],
    ),
    (
        "model = 'gpt'\ndata = 3\noptimizer = 'adamw'\nschedule = 'cosine'\nhooks = ['console_log']\ntrain = 5\n",
        &[
            "line 1: model: must be a table, as in [model]",
            "line 2: data: must be a table, as in [data.train]",
            "line 3: optimizer: must be a table, as in [[optimizer]]",
            "line 4: schedule: must be a table, as in [schedule]",
            "line 5: hooks[0]: must be a table, as in [[hooks]]",
            "line 6: train: is `5`, expected a table",
        ],
    ),
    (
        "[data]\nkind = 'text'\ntrian = 3\n[model]\n[train]\nsteps = 1\n[[optimizer]]\n",
        &[
            "line 1: data.train: missing section, such as [data.train] with kind = \"text\" and a path",
            "line 2: data.kind: unknown key; data sets are [data.train] and [data.val]",
            "line 3: data.trian: unknown key; data sets are [data.train] and [data.val]; did you mean `train`?",
        ],
    ),
    (
        "[model]\n[train]\nsteps = 1\n[[optimizer]]\n[[data.train]]\nname = 'a'\n[[data.train]]\n[[data.train]]\nname = 'a'\n[[data.val]]\n",
        &[
            "line 7: data.train[1].name: missing key; among several sets each has a name",
            "line 9: data.train[2].name: another set is named `a`",
        ],
    ),
    (
        "GOOD\n[[hooks]]\nid = 'a'\n[[hooks]]\nkind = 3\n[[hooks]]\nkind = 'progress'\nid = 'a'\n",
        &[
            "line 10: hooks[0].kind: missing key, such as kind = \"console_log\"",
            "line 13: hooks[1].kind: must be a text, such as \"console_log\"",
            "line 16: hooks[2].id: another hook has the id `a`",
        ],
    ),
    (
        "GOOD\n[hooks_config]\nenable_loging_hook = true\nenable_lr_monitor = 'yes'\nhook_classes = ['a', 3]\nhook_configs = {a = 1}\n",
        &[
            "line 11: hooks_config.enable_loging_hook: unknown key; did you mean `enable_logging_hook`?",
            "line 12: hooks_config.enable_lr_monitor: is the text \"yes\", expected true or false",
            "line 13: hooks_config.hook_classes[1]: is `3`, expected a text",
            "line 14: hooks_config.hook_configs.a: is `1`, expected a table",
        ],
    ),
    (
        "GOOD\n[hooks_config]\nhook_classes = ['my.Peak', 'my.Peak']\nlr_monitor_config = {}\nenable_early_stopping_hook = true\n[hooks_config.early_stopping_config]\nkind = 'x'\n[hooks_config.hook_configs.'my.Peek']\nx = 1\n",
        &[
            "line 11: hooks_config.hook_classes[1]: `my.Peak` is listed twice",
            "line 12: hooks_config.lr_monitor_config: would do nothing without enable_lr_monitor = true",
            "line 15: hooks_config.early_stopping_config.kind: the kind is `early_stopping` already",
            "line 16: hooks_config.hook_configs.\"my.Peek\": is not among `hook_classes`, so these options would do nothing; did you mean `my.Peak`?",
        ],
    ),
    (
        "model = [[]]\nrun = []\noptimizer = []\n[train]\nsteps = -5\nmax_skipped = 1.5\n[data]\ntrain = []\n",
        &[
            "line 1: model: must be a table, as in [model]",
            "line 2: run: is a list, expected a table",
            "line 3: optimizer: missing section, such as [[optimizer]] with kind = \"adamw\" and lr = 3e-4",
            "line 5: train.steps: is `-5`, expected a whole number, not negative",
            "line 6: train.max_skipped: is `1.5`, expected a whole number, not negative",
            "line 8: data.train: missing section, such as [data.train] with kind = \"text\" and a path",
        ],
    ),
];

#[test]
fn every_mistake_is_told_with_its_line() {
    for (text, expected) in BROKEN {
        let problems = read(&text.replace("GOOD", GOOD)).unwrap_err().to_string();
        assert_eq!(problems.lines().collect::<Vec<_>>(), expected, "{text}");
    }
}

#[test]
fn a_wrong_value_is_reported_at_its_key_and_nowhere_else() {
    let mut checked = 0;
    for (name, schema) in [
        ("run", schema_of::<RunSection>()),
        ("train", schema_of::<TrainSection>()),
        ("ranks", schema_of::<RanksSection>()),
        ("hooks_config", schema_of::<HooksConfig>()),
    ] {
        for (key, property) in schema["properties"].as_object().unwrap() {
            let types: Vec<&Value> = match &property["type"] {
                Value::Array(types) => types.iter().collect(),
                Value::Null => vec![],
                one => vec![one],
            };
            // A list is a value of few keys, a table of few others.
            let wrong = if types.iter().any(|name| *name == "array") { "{ x = 1 }" } else { "[[1]]" };
            for wrong in [wrong, "\"no such word\""] {
                let is_text = types.iter().any(|name| *name == "string") && property.get("enum").is_none();
                if wrong.starts_with('"') && is_text {
                    continue;
                }
                let mut document = Document::parse(GOOD, Format::Toml).unwrap();
                document.set(&format!("{name}.{key}={wrong}")).unwrap();
                let mut problems = document.problems();
                assert_eq!(RunConfig::from_document(&document, &mut problems), None, "{name}.{key}");
                let found: Vec<_> =
                    problems.iter().map(|problem| (problem.path.as_str(), problem.line)).collect();
                assert_eq!(
                    found,
                    [(format!("{name}.{key}").as_str(), Some(Line::Set))],
                    "{wrong}: {problems}"
                );
                checked += 1;
            }
        }
    }
    assert!(checked > 60, "{checked}");
}

#[test]
fn switches_stand_for_the_same_hooks_as_a_list() {
    let switches = read(&format!(
        "{GOOD}[hooks_config]\nenable_logging_hook = true\nenable_gradient_monitor = true\n\
         gradient_monitor_config = {{log_frequency = 100, percentiles = [10, 50]}}\nenable_model_checkpoint_hook = true\n\
         enable_early_stopping_hook = true\nearly_stopping_config = {{monitor = 'val/loss'}}\nenable_lr_monitor = true\n\
         hook_classes = ['b.Hook', 'a.Hook']\nhook_configs = {{'b.Hook' = {{threshold = 5.0}}}}\n"
    ))
    .unwrap();
    let list = read(&format!(
        "{GOOD}[[hooks]]\nkind = 'b.Hook'\nthreshold = 5.0\n[[hooks]]\nkind = 'a.Hook'\n[[hooks]]\nkind = 'console_log'\n\
         [[hooks]]\nkind = 'gradient_monitor'\nlog_frequency = 100\npercentiles = [10, 50]\n[[hooks]]\nkind = 'model_checkpoint'\n\
         [[hooks]]\nkind = 'early_stopping'\nmonitor = 'val/loss'\n[[hooks]]\nkind = 'lr_monitor'\n"
    ))
    .unwrap();
    assert_eq!(switches.to_value(), list.to_value());
    let paths: Vec<&str> = switches.hooks.iter().map(|hook| hook.path.as_str()).collect();
    assert_eq!(
        paths[..3],
        [
            "hooks_config.hook_configs.\"b.Hook\"",
            "hooks_config.hook_classes[1]",
            "hooks_config.enable_logging_hook"
        ]
    );
}

#[test]
fn hooks_are_checked_against_the_kinds_there_are() {
    let text = format!(
        "{GOOD}[[hooks]]\nkind = 'monitr'\n[[hooks]]\nkind = 'monitor'\npoint = '*'\nevery = 'day'\nsample_rate = 2\n\
         [[hooks]]\nkind = 'monitor'\npoints = '*'\nmetrics = ['mena']\n[[hooks]]\nkind = 'monitor'\npoints = '*'\n"
    );
    let document = Document::parse(&text, Format::Toml).unwrap();
    let mut problems = document.problems();
    let config = RunConfig::from_document(&document, &mut problems).unwrap();
    config.check_hooks(&HookRegistry::standard(), &mut problems);
    let found: Vec<String> = problems.to_string().lines().map(str::to_string).collect();
    let expected = [
        "line 10: hooks[0].kind: there is no hook kind `monitr`; did you mean `monitor`?",
        "line 11: hooks[1].points: missing key",
        "line 13: hooks[1].point: unknown key; did you mean `points`?",
        "line 14: hooks[1].every: is the text \"day\", expected a number of steps, \"step\" or \"epoch\"",
        "line 19: hooks[2].metrics: is `mena`, expected one of ",
    ];
    assert_eq!(found.len(), expected.len(), "{problems}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn secrets_are_not_recorded() {
    let canary = "canary-3141";
    let text = format!(
        "{GOOD}[[hooks]]\nkind = 'webhook'\nurl = 'https://x.example/{canary}'\nurl_env = 'HOOK_URL'\n\
         [hooks_config]\nhook_classes = ['my.Pager']\nhook_configs = {{'my.Pager' = {{Token = '{canary}', to = [{{url = '{canary}'}}]}}}}\n"
    );
    let config = read(&text).unwrap();
    let all = format!("{config:?}{}{}", config.to_value(), config.to_toml());
    assert!(!all.contains(canary), "{all}");
    assert_eq!(
        config.to_value()["hooks"][0],
        json!({"kind": "webhook", "url": "<redacted>", "url_env": "HOOK_URL"})
    );
    assert!(config.hooks[0].value["url"].as_str().unwrap().contains(canary), "the hook itself needs it");
    let document = Document::parse(&text, Format::Toml).unwrap();
    assert!(!format!("{document:?}").contains(canary));
    let mut document = document;
    let problems = document.set(&format!("hooks.url=[\"{canary}")).unwrap_err();
    assert!(!format!("{problems} {problems:?}").contains(canary));
}

#[test]
fn the_default_file_survives_a_round_trip() {
    let config = read(DEFAULT_TOML).unwrap();
    let again = read(&config.to_toml()).unwrap();
    assert_eq!(again.to_value().to_string(), config.to_value().to_string());
    assert_eq!(resume_differences(&config.to_value(), &again.to_value()), Vec::<String>::new());
}

/// Values as models and hooks may have them.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::num::f64::NORMAL.prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z\\. \"ü]{0,4}", inner, 0..4)
                .prop_map(|map| map.into_iter().collect()),
        ]
    })
}

fn any_table() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-z_]{3,5}x", any_value(), 0..4).prop_map(|map| map.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_reads_back_to_the_same(
        tables in prop::collection::vec(any_table(), 4),
        seed in 0_u64..=i64::MAX as u64,
        clip in prop::option::of(1e-300..1e300_f64),
        hour in 1_u64..100,
    ) {
        let mut hook = tables[3].clone();
        hook["kind"] = json!("my.Hook");
        let document = json!({
            "run": {"seed": seed, "name": "a \"b\"\nc"},
            "train": {"epochs": 1, "grad_clip": clip, "max_time": format!("{hour}h"), "fast_dev_run": true, "validate_every": "epoch"},
            "model": tables[0],
            "data": {"train": [tables[1]]},
            "optimizer": tables[2],
            "schedule": tables[1],
            "hooks": [hook],
        });
        let document = Document::parse(&document.to_string(), Format::Json).unwrap();
        let mut problems = document.problems();
        let config = RunConfig::from_document(&document, &mut problems);
        prop_assert!(config.is_some(), "{}", problems);
        let config = config.unwrap();
        let again = read(&config.to_toml());
        prop_assert!(again.is_ok(), "{:?}\n{}", again, config.to_toml());
        prop_assert_eq!(again.unwrap().to_value().to_string(), config.to_value().to_string());
    }
}
