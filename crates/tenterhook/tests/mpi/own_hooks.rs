//! Hooks of a user's own that do something on one rank: the library, under a real `mpirun`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use candle_core::{Device, Tensor};
use tenterhook::hooks::{At, Cx, Hook, HookOptions, HookResult, OnError, Want};
use tenterhook::train::World;
use tenterhook::train::config::Document;
use tenterhook::training::{How, Plan, Start, registry};

use crate::job::{CONFIG, Job, all, end_within, text};

/// In the environment of a rank: what its hook does.
const ACT: &str = "TENTERHOOK_TEST_ACT";
const STEP: u64 = 7;

struct OnRankOne {
    rank: usize,
    act: String,
}

impl Hook for OnRankOne {
    fn kind(&self) -> &str {
        "on_rank_one"
    }

    fn wants(&self) -> Vec<Want> {
        vec![Want::edit("blocks.0.hook_resid_post")]
    }

    fn edit(&mut self, _at: &At, x: &Tensor, cx: &mut Cx) -> HookResult<Option<Tensor>> {
        match self.act.as_str() {
            _ if self.rank != 1 || cx.clock().step != STEP => Ok(None),
            "nan" => Ok(Some((x * f64::NAN)?)),
            _ => Err("out of ideas".into()),
        }
    }
}

/// What every rank of these jobs runs. Without a rank's environment there is nothing to do.
#[test]
fn the_program_of_these_jobs() {
    let Ok(act) = std::env::var(ACT) else { return };
    let world = World::join().unwrap();
    let registry = registry();
    let document = Document::read(Path::new("run.toml")).unwrap();
    let plan = Plan::check(&document, &registry).unwrap().in_world(world.clone());
    let start =
        Start { plan: &plan, registry: &registry, device: &Device::Cpu, args: Vec::new(), parent: None };
    let mut trainer = start.begin(How::New).unwrap().trainer;
    let options = HookOptions { on_error: OnError::Abort, allow_non_finite: true, ..HookOptions::default() };
    trainer.add_hook_with(OnRankOne { rank: world.rank(), act }, options).unwrap();
    let ended = match trainer.train() {
        Ok(finished) => format!("{} after {} steps", finished.status.as_str(), finished.steps),
        Err(error) => error.to_string(),
    };
    fs::write(format!("rank{}.txt", world.rank()), ended).unwrap();
}

/// What each of three ranks ended with.
fn ends(job: &Job, act: &str) -> Vec<String> {
    let mut command = job.ranks_of_test(3, "own_hooks::the_program_of_these_jobs");
    let done = end_within(command.env(ACT, act).spawn().unwrap(), Duration::from_secs(60));
    assert!(done.status.success(), "{}", text(&done));
    (0..3).map(|rank| fs::read_to_string(job.path().join(format!("rank{rank}.txt"))).unwrap()).collect()
}

fn config(more: &str) -> String {
    CONFIG.replace("steps = 200", &format!("steps = 20\n{more}"))
}

#[test]
fn p28_nan_on_one_rank_stops_all_at_the_same_step() {
    let (job, host) = (Job::new(&config("")), tenterhook::record::run::host());
    for end in ends(&job, "nan") {
        assert!(end.starts_with(&format!("step {STEP}: rank 1 on {host}: the loss is NaN")), "{end}");
    }
    let record = job.record();
    assert_eq!(
        (record["status"].as_str(), record["attempts"][0]["to_step"].as_u64()),
        (Some("error"), Some(STEP))
    );
}

#[test]
fn p28_nan_on_one_rank_is_a_step_that_all_skip() {
    let job = Job::new(&config("on_non_finite = \"skip\""));
    assert_eq!(ends(&job, "nan"), ["completed after 20 steps"; 3]);
    assert_eq!(all(&job.rows(), "skipped_steps").last(), Some(&1.0));
}

#[test]
fn p28_an_exception_in_a_hook_of_one_rank_ends_all() {
    let (job, host) = (Job::new(&config("")), tenterhook::record::run::host());
    for (rank, end) in ends(&job, "fail").into_iter().enumerate() {
        assert!(end.contains("out of ideas"), "{end}");
        assert_eq!(end.starts_with(&format!("rank 1 on {host} failed")), rank != 1, "{end}");
    }
    assert!(job.record()["reason"].as_str().unwrap().starts_with(&format!("rank 1 on {host}")));
}
