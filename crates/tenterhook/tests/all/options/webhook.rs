//! The webhook, against a server on this machine.

use std::time::Duration;

use super::cases::{Case, case, check};
use super::scene::{Config, outside};
use super::see::end;
use crate::receiver::{Answer, Receiver};

/// In an option's value, the port of the server.
const PORT: &str = "PORT";

pub(super) fn cases() -> Vec<Case> {
    let at = |option, values, run| case(option, values, end).by(run);
    vec![
        at("webhook.url", ["\"http://127.0.0.1:PORT/a\"", "\"http://127.0.0.1:PORT/b\""], heard_alone),
        at("webhook.url_env", ["\"HOOK_A\"", "\"HOOK_B\""], heard_alone),
        at("webhook.notify_on", ["[\"training_end\"]", "[\"best_model\"]"], heard),
        at("webhook.timeout_s", ["0.2", "30.0"], arrived_late),
        at("webhook.allow_local", ["true", "false"], allowed),
    ]
}

/// A run with a webhook that has these options, and a best model to tell of.
fn run(server: &Receiver, options: &str) -> super::scene::Seen {
    let port = server.port.to_string();
    let hooks = format!(
        "[[hooks]]\nkind = \"webhook\"\n{}\n[[hooks]]\nkind = \"model_checkpoint\"\nmonitor = \"val/loss\"\n",
        options.replace(PORT, &port)
    );
    let [a, b] = ["a", "b"].map(|path| format!("http://127.0.0.1:{port}/{path}"));
    outside(&Config { hooks, set: vec![] }, &[("HOOK_A", &a), ("HOOK_B", &b)])
}

const URL: &str = "url = \"http://127.0.0.1:PORT/\"\nallow_local = true";

fn heard_alone(option: &str) -> String {
    let server = Receiver::new(Answer::Status(200));
    run(&server, &format!("{option}\nallow_local = true"));
    assert!(!server.heard().is_empty());
    server.heard().join("\n")
}

fn heard(option: &str) -> String {
    let server = Receiver::new(Answer::Status(200));
    run(&server, &format!("{URL}\n{option}"));
    assert!(!server.heard().is_empty());
    server.heard().join("\n")
}

fn arrived_late(option: &str) -> String {
    let server = Receiver::new(Answer::Late(Duration::from_secs(1)));
    let seen = run(&server, &format!("{URL}\nnotify_on = [\"training_end\"]\n{option}"));
    (!seen.stderr.contains("not every webhook message arrived")).to_string()
}

fn allowed(option: &str) -> String {
    let server = Receiver::new(Answer::Status(200));
    let seen = run(&server, &format!("url = \"http://127.0.0.1:PORT/\"\n{option}"));
    format!("{} {}", seen.end, server.heard().len())
}

#[test]
fn every_option_of_the_webhook_makes_a_difference() {
    check(&cases());
}
