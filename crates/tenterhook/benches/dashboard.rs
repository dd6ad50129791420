//! What clients of the dashboard cost a run that serves it: `cargo bench -p tenterhook --bench dashboard [-- SECONDS]`.
//!
//! One run trains all the time; windows without clients and with them take turns, so that whatever else the machine does meets both. The
//! clients are a process that gets what is left of the processors, as if they were elsewhere: 80 follow the run as the page does, 20 never read. In every
//! third window there is a flood of requests too. On a machine that has other things to do the share of the processor that the dashboard
//! takes says more than the steps: it is what training can lose at most.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const CONFIG: &str = r#"
[run]
name = "bench"

[model]
kind = "gpt"
vocab = 64
context = 128
d_model = 256
n_heads = 4
n_layers = 4
d_mlp = 1024

[[data.train]]
kind = "induction"
examples = 4096
block = 128
batch = 4

[train]
steps = 100000000

[[optimizer]]
kind = "adamw"
lr = 1e-3

[[hooks]]
kind = "activation_stats"
points = ["blocks.*.hook_resid_post"]
every = 10

[[hooks]]
kind = "console_log"
log_every_n_batches = 1000000
"#;

/// How long a window is, and the part of it in which clients come or go.
const WINDOW: Duration = Duration::from_secs(3);
const SETTLING: Duration = Duration::from_millis(1000);
/// In this order, so that what changes slowly meets all alike: nothing, clients, clients and a flood.
const KINDS: [usize; 6] = [0, 1, 2, 2, 1, 0];

/// A part of the measurement.
struct Window {
    kind: usize,
    begun: f64,
    ended: f64,
    /// Time on a processor: of the dashboard's threads, and of all others of the process.
    dashboard: u64,
    training: u64,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    match args.as_slice() {
        [clients, address, flood] if clients == "clients" => crowd(address, flood == "true"),
        // `cargo test --benches` only wants to know whether it works.
        [seconds] => measure(seconds.parse().unwrap()),
        _ => measure(if std::env::args().any(|arg| arg == "--bench") { 120 } else { 12 }),
    }
}

fn measure(seconds: u64) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("run.toml"), CONFIG).unwrap();
    let mut training = Command::new(env!("CARGO_BIN_EXE_tenterhook"))
        .args(["train", "run.toml", "--quiet", "--serve", "--port", "0"])
        .current_dir(dir.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(training.stderr.take().unwrap()).lines();
    let address = said.find_map(|line| {
        Some(line.ok()?.split_once("dashboard at http://")?.1.trim_end_matches('/').to_string())
    });
    let address = address.unwrap();
    thread::sleep(SETTLING);
    let mut windows = Vec::new();
    for i in 0..(seconds / WINDOW.as_secs()).max(3) as usize {
        let kind = KINDS[i % KINDS.len()];
        let clients = (kind > 0).then(|| start_clients(&address, kind == 2));
        thread::sleep(SETTLING);
        let (begun, before) = (now(), processor_time(training.id()));
        thread::sleep(WINDOW - SETTLING);
        let (ended, after) = (now(), processor_time(training.id()));
        let (dashboard, training) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
        windows.push(Window { kind, begun, ended, dashboard, training });
        clients.into_iter().for_each(stop);
    }
    stop(training);
    tell(&dir.path().join("runs/bench/metrics.jsonl"), &windows);
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Ticks of the dashboard's threads, and of all others.
fn processor_time(pid: u32) -> (u64, u64) {
    let mut ticks = (0, 0);
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(')') else { continue };
        let used: u64 = rest.split(' ').skip(12).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        match name.contains("(dashboard") {
            true => ticks.0 += used,
            false => ticks.1 += used,
        }
    }
    ticks
}

fn stop(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn start_clients(address: &str, flood: bool) -> Child {
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new("chrt");
    command.args(["--idle", "0"]).arg(this).args(["clients", address, if flood { "true" } else { "false" }]);
    command.spawn().unwrap()
}

/// Prints how long steps took in windows of every kind, and what the dashboard took of the processors.
fn tell(log: &Path, windows: &[Window]) {
    let text = fs::read_to_string(log).unwrap();
    let times: Vec<f64> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()?["time"].as_f64())
        .collect();
    let mut alone: Option<(f64, f64)> = None;
    for (kind, what) in ["no clients", "80 clients, 20 stalled", "the same and a flood"].iter().enumerate() {
        let windows = || windows.iter().filter(|window| window.kind == kind);
        let within = |time: f64| windows().any(|window| (window.begun..window.ended).contains(&time));
        let pairs = times.windows(2).filter(|pair| within(pair[0]) && within(pair[1]));
        let mut steps: Vec<f64> = pairs.map(|pair| (pair[1] - pair[0]) * 1e3).collect();
        steps.sort_by(f64::total_cmp);
        let (median, quick) = (steps[steps.len() / 2], steps[steps.len() / 10]);
        let (median_alone, quick_alone) = *alone.get_or_insert((median, quick));
        let more = |with: f64, without: f64| (with / without - 1.0) * 100.0;
        let (ours, all) = windows().fold((0, 0), |sum, window| {
            (sum.0 + window.dashboard, sum.1 + window.dashboard + window.training)
        });
        println!(
            "{what}: {} steps, median {median:.3} ms ({:+.2}%), quickest tenth below {quick:.3} ms ({:+.2}%), the dashboard has {:.2}% of \
             the process's time",
            steps.len(),
            more(median, median_alone),
            more(quick, quick_alone),
            100.0 * ours as f64 / all.max(1) as f64
        );
    }
}

fn open(address: &str, path: &str, more: &str) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n").as_bytes()).ok()?;
    Some(stream)
}

fn get(address: &str, path: &str) -> usize {
    let mut bytes = Vec::new();
    let stream = open(address, path, "Connection: close\r\n");
    stream.map_or(0, |mut stream| stream.read_to_end(&mut bytes).unwrap_or(0))
}

/// All clients, until the process is killed.
fn crowd(address: &str, flood: bool) {
    let events = "/api/runs/bench/events";
    let series = "/api/runs/bench/series?name=loss&name=time/step&points=1000";
    let stalled: Vec<_> = (0..20).filter_map(|_| open(address, events, "")).collect();
    thread::scope(|scope| {
        for _ in 0..80 {
            scope.spawn(|| {
                let Some(stream) = open(address, events, "") else { return };
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if line == "event: refetch" {
                        get(address, series);
                    }
                }
            });
        }
        for path in ["/api/runs", "/api/runs/bench", series, "/"].into_iter().filter(|_| flood) {
            scope.spawn(move || {
                // Together a thousand a second, or as many as are answered.
                loop {
                    get(address, path);
                    thread::sleep(Duration::from_millis(4));
                }
            });
        }
    });
    drop(stalled);
}
