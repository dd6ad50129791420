//! Switching hooks.

use serde_json::json;
use tenterhook_record::run::{Inbox, Status};

use crate::site::{Answer, Site};

const TOKEN: &str = "0123456789abcdef0123";

fn site() -> Site {
    Site::with(|options| {
        options.control = true;
        options.token = Some(TOKEN.to_string());
    })
}

fn post(site: &Site, path: &str, head: &str, body: &str) -> Answer {
    let length = body.len();
    site.send(&format!(
        "POST {path} HTTP/1.1\r\nHost: localhost:1\r\n{head}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    ))
}

#[test]
fn a_hook_of_a_run_that_goes_on_is_asked_to_change() {
    let site = site();
    let hooks = || vec![json!({ "id": "ema", "kind": "ema", "enabled": true, "matched": [] })];
    let run = site.run("live", |record| (record.status, record.hooks) = (Status::Training, hooks()));
    let _lock = run.lock().unwrap();
    site.run("over", |record| record.hooks = hooks());
    site.run("killed", |record| (record.status, record.hooks) = (Status::Training, hooks()));
    let head = format!("Content-Type: application/json\r\nx-tenterhook-token: {TOKEN}\r\n");
    let off = "{\"enabled\": false}";
    let switch = |run: &str, hook: &str, body: &str| {
        post(&site, &format!("/api/runs/{run}/hooks/{hook}"), &head, body)
    };

    let told = switch("live", "ema", off);
    assert_eq!(told.status, 202, "{}", told.body);
    let asked = Inbox::of(&run).look().unwrap();
    assert_eq!(asked.len(), 1);
    assert_eq!(told.json()["request"], asked[0].0.as_str());
    let request = asked[0].1.clone().unwrap();
    assert_eq!((request.hook.as_str(), request.enabled, request.by.as_str()), ("ema", false, "dashboard"));

    assert_eq!(switch("live", "none", off).status, 404);
    assert_eq!(switch("none", "ema", off).status, 404);
    assert_eq!(switch("over", "ema", off).status, 409);
    assert_eq!(switch("killed", "ema", off).status, 409);
    for bad in ["", "{}", "{\"enabled\": 1}", "{\"enabled\": true, \"more\": 1}", "[", "\u{0}"] {
        assert_eq!(switch("live", "ema", bad).status, 400, "{bad}");
    }
    assert_eq!(switch("live", "ema", &format!("{{\"enabled\": true{}}}", " ".repeat(10_000))).status, 413);
    assert_eq!(Inbox::of(&run).look().unwrap().len(), 1);
    assert_eq!(site.json("/api/about")["control"], true);
}

#[test]
fn p36_a_cross_site_form_changes_nothing() {
    let site = site();
    let run = site.run("live", |record| {
        record.status = Status::Training;
        record.hooks = vec![json!({ "id": "ema", "kind": "ema", "enabled": true, "matched": [] })];
    });
    let _lock = run.lock().unwrap();
    let body = "{\"enabled\": false}";
    let token = format!("x-tenterhook-token: {TOKEN}\r\n");
    let as_json = "Content-Type: application/json\r\n";
    let refused = [
        // A form of another site: no token, another type.
        (
            "Content-Type: application/x-www-form-urlencoded\r\nOrigin: http://evil.example\r\n".to_string(),
            403,
        ),
        ("Content-Type: text/plain\r\n".to_string(), 403),
        (as_json.to_string(), 403),
        // With the token, but not from this page.
        (format!("{token}Content-Type: application/x-www-form-urlencoded\r\n"), 415),
        (format!("{token}Content-Type: text/plain\r\n"), 415),
        (token.clone(), 415),
        (format!("{token}{as_json}Origin: http://evil.example\r\n"), 403),
        (format!("{token}{as_json}Origin: null\r\n"), 403),
        (format!("{token}{as_json}Origin: http://localhost:2\r\n"), 403),
        (format!("{token}{as_json}Origin: https://localhost:1\r\n"), 403),
        (format!("{token}{as_json}Sec-Fetch-Site: cross-site\r\n"), 403),
        // Wrong tokens, and the right one where it does not belong.
        (format!("{as_json}x-tenterhook-token: {}\r\n", &TOKEN[1..]), 403),
        (format!("{as_json}x-tenterhook-token: \r\n"), 403),
        (format!("{as_json}Cookie: tenterhook_1={TOKEN}\r\n"), 403),
        (format!("{as_json}Authorization: Bearer {TOKEN}\r\n"), 403),
    ];
    for (head, status) in refused {
        let answer = post(&site, "/api/runs/live/hooks/ema", &head, body);
        assert_eq!(answer.status, status, "{head}: {}", answer.body);
    }
    assert!(Inbox::of(&run).look().unwrap().is_empty());
    let own = format!("{token}{as_json}Origin: http://localhost:1\r\n");
    assert_eq!(post(&site, "/api/runs/live/hooks/ema", &own, body).status, 202);
    assert_eq!(Inbox::of(&run).look().unwrap().len(), 1);
}

#[test]
fn a_token_is_made_for_control_where_none_is_given() {
    let site = Site::with(|options| options.control = true);
    assert!(site.server.token().is_some_and(|token| token.len() >= 32));
    assert!(!site.server.url().contains("token"), "looking needs none on this machine");
    assert_eq!(site.get("/api/runs").status, 200);
}
