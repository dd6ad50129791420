//! One process at a time writes a run.

use crate::lab::{Lab, TINY};
use crate::running::Running;

#[test]
fn p09_a_second_process_is_told_who_the_first_is_and_a_killed_one_holds_nothing() {
    let straight = Lab::with(TINY);
    straight.ok(&["train", "run.toml"]);

    let lab = Lab::with(TINY);
    let mut command = lab.command(&["train", "run.toml"]);
    command.env("TENTERHOOK_FAULTS", "train.forward=sleep:600000@50");
    let mut first = Running::start(command);
    first.wait_for("sleeps at `train.forward`");
    let before = lab.tree();
    let host = lab.record("tiny")["host"].as_str().unwrap().to_string();
    let holder = format!("process {} on {host}", first.pid());
    for args in [&["train", "run.toml", "--resume"][..], &["train", "run.toml", "--resume", "tiny"]] {
        let ran = lab.run(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(&holder), "`{holder}` is not in: {}", ran.stderr);
    }
    let ran = lab.run(&["train", "run.toml"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("there is a run `tiny` already"), "{}", ran.stderr);
    assert_eq!(lab.tree(), before, "the others changed nothing");

    first.kill();
    lab.ok(&["train", "run.toml", "--resume"]);
    assert_eq!(lab.digest("tiny"), straight.digest("tiny"));
    assert_eq!(lab.metrics("tiny"), straight.metrics("tiny"));
}
