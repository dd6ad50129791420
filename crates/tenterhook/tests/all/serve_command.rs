//! `serve` and `train --serve`: the dashboard as a user starts it, and what a run notices of it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::lab::{Lab, TINY};
use crate::running::Running;
use crate::support::tenterhook;

/// Where a process serves, as it said on standard error.
fn address(running: &mut Running) -> String {
    running.wait_for("dashboard at http://");
    let said = running.said();
    let (_, rest) = said.split_once("dashboard at http://").unwrap();
    rest.split(['/', '\n']).next().unwrap().to_string()
}

fn open(address: &str, request: &str) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    stream.write_all(format!("{request}\r\nHost: localhost\r\n").as_bytes()).ok()?;
    Some(stream)
}

/// Status and body of an answer; nothing where nobody answers.
fn get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = open(address, &format!("GET {path} HTTP/1.1"))?;
    stream.write_all(b"Connection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_string()))
}

fn json_of(address: &str, path: &str) -> Value {
    serde_json::from_str(&get(address, path).unwrap().1).unwrap()
}

fn serve(lab: &Lab) -> Running {
    Running::start(lab.command(&["serve", "--port", "0"]))
}

#[test]
fn it_serves_until_it_is_told_to_end() {
    let lab = Lab::with(TINY);
    lab.ok(&["train", "run.toml"]);
    for signal in ["TERM", "INT"] {
        let mut serving = serve(&lab);
        let at = address(&mut serving);
        assert!(at.starts_with("127.0.0.1:"), "{at}");
        assert!(get(&at, "/").unwrap().1.contains("<html"));
        let runs = json_of(&at, "/api/runs");
        assert_eq!(
            (&runs["runs"][0]["id"], &runs["runs"][0]["status"]),
            (&json!("tiny"), &json!("completed"))
        );
        let run = json_of(&at, "/api/runs/tiny");
        assert_eq!((&run["steps"], &run["total_steps"]), (&json!(40), &json!(40)));
        let series = json_of(&at, "/api/runs/tiny/series?name=loss&name=val/loss");
        assert_eq!(series["series"]["loss"]["step"].as_array().unwrap().len(), 40);
        serving.signal(signal);
        assert_eq!(serving.finish().code, Some(0), "SIG{signal}");
    }
}

