//! Ranks that are killed or stopped: the job ends soon and names them, and a restart ends as if nothing had happened.

use std::process::Child;
use std::time::{Duration, Instant};

use tenterhook::hooks::random::Stream;

use crate::job::{CONFIG, Job, end_within, is_there, processes_of, signal, text, timeless};

/// A run that is longer than it takes to be hit.
fn long() -> String {
    CONFIG.replace("steps = 200", "steps = 100000")
}

/// Waits until the log of a job has so many rows.
pub(crate) fn wait_for_rows(job: &Job, started: &Child, rows: usize) {
    let began = Instant::now();
    let logged =
        || std::fs::read_to_string(job.run_dir().join("metrics.jsonl")).map_or(0, |log| log.lines().count());
    while logged() < rows {
        assert!(began.elapsed() < Duration::from_secs(60), "process {} logs nothing", started.id());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn p26_a_rank_that_is_killed_or_stopped_ends_the_job_and_is_named() {
    let host = tenterhook::record::run::host();
    let cases = [(libc::SIGKILL, 1), (libc::SIGSTOP, 1), (libc::SIGSTOP, 0), (libc::SIGKILL, 0)];
    let times = if std::env::var_os("TENTERHOOK_CAMPAIGN").is_some() { 50 } else { 1 };
    for (round, (what, rank)) in cases.into_iter().cycle().take(cases.len() * times).enumerate() {
        let job = Job::new(&long());
        let mut command = job.ranks(3, &["train", "run.toml", "-q"]);
        if round == 1 {
            command.env_remove("TENTERHOOK_RANK_SILENCE"); // 5 s, and 2 s elsewhere here
        }
        let started = command.spawn().unwrap();
        wait_for_rows(&job, &started, 5 + round);
        let ranks = processes_of(&started);
        assert_eq!(ranks.len(), 3);
        let began = Instant::now();
        signal(ranks[rank], what);
        let done = end_within(started, Duration::from_secs(15));
        let said = text(&done);
        assert!(!done.status.success(), "{said}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}: {said}", began.elapsed());
        assert!(said.contains(&format!("rank {rank}")) && said.contains(&host), "{said}");
        job.check_checkpoints();
        while ranks.iter().any(|process| is_there(*process)) {
            assert!(began.elapsed() < Duration::from_secs(15), "a rank is still there");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn p27_restarts_after_lost_ranks_end_as_if_nothing_had_happened() {
    let hits = std::env::var("TENTERHOOK_HITS").map_or(50, |hits| hits.parse().unwrap());
    // Long enough for all hits: each comes after some more rows.
    let config = CONFIG
        .replace("steps = 200", &format!("steps = {}", hits * 40))
        .replace("validate_every = 50", "validate_every = 500");
    let undisturbed = Job::new(&config);
    let expected = timeless(undisturbed.train(2, &[]));
    let job = Job::new(&config);
    let started = job.launched(2, hits + 5, &[]).spawn().unwrap();
    let random = Stream::new(27).named("hits");
    let (mut hit, mut rows) = (0, 0);
    let began = Instant::now();
    let logged =
        || std::fs::read_to_string(job.run_dir().join("metrics.jsonl")).map_or(0, |log| log.lines().count());
    while hit < hits {
        assert!(began.elapsed() < Duration::from_secs(1200), "{hit} hits so far");
        std::thread::sleep(Duration::from_millis(10));
        // After a hit the run goes back to its last checkpoint.
        rows = rows.min(logged());
        if logged() < rows + 1 + (random.uniform(hit as u64) * 30.0) as usize {
            continue;
        }
        let ranks = processes_of(&started);
        if ranks.len() != 2 {
            continue;
        }
        let draw = random.bits(1000 + hit as u64);
        let what = if draw & 6 == 0 { libc::SIGSTOP } else { libc::SIGKILL };
        signal(ranks[(draw & 1) as usize], what);
        hit += 1;
        rows = logged();
        // Until it is gone: a second hit on a job that is ending would be none.
        let gone = Instant::now();
        while processes_of(&started).iter().any(|process| ranks.contains(process)) {
            assert!(gone.elapsed() < Duration::from_secs(15), "hit {hit}: the ranks are still there");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let done = end_within(started, Duration::from_secs(600));
    assert!(done.status.success(), "{}", text(&done));
    assert!(job.weights() == undisturbed.weights(), "other weights");
    assert_eq!(timeless(job.rows()), expected);
    assert!(job.record()["attempts"].as_array().unwrap().len() > hits / 2);
    job.check_checkpoints();
}
