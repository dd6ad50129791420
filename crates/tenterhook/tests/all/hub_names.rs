//! Models by name on the command line: what the environment says is what holds.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::hub_server::{HubServer, Manner};
use crate::lab::Lab;
use crate::support::*;

const REPO: &str = "owner/tiny";

fn server(manner: Manner) -> HubServer {
    let read = |name: &str| (name.to_string(), fs::read(model("gpt2").join(name)).unwrap());
    let files: BTreeMap<String, Vec<u8>> = ["config.json", "model.safetensors"].map(read).into();
    HubServer::start(REPO, files, manner)
}

fn with<'a>(lab: &'a Lab, args: &[&str], env: &[(&'a str, &'a str)]) -> Command {
    let mut command = lab.command(args);
    for name in ["HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT"] {
        command.env_remove(name);
    }
    command.env("HF_HOME", lab.path().join("home")).envs(env.iter().copied());
    command
}

#[test]
fn every_command_takes_a_name() {
    let (lab, server) = (Lab::new(), server(Manner::Right));
    let there = [("HF_ENDPOINT", server.address.as_str()), ("HF_TOKEN", "hf_canary")];
    let points = |args: &[&str], env: &[(&str, &str)]| Ran::of(with(&lab, args, env));
    // Not there yet, and nobody may be asked.
    let ran = points(&["points", REPO], &[("HF_HUB_OFFLINE", "1"), there[0]]);
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    assert!(ran.stderr.contains("hf download owner/tiny") && server.asked().is_empty(), "{}", ran.stderr);
    let ran = points(&["points", REPO, "--json"], &there);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap();
    let asked = server.asked();
    assert!(asked.iter().all(|line| line.ends_with("Bearer hf_canary")), "{asked:?}");
    assert!(lab.path().join("home/hub/models--owner--tiny/refs/main").is_file());
    // Now it is there, and nobody has to be asked.
    lab.write("ids.json", "[[1, 2, 3]]");
    let capture =
        ["capture", REPO, "--tokens-file", "ids.json", "--points", "hook_embed", "--out", "out.safetensors"];
    for env in [&[("HF_HUB_OFFLINE", "1")][..], &[("HF_ENDPOINT", "http://127.0.0.1:9")]] {
        let ran = points(&capture, env);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    assert_eq!(server.asked().len(), asked.len());
    // Another cache has it not.
    let ran = points(&capture, &[("HF_HUB_OFFLINE", "true"), ("HF_HUB_CACHE", "elsewhere")]);
    assert!(ran.code == Some(2) && ran.stderr.contains("elsewhere"), "{}", ran.stderr);
    let help = lab.ok(&["points", "--help"]).stdout;
    assert!(help.contains("name on the hub"), "{help}");
}

#[test]
fn p34_a_token_is_in_no_message() {
    let lab = Lab::new();
    for manner in
        [Manner::Status(401), Manner::Status(500), Manner::Silent, Manner::Half, Manner::Etag("../x")]
    {
        let server = server(manner);
        let env = [
            ("HF_ENDPOINT", server.address.as_str()),
            ("HF_TOKEN", "hf_canary"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "1"),
            ("RUST_LOG", "trace"),
        ];
        let ran = Ran::of(with(&lab, &["points", REPO], &env));
        assert_eq!(ran.code, Some(2), "{manner:?}: {}", ran.stderr);
        assert!(!server.asked().is_empty());
        assert!(ran.stderr.contains("owner/tiny: "), "{}", ran.stderr);
        assert!(
            !ran.stderr.contains("hf_canary") && !ran.stdout.contains("hf_canary"),
            "{manner:?}: {}",
            ran.stderr
        );
    }
}