#[test]
fn what_cannot_be_served_is_told_before_anything_happens() {
    let lab = Lab::with(TINY);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    lab.write("file", "");
    let cases: [(&[&str], &str); 9] = [
        (&["serve", "--port", &port], "cannot listen at 127.0.0.1"),
        (&["serve", "--bind", "0.0.0.0"], "without a token"),
        (&["serve", "--bind", "0.0.0.0", "--token", "short"], "16 to 256"),
        (&["serve", "--bind", "nowhere"], "invalid"),
        (&["serve", "--captures", "none"], "captures"),
        (&["serve", "--runs-dir", "file"], "is not a directory of runs"),
        (&["train", "run.toml", "--serve", "--port", &port], "cannot listen at 127.0.0.1"),
        (&["train", "run.toml", "--port", "0"], "add --serve"),
        (&["train", "run.toml", "--control"], "add --serve"),
    ];
    for (args, words) in cases {
        let ran = lab.run(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
    }
    assert!(!lab.path().join("runs").exists(), "nothing was trained");
    assert!(tenterhook(&["serve", "--help"]).stdout.contains("tenterhook serve --bind 0.0.0.0"));
}

#[test]
fn p36_an_open_dashboard_warns_and_prints_its_token() {
    let lab = Lab::new();
    let mut serving =
        Running::start(lab.command(&["serve", "--port", "0", "--bind", "0.0.0.0", "--token", "new"]));
    serving.wait_for("token: ");
    let said = serving.said();
    assert!(said.contains("WARNING: other machines can reach this dashboard"), "{said}");
    assert!(said.contains("/?token="), "{said}");
    let port = said.split("0.0.0.0:").nth(1).unwrap().split('/').next().unwrap().to_string();
    assert_eq!(get(&format!("127.0.0.1:{port}"), "/api/runs").unwrap().0, 401);
    serving.signal("TERM");
    assert_eq!(serving.finish().code, Some(0));
}

#[test]
fn a_run_that_is_killed_shows_as_interrupted() {
    let lab = Lab::with(TINY);
    let mut serving = serve(&lab);
    let at = address(&mut serving);
    let mut training = Running::start(lab.command(&["train", "run.toml", "--set", "train.steps=1000000"]));
    let status = |status: &str| {
        let runs = json_of(&at, "/api/runs");
        runs["runs"][0]["status"] == status
    };
    training.wait_until("training", || status("training"));
    training.kill();
    let began = Instant::now();
    while !status("interrupted") {
        assert!(began.elapsed() < Duration::from_secs(60), "{}", json_of(&at, "/api/runs"));
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(json_of(&at, "/api/runs/tiny")["killed"], true);
}

#[test]
fn a_hook_is_switched_from_the_dashboard_while_the_run_goes_on() {
    let lab = Lab::with(&format!("{TINY}\n[[hooks]]\nkind = \"lr_monitor\"\nid = \"lr\"\n"));
    let args = ["train", "run.toml", "--set", "train.steps=1000000", "--serve", "--port", "0", "--control"];
    let mut training = Running::start(lab.command(&args));
    let at = address(&mut training);
    training.wait_for("token: ");
    let said = training.said();
    let token = said.split("token: ").nth(1).unwrap().lines().next().unwrap().to_string();
    // It is live a moment before its hooks stand in the record.
    training.wait_until("the hook", || {
        let run = json_of(&at, "/api/runs/tiny");
        run["live"] == true && run["hooks"].as_array().unwrap().iter().any(|hook| hook["id"] == "lr")
    });
    let body = "{\"enabled\": false}";
    let post = |token: &str| {
        let request = format!(
            "POST /api/runs/tiny/hooks/lr HTTP/1.1\r\nContent-Type: application/json\r\nx-tenterhook-token: {token}\r\n\
             Content-Length: {}\r\nConnection: close",
            body.len()
        );
        let mut stream = open(&at, &request).unwrap();
        stream.write_all(format!("\r\n{body}").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split(' ').nth(1).unwrap().to_string()
    };
    assert_eq!(post("wrong"), "403");
    assert_eq!(post(&token), "202");
    training.wait_until("the change", || {
        let run = json_of(&at, "/api/runs/tiny");
        run["hook_changes"][0]["hook"] == "lr"
            && run["hooks"]
                .as_array()
                .unwrap()
                .iter()
                .any(|hook| hook["id"] == "lr" && hook["enabled"] == false)
    });
    training.signal("TERM");
    assert_eq!(training.finish().code, Some(75));
    let change = &lab.record("tiny")["hook_changes"][0];
    assert_eq!((&change["enabled"], &change["by"]), (&json!(false), &json!("dashboard")));
}

/// Clients of all kinds, until they are told to go: some listen, some do not read what they asked for, some ask without end.
fn crowd(address: &str, id: &str, stop: &AtomicBool) {
    let events = &format!("GET /api/runs/{id}/events HTTP/1.1");
    thread::scope(|scope| {
        let stalled: Vec<_> = (0..20)
            .filter_map(|_| {
                let mut stream = open(address, events)?;
                stream.write_all(b"\r\n").ok()?;
                Some(stream)
            })
            .collect();
        for _ in 0..20 {
            scope.spawn(move || {
                let Some(mut stream) = open(address, events) else { return };
                let _ = stream.write_all(b"\r\n");
                let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
                let mut buffer = [0; 4096];
                while !stop.load(Relaxed) {
                    if matches!(stream.read(&mut buffer), Ok(0)) {
                        break;
                    }
                }
            });
        }
        for path in
            ["/api/runs".to_string(), format!("/api/runs/{id}"), format!("/api/runs/{id}/series?name=loss")]
        {
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    let _ = get(address, &path);
                }
            });
        }
        while !stop.load(Relaxed) {
            thread::sleep(Duration::from_millis(10));
        }
        drop(stalled);
    });
}

