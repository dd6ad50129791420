//! A run saved by some ranks goes on with others.

use crate::job::{CONFIG, Job, assert_close};

#[test]
fn p25_saved_on_two_ranks_resumed_on_one_and_on_four() {
    let whole = Job::new(CONFIG).train(2, &[]);
    for ranks in [1, 2, 4] {
        let job = Job::new(CONFIG);
        job.train(2, &["--set", "train.steps=90"]);
        let rows = job.train(ranks, &["--resume", "job"]);
        assert_eq!(job.record()["attempts"][1]["from_step"], 90);
        // The schedule of the first part was that of 90 steps, so it is compared with a run of one size that was cut in the same way.
        let same = Job::new(CONFIG);
        same.train(1, &["--set", "train.steps=90"]);
        let expected = same.train(1, &["--resume", "job"]);
        for name in ["loss", "val/loss", "grad_norm"] {
            assert_close(&rows, &expected, name, &format!("2 and then {ranks} ranks"));
        }
        assert_eq!(rows.len(), whole.len());
    }
}

#[test]
fn steps_of_another_size_are_refused() {
    let config = CONFIG.replace("[ranks]", "[ranks]\nbatch = \"each_rank\"");
    let job = Job::new(&config);
    job.train(2, &["--set", "train.steps=20"]);
    let done = job.ranks(3, &["train", "run.toml", "-q", "--resume", "job"]).output().unwrap();
    let said = crate::job::text(&done);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("saved by 2 ranks, and there are 3"), "{said}");
}
