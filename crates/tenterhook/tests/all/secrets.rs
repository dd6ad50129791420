//! The address of a webhook is a secret, and stays one whatever happens.

use std::fs;
use std::path::Path;

use crate::lab::{Lab, TINY};
use crate::receiver::{Answer, Receiver};
use crate::support::Ran;

const CANARY: &str = "c4n4ry7Qx";

/// A port that nobody listens at.
fn closed_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// TINY with a webhook for every way to fail, each with the canary in user, path, query and fragment; one more gets its address from
/// the environment.
fn config(more: &str) -> String {
    let server = |answer| Receiver::new(answer).port;
    let ports = [
        closed_port(),
        server(Answer::Status(500)),
        server(Answer::Status(404)),
        server(Answer::Redirect(format!("https://8.8.8.8/{CANARY}"))),
        server(Answer::Redirect(format!("http://0.0.0.0/{CANARY}"))),
        server(Answer::Never),
        server(Answer::Status(200)),
    ];
    let mut config =
        format!("{TINY}{more}\n[[hooks]]\nkind = \"model_checkpoint\"\nmonitor = \"val/loss\"\n");
    config.push_str("[[hooks]]\nkind = \"tensorboard\"\n[[hooks]]\nkind = \"json_log\"\n");
    let local =
        ports.map(|port| format!("http://{CANARY}:{CANARY}@127.0.0.1:{port}/{CANARY}?a={CANARY}#{CANARY}"));
    let unknown = format!("https://no-such-host.invalid/{CANARY}");
    for url in local.iter().chain([&unknown]) {
        config.push_str(&format!("[[hooks]]\nkind = \"webhook\"\nurl = \"{url}\"\n{OPTIONS}"));
    }
    config.push_str(&format!("[[hooks]]\nkind = \"webhook\"\nurl_env = \"HOOK_ADDRESS\"\n{OPTIONS}"));
    config
}

const OPTIONS: &str =
    "allow_local = true\ntimeout_s = 0.3\nnotify_on = [\"training_end\", \"best_model\", \"error\"]\n";

fn run(lab: &Lab, args: &[&str], log: Option<&str>) -> Ran {
    let mut command = lab.command(args);
    command.env("HOOK_ADDRESS", format!("http://127.0.0.1:{}/{CANARY}", closed_port()));
    match log {
        Some(level) => command.env("RUST_LOG", level),
        None => command.env_remove("RUST_LOG"),
    };
    Ran::of(command)
}

/// Every file below a directory, as bytes.
fn files(dir: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push((path.display().to_string(), fs::read(&path).unwrap())),
        }
    }
}

fn assert_clean(what: &str, bytes: &[u8]) {
    let hit = bytes.windows(CANARY.len()).position(|window| window == CANARY.as_bytes());
    if let Some(at) = hit {
        let around = &bytes[at.saturating_sub(200)..bytes.len().min(at + 50)];
        panic!("{what} holds the secret: {}", String::from_utf8_lossy(around));
    }
}

fn assert_secret_is_kept(lab: &Lab, ran: &Ran) {
    assert_clean("standard output", ran.stdout.as_bytes());
    assert_clean("standard error", ran.stderr.as_bytes());
    let mut found = Vec::new();
    let runs = lab.path().join("runs");
    if runs.is_dir() {
        files(&runs, &mut found);
    }
    for (path, bytes) in &found {
        assert_clean(path, bytes);
    }
}

#[test]
fn p34_a_run_with_all_failures_tells_nobody_the_address() {
    for (log, more) in [(None, ""), (Some("trace"), "debug = true\n")] {
        let lab = Lab::with(&config("").replace("steps = 40", &format!("steps = 40\n{more}")));
        let ran = run(&lab, &["train", "run.toml", "--json"], log);
        assert_eq!(ran.code, Some(0), "a webhook that fails is no failure of the run: {}", ran.stderr);
        assert!(ran.stderr.contains("did not arrive"), "{}", ran.stderr);
        assert!(ran.stderr.contains("http://127.0.0.1/<redacted>"), "{}", ran.stderr);
        assert!(ran.stderr.contains("https://no-such-host.invalid/<redacted>"), "{}", ran.stderr);
        assert_secret_is_kept(&lab, &ran);
        for name in
            ["run.json", "config.toml", "receipts.json", "metrics.jsonl", "tensorboard", "checkpoints"]
        {
            assert!(lab.run_dir("tiny").join(name).exists(), "{name}");
        }
        assert!(fs::read_to_string(lab.run_dir("tiny").join("config.toml")).unwrap().contains("<redacted>"));
    }
}

#[test]
fn p34_going_on_and_validating_tell_nobody_either() {
    let lab = Lab::with(&config(""));
    let ran = run(&lab, &["train", "run.toml", "--set", "train.steps=10"], None);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let another = format!("hooks.3.url=http://127.0.0.1:{}/{CANARY}-2", closed_port());
    let ran =
        run(&lab, &["train", "run.toml", "--resume", "--set", &another, "--set", "train.steps=12"], None);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_secret_is_kept(&lab, &ran);
    assert!(lab.record("tiny")["attempts"][1]["args"].to_string().contains("hooks.3.url=<redacted>"));
    let ran = run(&lab, &["eval", "tiny", "--json"], Some("trace"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("without the hook `webhook`"), "{}", ran.stderr);
    assert_secret_is_kept(&lab, &ran);
}

#[test]
fn p34_errors_of_configurations_do_not_quote_the_address() {
    let url = format!("https://a.example/{CANARY}");
    for hook in [
        format!("url = \"http://a.example/{CANARY}\""),
        format!("url = \"{CANARY}\""),
        format!("url = \"https://{CANARY}@127.0.0.1/{CANARY}\""),
        format!("url = \"{url}"),
        format!("url = \"{url}\" \"{url}\""),
        format!("url = [\"{url}\"]"),
        format!("url = {{a = \"{url}\"}}"),
        format!("url = \"{url}\"\nurl = \"{url}\""),
        format!("url = \"{url}\"\nurl_env = \"{url}\""),
        format!("url_env = \"{url}\""),
        format!("uri = \"{url}\""),
        format!("url = \"{url}\"\ntimeout_s = -1"),
        format!("url = '''{url}\n"),
    ] {
        let lab = Lab::with(&format!("{TINY}\n[[hooks]]\nkind = \"webhook\"\n{hook}\n"));
        let ran = run(&lab, &["train", "run.toml"], Some("trace"));
        assert_eq!(ran.code, Some(2), "{hook}: {}", ran.stderr);
        assert_secret_is_kept(&lab, &ran);
    }
    let lab = Lab::with(TINY);
    for set in [
        format!("hooks.0.url={url}"),
        format!("hooks=[{{kind='webhook', url='http://a.example/{CANARY}'}}]"),
        format!("hooks=[{{kind='webhook', url='{url}'"),
        format!("hooks.5.url={url}"),
        format!("hooks.0={{kind='webhook', uri='{url}'}}"),
    ] {
        let ran = run(&lab, &["train", "run.toml", "--set", &set], Some("trace"));
        assert_eq!(ran.code, Some(2), "{set}: {}", ran.stderr);
        assert_secret_is_kept(&lab, &ran);
    }
}
