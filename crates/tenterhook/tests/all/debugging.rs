//! `debug = true`: how a hook came to fail, and more in the log.

use candle_core::{Device, Tensor};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tenterhook::hooks::{At, BatchInfo, Cx, Hook, HookResult, Want};
use tenterhook::train::config::{Document, Format};
use tenterhook::training::{Plan, Start, registry};

use crate::lab::{Lab, TINY};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[derive(Debug, thiserror::Error)]
#[error("broken")]
struct Broken(#[source] std::fmt::Error);

/// Panics at its third batch, fails at every point.
#[derive(Default)]
struct Clumsy(u32);

impl Hook for Clumsy {
    fn kind(&self) -> &str {
        "test.clumsy"
    }
    fn wants(&self) -> Vec<Want> {
        vec![Want::observe("blocks.0.hook_mlp_out")]
    }
    fn observe(&mut self, _at: &At, _x: &Tensor, _cx: &mut Cx) -> HookResult {
        Err(Box::new(Broken(std::fmt::Error)))
    }
    fn on_train_batch_start(&mut self, _batch: &BatchInfo, _cx: &mut Cx) -> HookResult {
        self.0 += 1;
        if self.0 == 3 {
            deep_inside();
        }
        Ok(())
    }
}

#[inline(never)]
fn deep_inside() {
    panic!("fell over");
}

/// The failures that are recorded of a run with a clumsy hook.
fn failures(debug: bool) -> Vec<Value> {
    let lab = Lab::new();
    let hook = "[[hooks]]\nkind = \"test.clumsy\"\nquarantine_after = 0\n";
    let mut document = Document::parse(&format!("{TINY}{hook}"), Format::Toml).unwrap();
    document.set(&format!("run.dir={}", lab.path().join("runs").display())).unwrap();
    document.set("train.steps=6").unwrap();
    document.set(&format!("train.debug={debug}")).unwrap();
    let mut registry = registry();
    registry.register::<Nothing>("test.clumsy", "fails", |_| Ok(Box::new(Clumsy::default()))).unwrap();
    let plan = Plan::check(&document, &registry).unwrap();
    let start =
        Start { plan: &plan, registry: &registry, device: &Device::Cpu, args: Vec::new(), parent: None };
    let finished = start.new_one().unwrap().trainer.train().unwrap();
    assert!(finished.degraded);
    lab.record("tiny")["errors"].as_array().unwrap().clone()
}

#[test]
fn failures_come_with_their_backtraces_when_asked_for() {
    let plain = failures(false);
    assert!(plain.iter().all(|failure| failure.get("backtrace").is_none()), "{plain:?}");
    let failures = failures(true);
    assert_eq!(failures.len(), plain.len());
    let backtrace = |event: &str| {
        let failure = failures.iter().find(|failure| failure["event"] == event).unwrap();
        failure["backtrace"].as_array().unwrap().iter().map(|line| format!("{line}\n")).collect::<String>()
    };
    let of_panic = backtrace("on_train_batch_start");
    assert!(of_panic.contains("deep_inside") && of_panic.contains("debugging.rs"), "{of_panic}");
    let of_error = backtrace("observe");
    assert!(of_error.contains("caused by: an error occurred when formatting an argument"), "{of_error}");
    assert!(of_error.contains("training") || of_error.contains("trainer"), "who called it: {of_error}");
}

#[test]
fn the_log_says_more_when_asked_to() {
    let lab = Lab::with(&format!("{TINY}\n[[hooks]]\nkind = \"model_checkpoint\"\nmonitor = \"val/loss\"\n"));
    let run = |name: &str, debug: &str| {
        let (name, debug) = (format!("run.name={name}"), format!("train.debug={debug}"));
        lab.ok(&["train", "run.toml", "--set", &name, "--set", &debug]).stderr
    };
    let words = ["training starts", "asks for Save", "validated: ", "checkpoints: written", "config_hash"];
    let (quiet, more) = (run("a", "false"), run("b", "true"));
    for word in words {
        assert!(!quiet.contains(word) && more.contains(word), "{word}: {more}");
    }
    assert!(more.contains("model_checkpoint on") && more.contains("grad_coverage on"), "{more}");
    // Who asks for a certain log gets that one.
    let mut command = lab.command(&["train", "run.toml", "--set", "run.name=c", "--set", "train.debug=true"]);
    command.env("RUST_LOG", "warn");
    assert!(!crate::support::Ran::of(command).stderr.contains("training starts"));
}
