//! The list of runs, and all about one.

use std::fs;

use serde_json::json;
use tenterhook_record::checkpoints::CheckpointWriter;
use tenterhook_record::metrics::{Bins, HistogramLog, HistogramRow, Number};
use tenterhook_record::run::{Attempt, Status};

use crate::site::{Site, write_log};

#[test]
fn runs_are_listed_newest_first_with_how_they_stand() {
    let site = Site::new();
    let at = |day: u32| format!("2026-01-{day:02}T00:00:00Z");
    site.run("old", |record| (record.started, record.name) = (at(1), Some("the old one".to_string())));
    let live = site.run("live", |record| (record.started, record.status) = (at(3), Status::Training));
    let _lock = live.lock().unwrap();
    let killed = site.run("killed", |record| (record.started, record.status) = (at(2), Status::Training));
    write_log(&killed, 1..5, &["loss", "val/loss"], |step, i| (10 - step) as f64 + i as f64);
    fs::create_dir(site.runs().join("broken")).unwrap();
    fs::write(site.runs().join("broken/run.json"), "{").unwrap();
    fs::create_dir(site.runs().join(".hidden")).unwrap();
    fs::write(site.runs().join("a file"), "").unwrap();

    let told = site.json("/api/runs");
    let runs = told["runs"].as_array().unwrap();
    let ids: Vec<&str> = runs.iter().map(|run| run["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["live", "killed", "old", "broken"]);
    let stands = |i: usize| (runs[i]["status"].clone(), runs[i]["live"].clone(), runs[i]["killed"].clone());
    assert_eq!(stands(0), (json!("training"), json!(true), json!(false)));
    assert_eq!(stands(1), (json!("interrupted"), json!(false), json!(true)));
    assert_eq!(stands(2), (json!("completed"), json!(false), json!(false)));
    assert_eq!(stands(3), (json!(null), json!(false), json!(false)));
    assert!(runs[3]["problem"].as_str().unwrap().contains("run.json"));
    assert_eq!(runs[1]["steps"], 4);
    assert_eq!(runs[1]["score"], json!({ "name": "val/loss", "value": 7.0, "step": 4, "best": true }));
    assert_eq!(runs[2]["name"], "the old one");
}

#[test]
fn a_live_run_that_is_killed_is_seen_to_be() {
    let site = Site::new();
    let run = site.run("run", |record| record.status = Status::Training);
    let lock = run.lock().unwrap();
    assert_eq!(site.json("/api/runs/run")["status"], "training");
    drop(lock);
    std::thread::sleep(std::time::Duration::from_millis(1000));
    assert_eq!(site.json("/api/runs/run")["status"], "interrupted");
    let _lock = run.lock().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(site.json("/api/runs/run")["status"], "training");
}

#[test]
fn everything_about_a_run_is_told() {
    let site = Site::new();
    let run = site.run("run", |record| {
        record.attempts = vec![Attempt { to_step: Some(7), ..Attempt::begin() }];
        record.hooks = vec![
            json!({ "id": "ema", "kind": "ema", "enabled": true, "matched": ["a"] }),
            json!({ "id": "b" }),
        ];
        record.errors = vec![json!({ "step": 3, "error": "no" })];
    });
    fs::write(run.config_path(), "[train]\nsteps = 70\n").unwrap();
    fs::write(run.receipts_path(), json!([{ "id": "ema", "enabled": false, "fired": 5 }]).to_string())
        .unwrap();
    let mut checkpoint = CheckpointWriter::begin(&run.checkpoints(), "step-7", 7).unwrap();
    checkpoint.file("state.json", |to| to.write_all(b"{}")).unwrap();
    checkpoint.finish(serde_json::Map::new()).unwrap();
    fs::create_dir(run.checkpoints().join("bad")).unwrap();
    let bins = |step: u64| Bins { low: Number(-1.0), high: Number(step as f64), counts: vec![step, 2] };
    let mut log = HistogramLog::open(&run.histograms_path(), None).unwrap();
    for step in 1..=3 {
        let histograms = [("grad/w".to_string(), bins(step))].into();
        log.append(&HistogramRow { step, histograms, ..HistogramRow::default() }).unwrap();
    }
    write_log(&run, 1..8, &["loss", "lr"], |step, _| step as f64);

    let told = site.json("/api/runs/run");
    assert_eq!((&told["steps"], &told["total_steps"]), (&json!(7), &json!(70)));
    assert_eq!(told["hooks"][0]["receipt"]["fired"], 5);
    assert_eq!(told["hooks"][0]["enabled"], false, "the receipt is newer than the record");
    assert_eq!(told["hooks"][1]["receipt"], json!(null));
    assert_eq!(told["errors"][0]["step"], 3);
    assert_eq!(told["config"], "[train]\nsteps = 70\n");
    assert_eq!(told["checkpoints"][0]["name"], "bad");
    assert!(told["checkpoints"][0]["problem"].is_string());
    assert_eq!(told["checkpoints"][1]["files"], json!([{ "name": "state.json", "bytes": 2 }]));
    assert_eq!(told["metrics"][0], json!({ "name": "loss", "count": 7, "last": 7.0, "step": 7 }));
    assert_eq!(told["histograms"], json!(["grad/w"]));
    let histogram = site.json("/api/runs/run/histograms?name=grad/w");
    assert_eq!(histogram["steps"], json!([1, 2, 3]));
    assert_eq!((&histogram["high"], &histogram["counts"][2]), (&json!([1.0, 2.0, 3.0]), &json!([3, 2])));
    assert_eq!(site.get("/api/runs/run/histograms?name=none").status, 404);
}

#[test]
fn two_runs_are_compared() {
    let site = Site::new();
    for (id, steps) in [("a", 5), ("b", 6)] {
        let run = site.run(id, |record| record.data = json!({ "digest": id }));
        fs::write(run.config_path(), format!("[train]\nsteps = {steps}\nclip = 1.0\n")).unwrap();
        write_log(&run, 0..steps, &["val/loss", "time/step"], |step, _| step as f64);
    }
    let told = site.json("/api/runs/a/diff?other=b");
    assert_eq!(told["config"], json!([{ "key": "train.steps", "a": 5, "b": 6 }]));
    assert_eq!(told["data"], json!([{ "key": "digest", "a": "a", "b": "b" }]));
    assert_eq!(told["metrics"], json!([{ "key": "val/loss", "a": 4.0, "b": 5.0 }]));
    assert_eq!(told["commit"], json!([]));
    assert_eq!(site.get("/api/runs/a/diff?other=none").status, 404);
}
