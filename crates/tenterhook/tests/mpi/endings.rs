//! What ends one rank ends all, at the same step, and nobody waits for ever.

use std::time::Duration;

use crate::job::{CONFIG, Job, end_within, signal, text};

const SOON: Duration = Duration::from_secs(60);

fn short(extra: &str) -> String {
    format!("{}{extra}", CONFIG.replace("steps = 200", "steps = 400"))
}

#[test]
fn p28_early_stopping_ends_all_ranks_at_the_same_step() {
    let hook = "[[hooks]]\nkind = \"early_stopping\"\nmonitor = \"val/loss\"\nmode = \"max\"\npatience = 2\n";
    let config = short(hook).replace("validate_every = 50", "validate_every = 5");
    let job = Job::new(&config);
    let rows = job.train(4, &[]);
    let record = job.record();
    assert_eq!(record["status"], "stopped", "{record:#}");
    assert_eq!(record["attempts"][0]["to_step"].as_u64(), rows.last().unwrap()["step"].as_u64());
}

#[test]
fn p28_nan_on_all_ranks_is_said_once() {
    let config = short("").replace("lr = 3e-3", "lr = 1e30").replace("grad_clip = 1.0\n", "");
    let job = Job::new(&config);
    let done = end_within(job.ranks(3, &["train", "run.toml", "-q"]).spawn().unwrap(), SOON);
    assert_eq!(done.status.code(), Some(1), "{}", text(&done));
    let said = text(&done);
    assert_eq!(said.matches("on_non_finite").count(), 1, "said once: {said}");
    assert_eq!(job.record()["status"], "error");
    job.check_checkpoints();
}

#[test]
fn p28_a_signal_to_one_rank_interrupts_all_and_the_run_goes_on() {
    let job = Job::new(&CONFIG.replace("steps = 200", "steps = 100000"));
    let started = job.ranks(3, &["train", "run.toml", "-q"]).spawn().unwrap();
    crate::cut_off::wait_for_rows(&job, &started, 20);
    signal(crate::job::processes_of(&started)[1], libc::SIGTERM);
    let done = end_within(started, SOON);
    assert_eq!(done.status.code(), Some(75), "{}", text(&done));
    assert_eq!(job.record()["status"], "interrupted");
    let steps = job.record()["attempts"][0]["to_step"].as_u64().unwrap();
    let until = (steps + 10).to_string();
    job.train(2, &["--resume", "job", "--set", &format!("train.steps={until}")]);
    assert_eq!(job.record()["attempts"][1]["from_step"].as_u64(), Some(steps));
}

#[test]
fn p28_a_signal_to_the_launcher_saves_and_leaves() {
    for what in [libc::SIGINT, libc::SIGTERM] {
        let job = Job::new(&CONFIG.replace("steps = 200", "steps = 100000"));
        let started = job.launched(2, 3, &[]).spawn().unwrap();
        crate::cut_off::wait_for_rows(&job, &started, 20);
        signal(started.id() as i32, what);
        let done = end_within(started, SOON);
        assert_eq!(done.status.code(), Some(75), "{}", text(&done));
        assert_eq!(job.record()["status"], "interrupted");
    }
}

#[test]
fn p28_data_of_any_size_ends_no_run() {
    for examples in [1, 4, 5, 6, 7] {
        let config = CONFIG
            .replace("examples = 46", &format!("examples = {examples}"))
            .replace("steps = 200", "steps = 24");
        let job = Job::new(&config);
        let done = end_within(job.ranks(4, &["train", "run.toml", "-q"]).spawn().unwrap(), SOON);
        assert!(done.status.success(), "{examples} examples: {}", text(&done));
    }
}

/// A job of three ranks, of which one has a fault.
fn faulty(job: &Job, rank: usize, fault: &str) -> std::process::Output {
    let program = env!("CARGO_BIN_EXE_tenterhook");
    let fault = format!("TENTERHOOK_FAULTS={fault}");
    let words = ["train", "run.toml", "-q"];
    let well = [&[program][..], &words].concat();
    let ill = [&["env", &fault, program][..], &words].concat();
    let mut command = job.launcher();
    for other in 0..3 {
        command.args(if other > 0 { &[":"][..] } else { &[] });
        command.args(["-n", "1"]).args(if other == rank { &ill } else { &well });
    }
    end_within(command.spawn().unwrap(), SOON)
}

#[test]
fn p28_a_hook_that_fails_on_one_rank_ends_all_and_is_named() {
    let config = short("").replace("kind = \"json_log\"", "kind = \"json_log\"\non_error = \"abort\"");
    let job = Job::new(&config);
    let done = faulty(&job, 0, "log.append=eio@5");
    let said = text(&done);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("error: hook `json_log`").count(), 1, "said once: {said}");
    assert_eq!(job.record()["status"], "error");
}

#[test]
fn p28_whatever_fails_on_one_rank_ends_all_and_is_named() {
    let host = tenterhook::record::run::host();
    for (rank, fault) in [(1, "train.data=eio@7"), (2, "train.backward=eio@9"), (1, "train.validation=eio@2")]
    {
        let job = Job::new(&short("").replace("validate_every = 50", "validate_every = 5"));
        let done = faulty(&job, rank, fault);
        let said = text(&done);
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("rank {rank} on {host} failed")), "{said}");
        assert_eq!(job.record()["status"], "error");
        assert!(job.record()["reason"].as_str().unwrap().starts_with(&format!("rank {rank} on {host}")));
        job.check_checkpoints();
    }
}

#[test]
fn p28_other_ranks_write_no_logs() {
    let job = Job::new(&CONFIG.replace("steps = 200", "steps = 20"));
    let done = faulty(&job, 2, "log.append=eio");
    assert!(done.status.success(), "rank 2 writes no log: {}", text(&done));
}
