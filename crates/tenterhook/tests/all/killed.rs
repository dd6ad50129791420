//! A process that is killed at any moment leaves a whole checkpoint, whole lines, and a run that ends as if nothing had happened.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tenterhook::hooks::random::Stream;
use tenterhook::record::checkpoints;

use crate::lab::{Lab, TINY};
use crate::resume::HOOKS;
use crate::support::{Ran, campaign};
use crate::traces::{Traces, assert_same, entries, file_name};

/// A run that saves all the time: two checkpoints or more at most places, and removals.
fn config(steps: u64, checkpoint_every: u64) -> String {
    let train = TINY.replace("steps = 40", &format!("steps = {steps}"));
    let train = train.replace("validate_every = 10", "validate_every = 4");
    let train = train.replace("checkpoint_every = 10", &format!("checkpoint_every = {checkpoint_every}"));
    format!("{train}{HOOKS}")
}

fn straight(config: &str) -> Traces {
    let lab = Lab::in_memory(config);
    lab.ok(&["train", "run.toml", "--quiet"]);
    traces_of(&lab)
}

/// All traces but for event files of starts that did not live to save their name.
fn traces_of(lab: &Lab) -> Traces {
    let mut traces = lab.traces("tiny");
    let events = traces.extract_if(.., |name, _| name.starts_with("tensorboard/")).collect::<Vec<_>>();
    let events: Vec<String> =
        events.into_iter().map(|(_, events)| events).filter(|events| events.contains('\n')).collect();
    traces.insert("tensorboard".to_string(), events.join("\n"));
    traces
}

/// Begins the run or goes on with it, on a disk with these faults.
fn start(lab: &Lab, faults: &str) -> Child {
    let mut args = vec!["train", "run.toml", "--quiet"];
    if lab.run_dir("tiny").exists() {
        args.extend(["--resume", "tiny"]);
    }
    lab.command(&args).env("TENTERHOOK_FAULTS", faults).spawn().unwrap()
}

fn finish(lab: &Lab) -> Ran {
    Ran::of_child(start(lab, ""))
}

/// What is there under names that nothing selects.
fn leftovers(lab: &Lab) -> Vec<PathBuf> {
    let run = lab.run_dir("tiny");
    let all = entries(&run).into_iter().chain(entries(&run.join("checkpoints")));
    all.filter(|path| file_name(path).ends_with(".tmp")).collect()
}

/// What must be true of the disk at every moment; whether there is a checkpoint yet.
fn check_disk(lab: &Lab, context: &str) -> bool {
    let run = lab.run_dir("tiny");
    let visible = checkpoints::list(&run.join("checkpoints")).unwrap();
    for checkpoint in &visible {
        let verified = checkpoints::verify(&checkpoint.path);
        assert!(verified.is_ok(), "{context}: {}: {:?}", checkpoint.name, verified.err());
        assert!(!checkpoint.name.starts_with('.'), "{context}: {} can be selected", checkpoint.name);
    }
    let newest = checkpoints::newest_good(&run.join("checkpoints")).unwrap();
    assert!(newest.skipped.is_empty(), "{context}: {:?}", newest.skipped);
    assert_eq!(newest.checkpoint.is_some(), !visible.is_empty(), "{context}");
    check_lines(&run.join("metrics.jsonl"), context);
    check_lines(&run.join("logs/json_log.jsonl"), context);
    !visible.is_empty()
}

/// Every line but perhaps the last is a whole row.
fn check_lines(path: &Path, context: &str) {
    let bytes = std::fs::read(path).unwrap_or_default();
    let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    lines.pop(); // empty, or a line that was not finished
    for (i, line) in lines.iter().enumerate() {
        let row = serde_json::from_slice::<Value>(line);
        let is_row = row.as_ref().is_ok_and(|row| row["step"].is_u64());
        assert!(is_row, "{context}: {}, line {}: {row:?}", path.display(), i + 1);
    }
}

/// No step is logged twice, and none is missing.
fn check_steps(lab: &Lab, steps: u64, context: &str) {
    let rows = lab.metrics("tiny");
    let logged = rows.iter().filter(|row| row.get("loss").is_some()).map(|row| row["step"].as_u64().unwrap());
    assert_eq!(logged.collect::<Vec<_>>(), (1..=steps).collect::<Vec<_>>(), "{context}");
}

/// When the next kill comes.
enum Strike {
    After(Duration),
    /// So long after a checkpoint began to be written.
    InASave(Duration),
}

