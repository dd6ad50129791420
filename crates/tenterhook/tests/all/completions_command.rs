//! `tenterhook completions`.

use std::io::ErrorKind;
use std::process::Command;

use crate::support::*;

const SHELLS: [&str; 5] = ["bash", "zsh", "fish", "elvish", "powershell"];

/// The names of the commands, as the help lists them.
fn commands() -> Vec<String> {
    let help = tenterhook(&["--help"]).stdout;
    let listed = help.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    // What stands further in goes on with the line before.
    let begins = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    listed.lines().filter(begins).map(|line| line.split_whitespace().next().unwrap().to_string()).collect()
}

#[test]
fn every_shell_gets_a_script_with_all_commands() {
    let commands = commands();
    assert!(commands.len() > 10, "{commands:?}");
    for shell in SHELLS {
        let ran = tenterhook(&["completions", shell]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        for word in commands.iter().map(String::as_str).chain(["rerun", "prepend-bos"]) {
            assert!(ran.stdout.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn bash_completes_with_its_script() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("tenterhook.bash");
    std::fs::write(&script, tenterhook(&["completions", "bash"]).stdout).unwrap();
    let bash = |program: &str| {
        let ran = Command::new("bash").args(["--norc", "-c", program, "bash"]).arg(&script).output();
        match ran {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            ran => Some(ran.unwrap()),
        }
    };
    // A system may have no bash.
    let Some(parsed) = bash("bash -n \"$1\"") else { return };
    assert!(parsed.status.success(), "{}", String::from_utf8_lossy(&parsed.stderr));
    for (before, current, expected) in [
        ("tenterhook", "att", "attribute"),
        ("tenterhook runs", "rer", "rerun"),
        ("tenterhook train", "--resu", "--resume"),
    ] {
        let last = before.split(' ').count();
        let previous = before.split(' ').next_back().unwrap();
        let program = format!(
            "source \"$1\"; COMP_WORDS=({before} {current}); COMP_CWORD={last}; \
             _tenterhook tenterhook '{current}' {previous}; echo \"${{COMPREPLY[@]}}\""
        );
        let ran = bash(&program).unwrap();
        let told = String::from_utf8(ran.stdout).unwrap();
        assert_eq!(told.trim(), expected, "{before} {current}: {}", String::from_utf8_lossy(&ran.stderr));
    }
}

#[test]
fn an_unknown_shell_is_an_error_with_those_there_are() {
    let ran = tenterhook(&["completions", "tcsh"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    assert!(SHELLS.iter().all(|shell| ran.stderr.contains(shell)), "{}", ran.stderr);
}
