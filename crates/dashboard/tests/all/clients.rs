//! Many clients, some of them bad ones.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tenterhook_record::metrics::{MetricsLog, Row};
use tenterhook_record::run::{RunRecord, Status};

use crate::site::{Site, send, write_log};

fn open(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    stream
}

/// Follows a run as the page does, and returns the steps it knows when the run is over.
fn follow(address: SocketAddr, id: &str) -> BTreeSet<u64> {
    let mut known = BTreeSet::new();
    let mut event = String::new();
    for line in BufReader::new(open(address, &format!("/api/runs/{id}/events"))).lines() {
        let line = line.unwrap();
        if let Some(name) = line.strip_prefix("event: ") {
            event = name.to_string();
        }
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let data: Value = serde_json::from_str(data).unwrap();
        let steps = |series: &Value| -> Vec<u64> {
            series["step"].as_array().into_iter().flatten().map(|step| step.as_u64().unwrap()).collect()
        };
        match event.as_str() {
            "rows" => known.extend(steps(&data["series"]["loss"])),
            "refetch" => {
                let request = format!(
                    "GET /api/runs/{id}/series?name=loss HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                );
                known =
                    steps(&send(address, request.as_bytes()).json()["series"]["loss"]).into_iter().collect();
            }
            "end" => {
                assert_eq!(data["status"], "completed");
                return known;
            }
            _ => {}
        }
    }
    panic!("the stream ended before the run did");
}

#[test]
fn p37_a_hundred_clients_follow_a_run_whatever_twenty_of_them_do() {
    let site = Site::new();
    let run = site.run("live", |record| record.status = Status::Training);
    let lock = run.lock().unwrap();
    let names: Vec<String> = (0..50).map(|i| format!("metric/{i}")).collect();
    let mut log = MetricsLog::open(&run.metrics_path(), None).unwrap();
    let mut write = |step: u64| {
        let others = names.iter().map(|name| (name.clone(), step as f64));
        let values = others.chain([("loss".to_string(), 1.0)]).collect();
        log.append(&Row { step, values, ..Row::default() }).unwrap();
    };
    (0..10).for_each(&mut write);
    let address = site.address();
    let flood = AtomicBool::new(true);
    let answered = AtomicU64::new(0);
    thread::scope(|scope| {
        let stalled: Vec<TcpStream> = (0..20).map(|_| open(address, "/api/runs/live/events")).collect();
        let clients: Vec<_> = (0..80).map(|_| scope.spawn(|| follow(address, "live"))).collect();
        for path in ["/api/runs", "/api/runs/live", "/api/runs/live/series?name=loss"] {
            let (flood, answered) = (&flood, &answered);
            scope.spawn(move || {
                while flood.load(Relaxed) {
                    let request =
                        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
                    assert_eq!(send(address, request.as_bytes()).status, 200);
                    answered.fetch_add(1, Relaxed);
                }
            });
        }
        for step in 10..60 {
            write(step);
            thread::sleep(Duration::from_millis(50));
        }
        let mut record = RunRecord::read(&run).unwrap();
        record.status = Status::Completed;
        record.write(&run).unwrap();
        drop(lock);
        for client in clients {
            assert_eq!(client.join().unwrap(), (0..60).collect(), "every row, or all of them again");
        }
        flood.store(false, Relaxed);
        drop(stalled);
    });
    println!("{} answers meanwhile", answered.load(Relaxed));
}

#[test]
fn p37_a_client_that_does_not_read_is_dropped_and_holds_nobody_up() {
    let site = Site::with(|options| options.patience = Duration::from_millis(700));
    let run = site.run("wide", |_| {});
    let names: Vec<String> = (0..200).map(|i| format!("m{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    write_log(&run, 0..1000, &names, |step, _| step as f64 + 0.123_456);
    site.loaded("/api/runs/wide");
    let query: String = names.iter().map(|name| format!("name={name}&")).collect();
    let heavy = format!("/api/runs/wide/series?{query}");
    let whole = site.get(&heavy).body.len();
    // More than may wait together: those that are too many are told so.
    let stalled: Vec<TcpStream> = (0..40).map(|_| open(site.address(), &heavy)).collect();
    let pages: Vec<TcpStream> = (0..20).map(|_| open(site.address(), "/assets/plotly.js")).collect();
    assert_eq!(site.get("/api/about").status, 200);
    let begun = Instant::now();
    thread::sleep(Duration::from_millis(3000));
    let mut cut = 0;
    for mut stream in pages.into_iter().chain(stalled) {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let is_told = bytes.starts_with(b"HTTP/1.1 503");
        assert!(bytes.starts_with(b"HTTP/1.1 200") || is_told);
        cut += usize::from(bytes.len() < whole && !is_told);
    }
    assert!(cut >= 20, "{cut}");
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(site.get(&heavy).status, 200, "there is room again");
}

#[test]
fn too_many_streams_are_refused_and_places_become_free_again() {
    let site = Site::new();
    let run = site.run("live", |record| record.status = Status::Training);
    let _lock = run.lock().unwrap();
    let mut streams: Vec<TcpStream> =
        (0..256).map(|_| open(site.address(), "/api/runs/live/events")).collect();
    for stream in &mut streams {
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
    }
    assert_eq!(site.get("/api/runs/live/events").status, 503);
    assert_eq!(site.get("/api/runs").status, 200);
    drop(streams);
    let begun = Instant::now();
    loop {
        let mut stream = open(site.address(), "/api/events");
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        match &first {
            b"HTTP/1.1 200" => break,
            _ => assert!(begun.elapsed() < Duration::from_secs(20), "no place became free"),
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn p37_a_server_that_is_stopped_leaves_at_once_whoever_is_connected() {
    let site = Site::new();
    site.run("over", |_| {});
    let streams: Vec<TcpStream> = (0..20).map(|_| open(site.address(), "/assets/plotly.js")).collect();
    let begun = Instant::now();
    let address = site.address();
    site.server.stop();
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(TcpStream::connect(address).is_err());
    drop(streams);
}