#[test]
fn p37_a_run_with_a_crowd_of_clients_ends_with_the_same_bits() {
    let args = ["train", "run.toml", "--set", "train.steps=400"];
    let straight = Lab::with(TINY);
    straight.ok(&args);
    let served = Lab::with(TINY);
    let mut training = Running::start(served.command(&[&args[..], &["--serve", "--port", "0"]].concat()));
    let at = address(&mut training);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| crowd(&at, "tiny", &stop));
        let ran = training.finish();
        stop.store(true, Relaxed);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    });
    assert_eq!(served.metrics("tiny"), straight.metrics("tiny"));
    assert_eq!(served.digest("tiny"), straight.digest("tiny"));
    assert!(get(&at, "/").is_none(), "it ends with the run");
}

#[test]
fn p37_killing_the_server_or_its_clients_changes_nothing_in_the_run() {
    let args = ["train", "run.toml", "--set", "train.steps=400"];
    let straight = Lab::with(TINY);
    straight.ok(&args);
    let watched = Lab::with(TINY);
    let mut serving = serve(&watched);
    let at = address(&mut serving);
    let mut training = Running::start(watched.command(&args));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| crowd(&at, "tiny", &stop));
        let log = watched.run_dir("tiny").join("metrics.jsonl");
        training.wait_until("a hundred rows", || {
            fs::read_to_string(&log).is_ok_and(|text| text.lines().count() > 100)
        });
        // All clients go at once, in the middle of everything; then the server does.
        stop.store(true, Relaxed);
        serving.kill();
        let ran = training.finish();
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    });
    assert_eq!(watched.metrics("tiny"), straight.metrics("tiny"));
    assert_eq!(watched.digest("tiny"), straight.digest("tiny"));
}

/// The most memory a process has had, in bytes.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().split(' ').next().unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn p37_the_memory_of_the_server_is_bounded() {
    let lab = Lab::new();
    let row = |step: u64, names: &[String]| {
        let values: String = names.iter().map(|name| format!(",\"{name}\":{}.25", step % 1000)).collect();
        format!("{{\"step\":{step},\"epoch\":0,\"time\":{step}{values}}}\n")
    };
    let names = |count: usize| (0..count).map(|i| format!("metric/{i}")).collect::<Vec<_>>();
    // The first is long, the second wide, as logs go; what follows is one of each for every place there is in memory.
    for (id, rows, names) in [("long", 500_000, names(1)), ("wide", 5_000, names(200))] {
        fs::create_dir_all(lab.run_dir(id)).unwrap();
        lab.write(&format!("runs/{id}/run.json"), json!({ "id": id, "status": "completed" }).to_string());
        let file = fs::File::create(lab.run_dir(id).join("metrics.jsonl")).unwrap();
        let mut file = std::io::BufWriter::new(file);
        (0..rows).for_each(|step| file.write_all(row(step, &names).as_bytes()).unwrap());
    }
    let mut serving = serve(&lab);
    let at = address(&mut serving);
    json_of(&at, "/api/about");
    let before = peak(serving.pid());
    let query: String = names(200).iter().map(|name| format!("name={name}&")).collect();
    for id in ["long", "wide"] {
        serving.wait_until("all is read", || json_of(&at, &format!("/api/runs/{id}"))["loading"].is_null());
    }
    // Nobody reads what was asked for here.
    let heavy = format!("GET /api/runs/wide/series?{query} HTTP/1.1");
    let stalled: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = open(&at, &heavy).unwrap();
            stream.write_all(b"\r\n").unwrap();
            stream
        })
        .collect();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        assert_eq!(get(&at, "/api/runs").unwrap().0, 200);
    }
    let grown = peak(serving.pid()).saturating_sub(before);
    println!("p37: {} MiB more than at the start, at most", grown >> 20);
    assert!(grown < 250 << 20, "{grown} bytes more than at the start");
    drop(stalled);
}
