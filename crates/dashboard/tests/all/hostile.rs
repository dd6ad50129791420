//! What strangers send.

use std::fs;

use serde_json::json;

use crate::site::{Site, escaped, write_log, write_tensors};

const SECRET: &str = "the-secret-that-no-answer-may-have";

/// Names that lead out of a directory somewhere, in some spelling.
const NAMES: &[&str] = &[
    "..",
    ".",
    "../secret",
    "../../secret",
    "..\\secret",
    "....//secret",
    "..;/secret",
    "/etc/passwd",
    "//etc/passwd",
    "\\\\server\\share",
    "C:\\secret",
    "C:secret",
    "first/../../secret",
    "first/run.json",
    "first/captures",
    "./first",
    "first/.",
    "first\0",
    "first\0.json",
    "\0",
    "first\n",
    "first\r\nX-Injected: yes",
    "%2e%2e",
    "%2e%2e%2fsecret",
    "..%2fsecret",
    "%252e%252e%252fsecret",
    "..%c0%afsecret",
    "..%ef%bc%8fsecret",
    "\u{2025}/secret",
    "\u{ff0e}\u{ff0e}/secret",
    "\u{202e}first",
    "first\u{200b}",
    "~",
    "~root",
    "file:///etc/passwd",
    ".hidden",
    "first.",
    "first ",
    " first",
    "CON",
    "nul.txt",
    "first:stream",
    "*",
    "?",
    "<script>alert(1)</script>",
    "",
];

#[test]
fn p36_no_name_leads_out_of_the_directory_of_runs() {
    let site = Site::with(|options| {
        let captures = options.runs_dir.with_file_name("captures");
        fs::create_dir(&captures).unwrap();
        options.captures = Some(captures);
    });
    let run = site.run("first", |_| {});
    write_log(&run, 0..3, &["loss"], |step, _| step as f64);
    fs::create_dir(run.captures()).unwrap();
    write_tensors(&run.captures().join("good.safetensors"), &[("x", &[2], vec![1.0, 2.0])]);
    // A run outside, with everything a run has.
    let secret = site.dir.path().join("secret");
    fs::create_dir_all(secret.join("captures")).unwrap();
    fs::write(secret.join("run.json"), json!({ "id": "secret", "name": SECRET }).to_string()).unwrap();
    fs::write(secret.join("config.toml"), format!("# {SECRET}")).unwrap();
    fs::write(secret.join("metrics.jsonl"), "{\"step\":1,\"epoch\":0,\"time\":1,\"secret\":1}\n").unwrap();
    write_tensors(&secret.join("captures/good.safetensors"), &[(SECRET, &[1], vec![1.0])]);
    write_tensors(&secret.join("s.safetensors"), &[(SECRET, &[1], vec![1.0])]);

    let long = "a".repeat(300);
    let names = NAMES.iter().map(|name| name.to_string()).chain([long, "../".repeat(40) + "secret"]);
    for name in names {
        let escaped = escaped(&name);
        let raw: String = name.chars().filter(|c| !c.is_control() && *c != ' ').collect();
        let double = escaped.replace('%', "%25");
        for id in [escaped, double, raw] {
            for rest in ["", "/series?name=secret", "/events", "/diff?other=first", "/heatmap?pattern=*"] {
                check(&site, &format!("/api/runs/{id}{rest}"));
            }
            check(&site, &format!("/api/runs/first/diff?other={id}"));
            for file in [id.clone(), format!("{id}%2Fgood.safetensors"), format!("{id}.safetensors")] {
                check(&site, &format!("/api/runs/first/captures/{file}"));
                check(&site, &format!("/api/runs/first/captures/{file}/tensor?name={SECRET}"));
                check(&site, &format!("/api/captures/{file}"));
            }
            check(&site, &format!("/assets/{id}"));
        }
    }
    assert_eq!(site.get("/api/runs/first").status, 200);
    assert_eq!(site.get("/api/runs/first/captures/good.safetensors").status, 200);
}

fn check(site: &Site, path: &str) {
    let answer = site.get(path);
    assert!(matches!(answer.status, 200 | 400..=499), "{path}: {}", answer.status);
    assert!(!answer.body.contains(SECRET) && !answer.body.contains("root:"), "{path}: {}", answer.body);
    // Some raw spellings are the list, the page or the good run.
    if answer.status == 200 {
        let harmless = [
            "\"runs\":",
            "<!doctype html>",
            "\"id\":\"first\"",
            "\"a\":\"first\"",
            "\"captures\":",
            "\"good.safetensors\"",
            "\"series\":{}",
            "\"rows\":[\"loss\"]",
            "event: hello",
        ];
        assert!(harmless.iter().any(|text| answer.body.contains(text)), "{path}: {}", answer.body);
    }
    assert!(answer.header("x-injected").is_none(), "{path}");
}

