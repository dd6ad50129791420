//! Who is let in.

use std::net::{Ipv4Addr, Ipv6Addr};

use tenterhook_dashboard::{Options, Server, StartError};

use crate::site::Site;

const TOKEN: &str = "0123456789abcdef-XYZ";

#[test]
fn p36_only_this_machine_is_served_unless_there_is_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Options { port: Some(0), ..Options::new(dir.path()) }).unwrap();
    assert!(server.address().ip().is_loopback());
    assert_eq!(server.token(), None);
    for address in [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into(), [192, 168, 0, 1].into()] {
        for control in [false, true] {
            let options = Options { address, control, port: Some(0), ..Options::new(dir.path()) };
            assert!(matches!(Server::start(options), Err(StartError::NoToken { .. })), "{address}");
        }
    }
    for weak in
        ["", "short", "0123456789abcde", "0123456789abcdef;", "0123456789abcdef\r\nX: y", "ééééééééééééééééé"]
    {
        let options = Options { token: Some(weak.to_string()), ..Options::new(dir.path()) };
        assert!(matches!(Server::start(options), Err(StartError::WeakToken)), "{weak}");
    }
}

#[test]
fn a_port_that_is_taken_is_told_and_the_usual_one_is_not_insisted_on() {
    let site = Site::new();
    let dir = tempfile::tempdir().unwrap();
    let options = Options { port: Some(site.server.address().port()), ..Options::new(dir.path()) };
    let error = Server::start(options).unwrap_err();
    assert!(matches!(error, StartError::Bind { .. }), "{error}");
    let servers: Vec<Server> = (0..3).map(|_| Server::start(Options::new(dir.path())).unwrap()).collect();
    assert_ne!(servers[1].address(), servers[2].address());
}

#[test]
fn p36_foreign_hosts_are_refused() {
    let site = Site::new();
    let port = site.server.address().port();
    let ask = |head: &str| site.send(&format!("{head}Connection: close\r\n\r\n")).status;
    for host in ["localhost", "127.0.0.1", "[::1]", &format!("localhost:{port}"), "LocalHost:1"] {
        assert_eq!(ask(&format!("GET /api/runs HTTP/1.1\r\nHost: {host}\r\n")), 200, "{host}");
    }
    let foreign =
        ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "192.168.0.1", "0.0.0.0", ""];
    for host in foreign {
        for path in ["/", "/assets/index.html", "/api/runs", "/api/runs/x/events", "/nothing"] {
            let status = ask(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n"));
            assert_eq!(status, 403, "{host} {path}");
        }
    }
    // No Host, two of them, and one in the address.
    assert!(ask("GET /api/runs HTTP/1.0\r\n") >= 400);
    assert!(ask("GET /api/runs HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n") >= 400);
    assert!(ask("GET http://evil.example/api/runs HTTP/1.1\r\nHost: localhost\r\n") >= 400);
}

#[test]
fn p36_an_open_dashboard_needs_its_token() {
    let site = Site::with(|options| {
        options.address = Ipv4Addr::UNSPECIFIED.into();
        options.token = Some(TOKEN.to_string());
    });
    assert!(site.server.url().ends_with(&format!("/?token={TOKEN}")));
    let ask = |path: &str, head: &str| {
        site.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{head}Connection: close\r\n\r\n"))
    };
    for path in ["/", "/assets/plotly.js", "/api/about", "/api/runs", "/api/events", "/nothing"] {
        assert_eq!(ask(path, "").status, 401, "{path}");
    }
    for wrong in ["x", &TOKEN[1..], &format!("{TOKEN}0"), &TOKEN.to_lowercase()] {
        assert_eq!(ask(&format!("/?token={wrong}"), "").status, 403, "{wrong}");
        assert_eq!(ask("/api/runs", &format!("x-tenterhook-token: {wrong}\r\n")).status, 401, "{wrong}");
    }
    // A token in the address opens the page, and nothing else.
    assert_eq!(ask(&format!("/api/runs?token={TOKEN}"), "").status, 401);
    let signed_in = ask(&format!("/?token={TOKEN}"), "");
    assert_eq!((signed_in.status, signed_in.header("location")), (303, Some("/")));
    let cookie = signed_in.header("set-cookie").unwrap().to_string();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let cookie = format!("Cookie: other=1; {}\r\n", cookie.split(';').next().unwrap());
    assert_eq!(ask("/api/runs", &cookie).status, 200);
    assert_eq!(ask("/", &cookie).status, 200);
    assert_eq!(ask("/api/runs", &format!("Authorization: Bearer {TOKEN}\r\n")).status, 200);
    // By another name only for those who know the token.
    let elsewhere = |head: &str| {
        site.send(&format!("GET /api/runs HTTP/1.1\r\nHost: gpu7.lab\r\n{head}Connection: close\r\n\r\n"))
            .status
    };
    assert_eq!((elsewhere(""), elsewhere(&cookie)), (403, 200));
}

#[test]
fn p36_every_answer_keeps_a_browser_from_being_talked_into_something() {
    let site = Site::new();
    site.run("first", |_| {});
    let paths = [
        "/",
        "/assets/index.html",
        "/assets/plotly.js",
        "/assets/none",
        "/api/runs",
        "/api/runs/first",
        "/x",
    ];
    for path in paths {
        let origin = "Origin: http://evil.example\r\n";
        let answer = site
            .send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{origin}Connection: close\r\n\r\n"));
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self';"), "{policy}");
        assert!(
            policy.contains("frame-ancestors 'none'") && policy.contains("form-action 'none'"),
            "{policy}"
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("x-frame-options"), Some("DENY"), "{path}");
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"), "{path}");
        assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"), "{path}");
        assert!(!answer.head.to_ascii_lowercase().contains("access-control-"), "{path}: {}", answer.head);
        if path.starts_with("/api") {
            assert_eq!(answer.header("cache-control"), Some("no-store"), "{path}");
        }
    }
    let preflight = "OPTIONS /api/runs HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\
                     Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n";
    let answer = site.send(preflight);
    assert_eq!(answer.status, 405);
    assert!(!answer.head.to_ascii_lowercase().contains("access-control-"));
    // What a browser says of a request from another site.
    let site_says = "GET /api/runs HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\nConnection: close\r\n\r\n";
    assert_eq!(site.send(site_says).status, 403);
}

#[test]
fn the_page_is_built_in_and_has_tags() {
    let site = Site::new();
    let page = site.get("/");
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    assert!(
        !page.body.contains("http://") && !page.body.contains("https://"),
        "the page must need no network"
    );
    let plotly = site.get("/assets/plotly.js");
    assert!(plotly.body.len() > 1_000_000 && !plotly.body.contains("<script type"));
    let tag = plotly.header("etag").unwrap();
    let again = site.send(&format!(
        "GET /assets/plotly.js HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: {tag}\r\nConnection: close\r\n\r\n"
    ));
    assert_eq!((again.status, again.body.len()), (304, 0));
}
