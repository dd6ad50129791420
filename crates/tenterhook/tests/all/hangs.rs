//! Steps cannot hang silently, and what is slow elsewhere does not slow them down.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::lab::{Lab, TINY};
use crate::running::Running;

const JSON_LOG: &str = "\n[[hooks]]\nkind = \"json_log\"\nlog_every_n_batches = 1\n";

#[test]
fn p12_the_watchdog_names_what_a_run_waits_for() {
    let watched = TINY.replace("[train]", "[train]\nwatchdog = 1") + JSON_LOG;
    let beside = watched.replace("[train]", "[train]\nasync_checkpoints = true");
    let cases = [
        (&watched, "train.data", "it is in the data loader"),
        (&watched, "log.append", "it is in hook `json_log`"),
        (&watched, "save.files.written", "it is in writing a checkpoint"),
        (&watched, "train.validation", "it is in validation"),
        // The next checkpoint has to wait for the one that is being written.
        (&beside, "save.files.written", "it is in writing a checkpoint"),
    ];
    let running = cases.map(|(config, point, words)| {
        let lab = Lab::with(config);
        let mut command = lab.command(&["train", "run.toml"]);
        command.env("TENTERHOOK_FAULTS", format!("{point}=sleep:600000@2"));
        (Running::start(command), lab, words)
    });
    for (mut running, _lab, words) in running {
        // It is told while it hangs: nobody waits for ten minutes here.
        running.wait_for(words);
        let said = running.said();
        let line = said.lines().find(|line| line.contains(words)).unwrap();
        assert!(line.contains("nothing has moved for") && line.contains("step "), "{line}");
        running.kill();
    }
}

/// Takes connections and never says a word.
fn dead_server() -> (u16, Arc<Mutex<Vec<TcpStream>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let open = Arc::new(Mutex::new(Vec::new()));
    let kept = open.clone();
    std::thread::spawn(move || {
        listener.incoming().for_each(|stream| kept.lock().unwrap().push(stream.unwrap()))
    });
    (port, open)
}

/// A better model at every step, and a receiver that takes the first message and never answers: 64 messages wait, the rest is dropped and
/// counted, and every step is done.
#[test]
fn p12_a_dead_webhook_holds_nothing_up() {
    const STEPS: usize = 70;
    let (port, connections) = dead_server();
    let config = TINY
        .replace("steps = 40", &format!("steps = {STEPS}"))
        .replace("warmup = 5", "warmup = 69")
        .replace("checkpoint_every = 10", "")
        .replace("validate_every = 10", "");
    let hooks = format!(
        r#"
[[hooks]]
kind = "model_checkpoint"
monitor = "lr"
mode = "max"
save_every_n_steps = 1

[[hooks]]
kind = "webhook"
url = "http://127.0.0.1:{port}/secret"
allow_local = true
timeout_s = 600
"#
    );
    let lab = Lab::with(&(config + &hooks));
    let mut running = Running::start(lab.command(&["train", "run.toml"]));
    let log = lab.run_dir("tiny").join("metrics.jsonl");
    let last = format!("{{\"step\":{STEPS},");
    running.wait_until("the last step is logged", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.ends_with('\n') && text.contains(&last))
    });
    // The end of the run waits for messages; that is not what this is about.
    running.kill();
    let rows = lab.metrics("tiny");
    assert_eq!(rows.iter().filter(|row| row.get("loss").is_some()).count(), STEPS);
    let dropped: Vec<f64> = rows.iter().filter_map(|row| row.get("webhook/dropped")?.as_f64()).collect();
    assert!(dropped.is_sorted() && dropped.last().is_some_and(|last| *last >= 1.0), "{dropped:?}");
    let open = connections.lock().unwrap().len();
    assert_eq!(open, 1, "the first message was still on its way when the last step was done");
}