#[cfg(unix)]
#[test]
fn p36_links_are_not_followed() {
    use std::os::unix::fs::symlink;
    let site = Site::new();
    let outside = site.dir.path().join("outside");
    fs::create_dir_all(outside.join("captures")).unwrap();
    fs::write(outside.join("run.json"), json!({ "id": "outside", "name": SECRET }).to_string()).unwrap();
    write_tensors(&outside.join("captures/x.safetensors"), &[(SECRET, &[1], vec![1.0])]);
    fs::write(outside.join("config.toml"), format!("# {SECRET}")).unwrap();
    fs::write(
        outside.join("metrics.jsonl"),
        format!("{{\"step\":1,\"epoch\":0,\"time\":1,\"{SECRET}\":1}}\n"),
    )
    .unwrap();
    symlink(&outside, site.runs().join("linked")).unwrap();
    assert_eq!(site.get("/api/runs/linked").status, 404);

    let run = site.run("own", |_| {});
    for name in ["config.toml", "metrics.jsonl", "receipts.json", "histograms.jsonl"] {
        symlink(outside.join(name), run.path().join(name)).unwrap();
    }
    symlink(outside.join("captures"), run.captures()).unwrap();
    let told = site.get("/api/runs/own");
    assert_eq!(told.status, 200);
    assert!(!told.body.contains(SECRET), "{}", told.body);
    assert_eq!(site.get("/api/runs/own/captures/x.safetensors").status, 404);

    let other = site.run("other", |_| {});
    fs::create_dir(other.captures()).unwrap();
    symlink(outside.join("captures/x.safetensors"), other.captures().join("x.safetensors")).unwrap();
    assert_eq!(site.get("/api/runs/other/captures/x.safetensors").status, 404);
    let bare = site.runs().join("bare");
    fs::create_dir(&bare).unwrap();
    symlink(outside.join("run.json"), bare.join("run.json")).unwrap();
    for path in ["/api/runs", "/api/runs/bare", "/api/runs/other"] {
        let told = site.get(path);
        assert!(told.status == 200 && !told.body.contains(SECRET), "{path}: {}", told.body);
    }
}

#[test]
fn p36_a_script_in_a_name_stays_text() {
    let site = Site::new();
    let script = "<script>alert(1)</script>";
    let run = site.run("scripted", |record| {
        record.name = Some(script.to_string());
        record.reason = Some(format!("\"><img src=x onerror=alert(1)>{script}"));
        record.hooks = vec![json!({ "id": script, "kind": script, "enabled": true, "matched": [script] })];
    });
    let metric = format!("a\"b\\c\u{2028}{script}");
    write_log(&run, 0..3, &[&metric], |step, _| step as f64);
    let told = site.get("/api/runs/scripted");
    assert_eq!(told.header("content-type"), Some("application/json"));
    assert_eq!(told.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(told.json()["name"], script);
    assert_eq!(told.json()["metrics"][0]["name"], metric.as_str());
    let series = site.json(&format!("/api/runs/scripted/series?name={}", escaped(&metric)));
    assert_eq!(series["series"][&metric]["value"], json!([0.0, 1.0, 2.0]));
    assert_eq!(site.json("/api/runs")["runs"][0]["name"], script);
    let missing = site.get(&format!("/api/runs/{}", escaped(script)));
    assert_eq!((missing.status, missing.header("content-type")), (404, Some("application/json")));
}

#[test]
fn p36_huge_and_broken_requests_are_refused() {
    let site = Site::new();
    site.run("first", |_| {});
    let get = |path: &str| site.get(path).status;
    for size in [9_000, 60_000, 70_000, 1_000_000] {
        let status = get(&format!("/api/runs/first/series?name={}", "x".repeat(size)));
        assert!(matches!(status, 414 | 431 | 400), "{size}: {status}");
    }
    let many = "name=x&".repeat(1000);
    assert_eq!(get(&format!("/api/runs/first/series?{many}")), 200, "the same name is one series");
    let many: String = (0..500).map(|i| format!("name={i}&")).collect();
    assert_eq!(get(&format!("/api/runs/first/series?{many}")), 400);
    for query in ["from=x", "to=-1", "points=1e9", "from=99999999999999999999999"] {
        assert_eq!(get(&format!("/api/runs/first/series?name=a&{query}")), 400, "{query}");
    }
    assert_eq!(get("/api/runs/first/series?name=%FF%FE"), 200);
    for path in
        ["/api/runs/first/heatmap", "/api/runs/first/heatmap?pattern=a", "/api/runs/first/heatmap?pattern=**"]
    {
        assert_eq!(get(path), 400, "{path}");
    }
    assert_eq!(get("/api/runs/first/diff"), 400);
    assert_eq!(get("/api/runs/%FF"), 400);
    assert_eq!(get("/api/captures"), 404);
    for method in ["PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "BREW"] {
        let status = site
            .send(&format!("{method} /api/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
            .status;
        assert!(matches!(status, 400 | 403 | 405), "{method}: {status}");
    }
    for bytes in
        ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\u{16}\u{3}\u{1}", "\r\n\r\n\r\n\r\n"]
    {
        let _ =
            crate::site::send(site.address(), format!("{bytes}GET").as_bytes().get(..bytes.len()).unwrap());
    }
    let headers: String = (0..500).map(|i| format!("x-{i}: y\r\n")).collect();
    assert_eq!(site.send(&format!("GET / HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")).status, 431);
    assert_eq!(get("/api/runs"), 200, "it is still there");
}

#[test]
fn p36_it_only_shows_unless_it_was_started_to_control() {
    let site = Site::new();
    site.run("first", |_| {});
    for path in ["/api/runs/first/hooks/h", "/api/runs/first", "/api/runs", "/"] {
        let status = site
            .send(&format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\
                 x-tenterhook-token: \r\nConnection: close\r\n\r\n{{\"enabled\": true}}"
            ))
            .status;
        assert_eq!(status, 403, "{path}");
    }
    assert_eq!(site.json("/api/about")["control"], false);
}
