//! Starts that cannot work are refused by all ranks, with one message.

use std::time::Duration;

use crate::job::{CONFIG, Job, end_within, text};

const SOON: Duration = Duration::from_secs(15);

/// What all say when rank 1 is started with another configuration: `mpirun -n 1 a : -n 1 b`.
fn refused(job: &Job, other: &str) -> String {
    let mut command = job.ranks(1, &["train", "run.toml", "-q"]);
    command.args([":", "-n", "1", env!("CARGO_BIN_EXE_tenterhook"), "train", other, "-q"]);
    let done = end_within(command.spawn().unwrap(), SOON);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done));
    assert!(!job.run_dir().exists(), "nothing is made");
    text(&done)
}

#[test]
fn p26_a_wrong_configuration_on_one_rank_is_refused_by_all() {
    let job = Job::new(CONFIG);
    std::fs::write(job.path().join("other.toml"), CONFIG.replace("lr = 3e-3", "lr = 2e-3")).unwrap();
    let said = refused(&job, "other.toml");
    assert!(said.contains("rank 1 on") && said.contains("another configuration"), "{said}");
}

#[test]
fn p26_a_file_that_one_rank_does_not_have_is_named_by_all() {
    let said = refused(&Job::new(CONFIG), "missing.toml");
    assert!(said.contains("rank 1 on") && said.contains("missing.toml"), "{said}");
}

#[test]
fn p26_ranks_that_do_not_see_each_other_are_refused() {
    let job = Job::new(CONFIG);
    let done = job.alone(&["train", "run.toml", "-q"]).env("SLURM_STEP_NUM_TASKS", "4").output().unwrap();
    let said = text(&done);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("SLURM has started 4 processes") && said.contains("--mpi=pmix"), "{said}");
}

#[test]
fn a_program_with_mpi_needs_no_launcher() {
    let job = Job::new(&CONFIG.replace("steps = 200", "steps = 8"));
    assert_eq!(job.train(1, &[]).last().unwrap()["step"], 8);
}
