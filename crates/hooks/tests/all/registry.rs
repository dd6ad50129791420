//! Hooks from configuration.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tenterhook_hooks::{
    AttachError, HookManager, HookOptions, HookRegistry, Mock, OnError, Point, PointTable, hook_fn,
};

use crate::support::{Notes, tensor};

fn manager() -> HookManager {
    let mut points = PointTable::builder();
    points.point(Point::new("blocks.0.hook_resid_post", "batch pos d_model")).unwrap();
    HookManager::new(points.build())
}

fn problems(registry: &HookRegistry, spec: Value) -> Vec<String> {
    match registry.build(&spec).map(|(hook, _)| hook.kind().to_string()) {
        Err(AttachError::BadOptions { problems, .. }) => problems,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_standard_kinds_attach_with_their_options_and_the_common_ones() {
    let (registry, hooks) = (HookRegistry::standard(), manager());
    let attach = |spec: Value| registry.attach(&hooks, &spec).unwrap();
    let capture = json!({
        "kind": "capture", "points": ["blocks.*"], "positions": -1, "retention": {"ring": 2}, "gradients": true,
        "id": "last", "frequency": "epoch", "on_error": "abort",
    });
    assert_eq!(attach(capture), "last");
    let metrics = json!(["mean", {"percentiles": [5, 50]}, {"histogram": 4}]);
    assert_eq!(attach(json!({"kind": "monitor", "points": "*", "metrics": metrics, "every": 10})), "monitor");
    let conditions = json!(["nan", {"above": 1e4}, {"shape": [-1, -1, 8]}]);
    attach(
        json!({"kind": "debug", "points": "*", "conditions": conditions, "actions": ["log", "dump", "stop"]}),
    );
    attach(json!({"kind": "gradient_flow", "points": "*", "vanishing_below": 1e-9, "enabled": false}));
    let enabled: Vec<bool> = hooks.list_hooks().iter().map(|hook| hook.enabled).collect();
    assert_eq!(enabled, [true, true, true, false]);
    let (_, options) =
        registry.build(&json!({"kind": "capture", "points": "*", "on_error": "abort"})).unwrap();
    assert!(options.builtin && options.on_error == OnError::Abort);
}

#[test]
fn all_problems_are_told_at_once_with_the_nearest_names() {
    let registry = HookRegistry::standard();
    let told = problems(
        &registry,
        json!({
            "kind": "capture", "pionts": "*", "gradients": "yes", "capture_input": 3,
            "retention": {"rign": 2}, "sample_rat": 0.5, "every": 0, "slow_after_ms": -1,
        }),
    );
    let expect =
        |text: &str| assert!(told.iter().any(|problem| problem.contains(text)), "{text} not in {told:#?}");
    expect("unknown option `pionts`; nearest: `points`");
    expect("unknown option `sample_rat`; nearest: `sample_rate`");
    expect("`gradients`: invalid type: string");
    expect("`capture_input`: invalid type: integer");
    expect("`retention`: unknown variant `rign`");
    expect("option `points` is missing");
    expect("`slow_after_ms`: invalid value");
    assert_eq!(told.len(), 7, "{told:#?}");
    let told = problems(
        &registry,
        json!({"kind": "monitor", "points": "*", "metrics": [{"histogram": 0}], "sample_rate": 7}),
    );
    assert_eq!(told.len(), 2, "what the kind itself finds, and the common options: {told:#?}");
    assert!(
        problems(&registry, json!({"kind": "capture", "points": "*", "capture_output": false}))[0]
            .contains("nothing to capture")
    );
}

#[test]
fn unknown_kinds_and_things_that_are_no_hook_are_errors() {
    let registry = HookRegistry::standard();
    let error = |spec: Value| registry.build(&spec).map(drop).unwrap_err().to_string();
    assert!(
        error(json!({"kind": "captur"})).starts_with("no hook kind is called `captur`; nearest: `capture`")
    );
    for spec in [json!(null), json!("capture"), json!({}), json!({"kind": 3})] {
        assert!(error(spec).contains("a table with `kind`"));
    }
    let hooks = manager();
    let no_point = registry
        .attach(&hooks, &json!({"kind": "capture", "points": "blocks.0.hook_resid_pots"}))
        .unwrap_err();
    assert!(no_point.to_string().contains("nearest: `blocks.0.hook_resid_post`"));
    assert!(hooks.list_hooks().is_empty());
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PeakOptions {
    /// Where.
    points: String,
    /// How high.
    #[serde(default, alias = "limit")]
    #[schemars(extend("aliases" = ["limit"]))]
    height: f64,
}

#[test]
fn a_users_kind_has_a_path_like_name_and_runs_before_built_in_ones() {
    let (mut registry, notes) = (HookRegistry::standard(), Notes::default());
    let inner = notes.clone();
    let factory =
        move |options: PeakOptions| -> tenterhook_hooks::HookResult<Box<dyn tenterhook_hooks::Hook>> {
            if options.height < 0.0 {
                return Err("`height` is negative".into());
            }
            Ok(Box::new(inner.observer(&format!("peak {}", options.height), &options.points)))
        };
    registry.register::<PeakOptions>("my_crate.hooks.Peak", "finds peaks", factory.clone()).unwrap();
    let twice = registry.register::<PeakOptions>("my_crate.hooks.Peak", "finds peaks", factory);
    assert_eq!(twice, Err(AttachError::DuplicateKind("my_crate.hooks.Peak".into())));

    let mut mock = Mock::with_manager(manager());
    registry.attach(mock.hooks(), &json!({"kind": "monitor", "points": "*"})).unwrap();
    let id = registry
        .attach(mock.hooks(), &json!({"kind": "my_crate.hooks.Peak", "points": "*", "limit": 2.5}))
        .unwrap();
    assert_eq!(mock.hooks().list_hooks()[0].id, id);
    mock.step();
    mock.fire("blocks.0.hook_resid_post", &tensor(&[1.0])).unwrap();
    assert_eq!(notes.take(), ["peak 2.5"]);
    let told = problems(&registry, json!({"kind": "my_crate.hooks.Peak", "points": "*", "height": -1}));
    assert_eq!(told, ["`height` is negative"]);
}

#[test]
fn an_option_may_not_hide_a_common_one() {
    #[derive(Deserialize, JsonSchema)]
    #[allow(dead_code)]
    struct Clashing {
        frequency: u64,
        enabled: bool,
    }
    let mut registry = HookRegistry::new();
    let factory = |_: Clashing| -> tenterhook_hooks::HookResult<Box<dyn tenterhook_hooks::Hook>> {
        Ok(Box::new(hook_fn::observe("*", |_, _, _| Ok(()))))
    };
    let error = registry.register::<Clashing>("clashing", "", factory).unwrap_err().to_string();
    assert!(error.contains("`frequency`") && error.contains("`enabled`"), "{error}");
    assert_eq!(registry.kinds().count(), 0);
}

#[test]
fn kinds_tell_their_options_with_documentation_and_defaults() {
    let registry = HookRegistry::standard();
    let names: Vec<&str> = registry.kinds().map(|kind| kind.name.as_str()).collect();
    assert_eq!(names, ["capture", "debug", "gradient_flow", "monitor"]);
    for kind in registry.kinds() {
        assert!(!kind.doc.is_empty() && kind.builtin);
        for option in kind.options.iter().chain(&HookRegistry::common_options()) {
            assert!(!option.doc.is_empty(), "{}.{} has no documentation", kind.name, option.name);
            assert_eq!(
                option.required,
                option.default.is_none() && option.name == "points",
                "{}.{}",
                kind.name,
                option.name
            );
        }
    }
    let common = HookRegistry::common_options();
    let find = |name: &str| common.iter().find(|option| option.name == name).unwrap();
    assert_eq!(find("every").default, Some(json!(1)));
    assert_eq!(find("every").aliases, ["frequency"]);
    assert_eq!(find("quarantine_after").default, Some(json!(3)));
    assert!(common.iter().all(|option| option.name != "builtin"), "not for configurations");
    let written = serde_json::to_value(HookOptions::default()).unwrap();
    assert_eq!(written.as_object().unwrap().len(), common.len());
}
