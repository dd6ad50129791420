//! Checkpoints that are written while training goes on are those of their own step.

use crate::lab::{Lab, TINY};
use crate::resume::HOOKS;
use crate::support::{Ran, campaign};
use crate::traces::assert_same;

#[test]
fn p08_saves_on_a_slow_disk_are_those_of_a_run_that_waits_for_them() {
    let steps = campaign(40, 500);
    let train = TINY.replace("steps = 40", &format!("steps = {steps}\nkeep_checkpoints = 10000"));
    let train = train.replace("checkpoint_every = 10", "checkpoint_every = 1");
    let waiting = Lab::in_memory(&format!("{train}{HOOKS}"));
    waiting.ok(&["train", "run.toml", "--quiet"]);

    let beside = Lab::in_memory(&format!("{train}{HOOKS}"));
    let mut command =
        beside.command(&["train", "run.toml", "--quiet", "--set", "train.async_checkpoints=true"]);
    command.env("TENTERHOOK_FAULTS", "disk.*=sleep:1");
    let ran = Ran::of(command);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);

    let saved = beside.checkpoints("tiny");
    assert!(saved.len() as u64 > steps, "the last one is written before the process ends: {saved:?}");
    assert_same(&beside.traces("tiny"), &waiting.traces("tiny"), "written beside training");
    println!("p08: {} checkpoints written beside training, each that of its step, bit for bit", saved.len());
}
