//! Metrics over time: right numbers, and not too many.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tenterhook_record::metrics::{MetricsLog, Row};

use crate::site::{Site, write_log};

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn p37_a_million_points_are_few_buckets_with_the_right_numbers() {
    const POINTS: u64 = 1_000_000;
    let value = |step: u64| (step * 7919 % 10_007) as f64 / 64.0;
    let site = Site::new();
    let run = site.run("long", |_| {});
    write_log(&run, 0..POINTS, &["loss"], |step, _| value(step));
    let first = site.json("/api/runs/long/series?name=loss");
    assert!(first["loading"].as_f64().is_some_and(|share| share < 0.5), "it is read in pieces");
    let told = site.loaded("/api/runs/long/series?name=loss");

    let series = &told["series"]["loss"];
    let (width, steps) = (series["width"].as_u64().unwrap(), numbers(&series["step"]));
    assert_eq!((series["count"].as_u64(), width), (Some(POINTS), 256));
    assert_eq!(steps.len() as u64, POINTS.div_ceil(width));
    assert!(steps.len() <= 4000);
    let [mean, min, max] = ["value", "min", "max"].map(|key| numbers(&series[key]));
    for (i, step) in steps.iter().enumerate() {
        let points = (i as u64 * width..POINTS.min((i as u64 + 1) * width)).map(value).collect::<Vec<_>>();
        assert_eq!(*step as u64, i as u64 * width + points.len() as u64 - 1);
        assert!((mean[i] - points.iter().sum::<f64>() / points.len() as f64).abs() < 1e-9, "{i}");
        assert_eq!(min[i], points.iter().copied().fold(f64::INFINITY, f64::min), "{i}");
        assert_eq!(max[i], points.iter().copied().fold(f64::NEG_INFINITY, f64::max), "{i}");
    }

    // A closer look has every point of the part.
    let close = site.json("/api/runs/long/series?name=loss&from=500000&to=500999");
    let close = &close["series"]["loss"];
    assert_eq!((close["width"].as_u64(), close["count"].as_u64()), (Some(1), Some(1000)));
    assert_eq!(numbers(&close["value"]), (500_000..501_000).map(value).collect::<Vec<_>>());
    let few = site.json("/api/runs/long/series?name=loss&points=10");
    assert!(numbers(&few["series"]["loss"]["step"]).len() <= 10);
}

#[test]
fn p37_many_metrics_share_the_memory_and_the_answer() {
    let names: Vec<String> = (0..200).map(|i| format!("act/blocks.{i}.x/std")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let site = Site::new();
    let run = site.run("wide", |_| {});
    write_log(&run, 0..4000, &names, |step, i| (step + i as u64) as f64);
    let about = site.loaded("/api/runs/wide");
    assert_eq!(about["metrics"].as_array().unwrap().len(), 200);
    let query: String = names.iter().map(|name| format!("name={name}&")).collect();
    let told = site.json(&format!("/api/runs/wide/series?{query}"));
    let series = told["series"].as_object().unwrap();
    assert_eq!(series.len(), 200);
    let points: usize = series.values().map(|series| series["step"].as_array().unwrap().len()).sum();
    assert!(points <= 100_000, "{points}");
    let grid = site.json("/api/runs/wide/heatmap?pattern=act/*/std");
    assert_eq!((&grid["rows"][2], &grid["rows"][10]), (&json!("blocks.2.x"), &json!("blocks.10.x")));
    let steps = numbers(&grid["steps"]);
    assert!(steps.len() <= 400 && steps.last() == Some(&3999.0));
    let first = numbers(&grid["z"][0]);
    assert_eq!(first.len(), steps.len());
    assert!((first[0] - steps[0] / 2.0).abs() < 1e-9, "the mean of 0 to the first step");
    assert_eq!(grid["z"].as_array().unwrap().len(), 200);
}

#[test]
fn rows_that_a_resume_takes_back_are_gone() {
    let site = Site::new();
    let run = site.run("resumed", |_| {});
    let row =
        |step: u64, value: f64| Row { step, values: [("loss".to_string(), value)].into(), ..Row::default() };
    let mut log = MetricsLog::open(&run.metrics_path(), None).unwrap();
    (0..5).for_each(|step| log.append(&row(step, 1.0)).unwrap());
    let checkpoint = log.position();
    (5..9).for_each(|step| log.append(&row(step, 2.0)).unwrap());
    let path = "/api/runs/resumed/series?name=loss";
    let before = site.json(path);
    assert_eq!(numbers(&before["series"]["loss"]["step"]).len(), 9);
    let mut log = MetricsLog::open(&run.metrics_path(), Some(checkpoint)).unwrap();
    log.append(&row(5, 3.0)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let after = site.json(path);
    assert_eq!(numbers(&after["series"]["loss"]["value"]), [1.0, 1.0, 1.0, 1.0, 1.0, 3.0]);
    assert_ne!(before["version"], after["version"]);
}

#[test]
fn odd_logs_are_told_and_do_no_harm() {
    let site = Site::new();
    let cases: BTreeMap<&str, (&str, usize, bool)> = [
        ("empty", ("", 0, false)),
        ("half", ("{\"step\":1,\"epoch\":0,\"time\":1,\"x\":1}\n{\"step\":2", 1, false)),
        ("bad", ("{\"step\":1,\"epoch\":0,\"time\":1,\"x\":1}\nnonsense\n{\"step\":2,\"epoch\":0,\"time\":1,\"x\":1}\n", 1, true)),
        ("words", ("{\"step\":1,\"epoch\":0,\"time\":1,\"x\":\"NaN\"}\n{\"step\":2,\"epoch\":0,\"time\":1,\"x\":\"Infinity\"}\n", 2, false)),
    ]
    .into();
    for (id, (text, points, problem)) in cases {
        let run = site.run(id, |_| {});
        std::fs::write(run.metrics_path(), text).unwrap();
        let told = site.json(&format!("/api/runs/{id}/series?name=x&name=unknown"));
        let found = told["series"]["x"]["step"].as_array().map_or(0, Vec::len);
        assert_eq!(found, points, "{id}");
        assert!(told["series"].get("unknown").is_none());
        assert_eq!(site.json(&format!("/api/runs/{id}"))["problem"].is_string(), problem, "{id}");
        if id == "words" {
            assert_eq!(told["series"]["x"]["value"], json!([null, null]));
        }
    }
}