/// Kills the process with SIGKILL; `false` when it ended before that.
fn kill(lab: &Lab, mut child: Child, strike: &Strike) -> bool {
    let (began, before) = (Instant::now(), leftovers(lab));
    let mut over = || child.try_wait().unwrap().is_some();
    match strike {
        Strike::After(time) => {
            while began.elapsed() < *time && !over() {
                sleep(Duration::from_millis(1).min(*time));
            }
        }
        Strike::InASave(time) => {
            while leftovers(lab).iter().all(|path| before.contains(path)) && !over() {
                sleep(Duration::from_millis(1));
            }
            sleep(*time);
        }
    }
    if over() {
        let ran = Ran::of_child(child);
        assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
        return false;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    true
}

/// A run that is to be killed.
struct Victim {
    config: String,
    steps: u64,
    faults: &'static str,
    /// How long an attempt may live, in microseconds.
    life: u64,
    /// What it leaves when nobody kills it.
    want: Traces,
}

impl Victim {
    fn new(steps: u64, checkpoint_every: u64, faults: &'static str, life: u64) -> Self {
        let config = config(steps, checkpoint_every);
        Self { want: straight(&config), config, steps, faults, life }
    }

    /// So many kills, a few dozen of each run, every one of which then comes to its end.
    fn kill(&self, goal: u64, drawn: Stream) {
        let (mut killed, mut in_saves, mut runs) = (0, 0, 0);
        while killed < goal {
            let (kills, saves) = self.kill_one((goal - killed).min(34), drawn.at(runs));
            (killed, in_saves, runs) = (killed + kills, in_saves + saves, runs + 1);
        }
        println!(
            "p01, p38: {killed} kills, {in_saves} of them in a save, in {runs} runs: every trace as without"
        );
    }

    /// Kills a run again and again, then lets it come to its end. Returns how many kills there were, and how many hit a save.
    fn kill_one(&self, most: u64, drawn: Stream) -> (u64, u64) {
        let lab = Lab::in_memory(&self.config);
        let (mut killed, mut in_saves) = (0, 0);
        while killed < most {
            let child = start(&lab, self.faults);
            let strike = match killed % 2 {
                0 => Strike::After(Duration::from_micros(drawn.below(killed, self.life))),
                _ => Strike::InASave(Duration::from_micros(drawn.below(killed, self.life / 10))),
            };
            if !kill(&lab, child, &strike) {
                break; // it was quicker
            }
            killed += 1;
            if lab.run_dir("tiny").exists() {
                check_disk(&lab, &format!("{drawn:?}, kill {killed}"));
                in_saves += u64::from(!leftovers(&lab).is_empty());
            }
        }
        let (ran, context) = (finish(&lab), format!("{drawn:?}, {killed} kills"));
        assert_eq!(ran.code, Some(0), "{context}: {}{}", ran.stdout, ran.stderr);
        assert_eq!(leftovers(&lab), Vec::<PathBuf>::new(), "{context}");
        check_disk(&lab, &context);
        check_steps(&lab, self.steps, &context);
        assert_same(&traces_of(&lab), &self.want, &context);
        (killed, in_saves)
    }
}

#[test]
fn p01_killed_at_any_moment_a_run_goes_on_from_a_whole_checkpoint() {
    // A slow disk, so that many kills hit a save.
    let victim = Victim::new(40, 1, "disk.*=sleep:1", 400_000);
    victim.kill(campaign(80, 1000), Stream::new(1).named("kills"));
}

/// With few checkpoints, so that much of the log has to be written again.
#[test]
fn p38_killed_at_any_moment_a_log_has_whole_lines_and_no_step_twice() {
    let victim = Victim::new(240, 30, "", 120_000);
    victim.kill(campaign(40, 1000), Stream::new(38).named("kills"));
}

/// A run that dies at its n-th touch of the disk; `false` when there are not so many.
fn dies_at(lab: &Lab, n: u64) -> bool {
    let ran = Ran::of_child(start(lab, &format!("*=abort@{n}")));
    assert!(matches!(ran.code, None | Some(0)), "abort at {n}: {:?} {}", ran.code, ran.stderr);
    ran.code.is_none()
}

#[test]
fn p01_dead_at_any_point_of_a_save_a_run_goes_on_from_a_whole_checkpoint() {
    let config = config(8, 2);
    let want = straight(&config);
    let (mut points, mut beyond) = (1, 8192);
    while beyond - points > 1 {
        let middle = (points + beyond) / 2;
        match dies_at(&Lab::in_memory(&config), middle) {
            true => points = middle,
            false => beyond = middle,
        }
    }
    assert!(points >= 25, "only {points} points");
    let (tried, drawn) = (campaign(30, 3 * points), Stream::new(2).named("points"));
    let mut deaths = 0;
    for i in 0..tried {
        // Spread over all points; in the long form every one, three times.
        let n = 1 + i * points / tried;
        let lab = Lab::in_memory(&config);
        assert!(dies_at(&lab, n), "{n} of {points}");
        deaths += 1;
        let began = lab.run_dir("tiny").exists() && check_disk(&lab, &format!("dead at {n}"));
        // Going on can be deadly too.
        let again = 1 + drawn.below(i, points);
        if i % 2 == 0 && began {
            deaths += u64::from(dies_at(&lab, again));
            check_disk(&lab, &format!("dead at {n}, then at {again}"));
        }
        let (ran, context) = (finish(&lab), format!("dead at {n} of {points}, then perhaps at {again}"));
        assert_eq!(ran.code, Some(0), "{context}: {}{}", ran.stdout, ran.stderr);
        assert_eq!(leftovers(&lab), Vec::<PathBuf>::new(), "{context}");
        check_steps(&lab, 8, &context);
        assert_same(&traces_of(&lab), &want, &context);
    }
    println!("p01: dead {deaths} times at {tried} of {points} points: every trace as without");
}

#[test]
fn p01_a_run_killed_before_its_first_checkpoint_begins_again_and_says_so() {
    let lab = Lab::in_memory(&config(8, 2));
    assert!(dies_at(&lab, 8));
    assert!(!check_disk(&lab, "no checkpoint yet"));
    let ran = finish(&lab);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("before its first checkpoint; it begins again"), "{}", ran.stderr);
    check_steps(&lab, 8, "begun again");

    // With steps behind it, a run without a checkpoint is never begun again.
    std::fs::remove_dir_all(lab.run_dir("tiny").join("checkpoints")).unwrap();
    let ran = finish(&lab);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("no good checkpoint"), "{}", ran.stderr);
    check_steps(&lab, 8, "as it was");
}
