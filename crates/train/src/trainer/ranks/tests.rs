use std::sync::Arc;

use candle_core::{DType, Result, Tensor};
use tenterhook_hooks::{
    At, Batch, BatchInfo, Cx, Hook, HookOptions, HookResult, OnError, Pass, Point, PointTable, Request,
    RunStatus, Want,
};
use tenterhook_nn::{Init, Param, Params, RandomWeights, Scope};

use super::*;
use crate::config::{OnNonFinite, RanksSection, UpdateHooks};
use crate::data::{InMemory, Loader, Mixture, Strategy};
use crate::optim::{Clip, Kind, Optimizer, OptimizerConfig};
use crate::world::threads::in_threads;
use crate::{Finished, Settings, TrainModel};

#[test]
fn numbers_of_ranks_become_one() {
    assert_eq!(reduced("act/x/mean", &[1.0, 2.0, 6.0]), 3.0);
    assert_eq!(reduced("act/x/max", &[1.0, 7.0, 6.0]), 7.0);
    assert_eq!(reduced("min", &[1.0, 7.0, -6.0]), -6.0);
    assert_eq!(reduced("lr", &[0.1, 0.1, 0.1]), 0.1); // not the sum of three by three
    assert!(reduced("act/x/max", &[1.0, f64::NAN]).is_nan());
}

/// tanh(x W) V, with a point after the tanh.
struct Net {
    points: Arc<PointTable>,
    params: Params,
    w: Param,
    v: Param,
    hidden: tenterhook_hooks::PointId,
}

impl Net {
    fn new() -> Self {
        let scope = Scope::new(RandomWeights { seed: 7 }, DType::F32, &Device::Cpu);
        let w = scope.param("w", &[3, 8], Init::Normal { std: 0.5 }).unwrap();
        let v = scope.param("v", &[8, 2], Init::Normal { std: 0.5 }).unwrap();
        let hidden = scope.point(Point::new("hidden", "batch d")).unwrap();
        let (points, params) = scope.finish();
        Self { points, params, w, v, hidden }
    }
}

impl TrainModel for Net {
    fn points(&self) -> &Arc<PointTable> {
        &self.points
    }
    fn params(&self) -> &Params {
        &self.params
    }
    fn forward(&self, batch: &Batch, pass: &Pass) -> Result<Tensor> {
        let hidden = batch.get("inputs")?.matmul(self.w.at(pass))?.tanh()?;
        pass.tap(self.hidden, hidden)?.matmul(self.v.at(pass))
    }
    fn loss(&self, output: &Tensor, batch: &Batch) -> Result<Tensor> {
        (output - batch.get("targets")?)?.sqr()?.mean_all()
    }
}

fn data(examples: usize, spoil: Option<usize>) -> Arc<InMemory> {
    let x: Vec<f32> = (0..examples * 3).map(|i| ((i * 37 % 101) as f32) / 50.0 - 1.0).collect();
    let mut y: Vec<f32> = (0..examples * 2).map(|i| ((i * 53 % 97) as f32) / 40.0 - 1.0).collect();
    if let Some(example) = spoil {
        y[example * 2] = f32::NAN;
    }
    let tensor = |values: Vec<f32>, width| Tensor::from_vec(values, (examples, width), &Device::Cpu).unwrap();
    Arc::new(
        InMemory::new(vec![("inputs".to_string(), tensor(x, 3)), ("targets".to_string(), tensor(y, 2))])
            .unwrap(),
    )
}

#[derive(Clone)]
struct Case {
    examples: usize,
    spoil: Option<usize>,
    batch: usize,
    settings: Settings,
}

impl Case {
    fn new(examples: usize, batch: usize, steps: u64) -> Self {
        let settings = Settings {
            clip: Clip::Norm(0.5),
            ranks: RanksSection { check_every: 7, bucket_mb: 0.001, ..RanksSection::default() },
            validate_every: Some(crate::config::ValidateEvery::Steps(10)),
            ..Settings::steps(steps)
        };
        Self { examples, spoil: None, batch, settings }
    }

    fn trainer(&self, world: World) -> (Trainer, Arc<Net>) {
        let net = Arc::new(Net::new());
        let loader =
            Loader { shuffle: true, ..Loader::new("train", data(self.examples, self.spoil), self.batch) };
        let mixture = Mixture::new(vec![loader], Strategy::Sequential, 1).unwrap();
        let config = OptimizerConfig::new(Kind::AdamW, 0.02);
        let optimizers = Optimizer::build(&[config], net.params(), false).unwrap();
        let trainer = Trainer::new(net.clone(), mixture, optimizers, self.settings.clone()).unwrap();
        let trainer = trainer.with_validation(vec![Loader::new("val", data(13, None), 4)]);
        (trainer.with_world(world), net)
    }

    /// What every rank came to: how it ended, the losses of its rows, the bits of its weights.
    fn run(&self, ranks: usize, set_up: impl Fn(&mut Trainer) + Sync) -> Vec<Came> {
        in_threads(ranks, |world| {
            let (mut trainer, net) = self.trainer(world);
            let rows = Rows::default();
            trainer.add_hook(rows.clone()).unwrap();
            set_up(&mut trainer);
            let ended = trainer.train().map_err(|error| error.to_string());
            let bits = |param: &Param| -> Vec<u32> {
                let values: Vec<f32> = param.value().flatten_all().unwrap().to_vec1().unwrap();
                values.into_iter().map(f32::to_bits).collect()
            };
            let weights = net.params().iter().map(bits).collect();
            let rows = rows.0.lock().unwrap().clone();
            Came { ended, step: trainer.step(), rows, weights }
        })
    }
}

#[derive(Debug)]
struct Came {
    ended: std::result::Result<Finished, String>,
    step: u64,
    rows: Vec<Metrics>,
    weights: Vec<Vec<u32>>,
}

impl Came {
    fn all(&self, name: &str) -> Vec<f64> {
        self.rows.iter().filter_map(|row| row.get(name).copied()).collect()
    }
}

/// Keeps every row of the log.
#[derive(Clone, Default)]
struct Rows(Arc<std::sync::Mutex<Vec<Metrics>>>);

impl Hook for Rows {
    fn kind(&self) -> &str {
        "rows"
    }
    fn on_metrics(&mut self, row: &tenterhook_hooks::MetricsRow, _cx: &mut Cx) -> HookResult {
        let exact = row.values.iter().filter(|(name, _)| !name.starts_with("time/"));
        self.0.lock().unwrap().push(exact.map(|(name, value)| (name.clone(), *value)).collect());
        Ok(())
    }
}

fn near(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs())
}

#[test]
fn p25_ranks_train_like_one() {
    for accumulation in [1, 3] {
        let mut case = Case::new(37, 8, 60);
        case.settings.grad_accumulation = accumulation;
        let alone = case.run(1, |_| ()).remove(0);
        assert_eq!(alone.all("loss").len(), 60);
        for ranks in [2, 3, 4] {
            let all = case.run(ranks, |_| ());
            for one in &all {
                for name in ["loss", "train/loss", "grad_norm", "val/loss"] {
                    assert!(near(&one.all(name), &alone.all(name)), "{ranks} ranks: {name}");
                }
                // The same weights on every rank, to the bit, and the same numbers in every log.
                assert_eq!(one.weights, all[0].weights);
                assert_eq!(one.rows, all[0].rows);
            }
            let again = case.run(ranks, |_| ());
            assert_eq!((&again[0].weights, &again[0].rows), (&all[0].weights, &all[0].rows));
        }
    }
}

#[test]
fn p28_batches_that_cannot_be_divided_end_no_run() {
    for examples in 1..10 {
        for batch in [1, 3, 4] {
            let case = Case::new(examples, batch, 12);
            let alone = case.run(1, |_| ()).remove(0);
            for ranks in [2, 4] {
                for one in case.run(ranks, |_| ()) {
                    assert_eq!(one.ended.unwrap().status, RunStatus::Completed);
                    let all = one.rows.iter().filter_map(|row| row.get("loss").copied()).collect::<Vec<_>>();
                    assert!(near(&all, &alone.all("loss")), "{examples} in {batch}, {ranks} ranks");
                }
            }
        }
    }
}

/// Does something on one rank, at one step.
fn on_rank<F>(rank: usize, step: u64, act: F) -> impl Hook
where
    F: Fn(&mut Cx) -> HookResult + Send + 'static,
{
    struct OnRank<F>(usize, u64, F);
    impl<F: Fn(&mut Cx) -> HookResult + Send + 'static> Hook for OnRank<F> {
        fn kind(&self) -> &str {
            "on_rank"
        }
        fn on_train_batch_end(&mut self, _batch: &BatchInfo, cx: &mut Cx) -> HookResult {
            let here = cx.state().is_some_and(|state| (state.rank, state.step) == (self.0, self.1));
            if here { self.2(cx) } else { Ok(()) }
        }
    }
    OnRank(rank, step, act)
}

#[test]
fn p28_the_end_that_one_rank_asks_for_is_that_of_all() {
    let all = Case::new(37, 8, 50).run(3, |trainer| {
        trainer
            .add_hook(on_rank(2, 11, |cx| {
                cx.stop("enough");
                Ok(())
            }))
            .unwrap();
    });
    for one in all {
        let ended = one.ended.unwrap();
        assert_eq!((ended.status, one.step), (RunStatus::Stopped, 12));
        assert!(ended.reason.unwrap().contains("enough"));
    }
}

#[test]
fn p28_an_end_that_one_rank_asks_for_at_the_start_is_that_of_all() {
    struct AtStart;
    impl Hook for AtStart {
        fn kind(&self) -> &str {
            "at_start"
        }
        fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
            if cx.state().is_some_and(|state| state.rank == 1) {
                cx.stop("not today");
            }
            Ok(())
        }
    }
    let all = Case::new(37, 8, 50).run(2, |trainer| {
        trainer.add_hook(AtStart).unwrap();
    });
    assert!(all.iter().all(|one| one.step == all[0].step && one.step < 2));
    assert!(all.into_iter().all(|one| one.ended.unwrap().status == RunStatus::Stopped));
}

#[test]
fn p25_an_update_hook_that_fails_on_one_rank_ends_the_run_at_that_step() {
    struct Fails;
    impl Hook for Fails {
        fn kind(&self) -> &str {
            "fails"
        }
        fn update(&mut self, _grads: &mut NamedGrads, cx: &mut Cx) -> HookResult {
            let here = cx.state().is_some_and(|state| (state.rank, state.step) == (1, 2));
            if here { Err("oh".into()) } else { Ok(()) }
        }
    }
    let all = Case::new(37, 8, 50).run(2, |trainer| {
        trainer.add_hook(Fails).unwrap();
    });
    for one in all {
        let error = one.ended.unwrap_err();
        assert!(
            error.starts_with("the ranks have come apart: after step 3, the state of the run"),
            "{error}"
        );
    }
}

#[test]
fn p28_a_rank_whose_part_does_not_count_changes_nothing() {
    // The first half of every batch has no weight, and no loss either.
    struct Half(Net);
    impl TrainModel for Half {
        fn points(&self) -> &Arc<PointTable> {
            &self.0.points
        }
        fn params(&self) -> &Params {
            &self.0.params
        }
        fn forward(&self, batch: &Batch, pass: &Pass) -> Result<Tensor> {
            self.0.forward(batch, pass)
        }
        fn loss(&self, output: &Tensor, batch: &Batch) -> Result<Tensor> {
            match self.loss_weight(batch)? {
                0.0 => candle_core::bail!("nothing counts"),
                _ => self.0.loss(output, batch),
            }
        }
        fn loss_weight(&self, batch: &Batch) -> Result<f64> {
            Ok(batch.examples().iter().filter(|example| **example >= 4).count() as f64)
        }
    }
    let steps = in_threads(2, |world| {
        let net = Arc::new(Half(Net::new()));
        let loader = Loader::new("train", data(8, None), 8);
        let mixture = Mixture::new(vec![loader], Strategy::Sequential, 1).unwrap();
        let optimizers =
            Optimizer::build(&[OptimizerConfig::new(Kind::AdamW, 0.02)], net.params(), false).unwrap();
        let trainer = Trainer::new(net.clone(), mixture, optimizers, Settings::steps(5)).unwrap();
        trainer.with_world(world).train().map(|finished| finished.steps).map_err(|error| error.to_string())
    });
    assert_eq!(steps, [Ok(5), Ok(5)]);
}

#[test]
fn p28_a_hook_that_fails_on_one_rank_ends_all() {
    let all = Case::new(37, 8, 50).run(3, |trainer| {
        let options = HookOptions { on_error: OnError::Abort, ..HookOptions::default() };
        trainer.add_hook_with(on_rank(1, 5, |_| Err("no more".into())), options).unwrap();
    });
    let host = tenterhook_record::run::host();
    for (rank, one) in all.into_iter().enumerate() {
        let error = one.ended.unwrap_err();
        assert!(error.contains("no more"), "{error}");
        assert_eq!(error.starts_with(&format!("rank 1 on {host} failed")), rank != 1, "{error}");
    }
}

#[test]
fn p28_a_failing_hook_of_one_rank_is_known_to_all_where_the_run_goes_on() {
    let all = Case::new(37, 8, 20).run(2, |trainer| {
        trainer.add_hook(on_rank(1, 5, |_| Err("a pity".into()))).unwrap();
    });
    assert!(all.into_iter().all(|one| one.ended.unwrap().degraded));
}

#[test]
fn p28_nan_on_one_rank_is_the_trouble_of_all() {
    let mut case = Case::new(16, 16, 6);
    case.spoil = Some(3);
    for one in case.run(4, |_| ()) {
        let error = one.ended.unwrap_err();
        assert!(error.contains("step 0: rank ") && error.contains("the loss is NaN"), "{error}");
        assert_eq!(one.weights, case.run(1, |_| ())[0].weights, "as before the step");
    }
    case.settings.on_non_finite = OnNonFinite::Skip;
    case.batch = 5; // three steps of four are good
    let all = case.run(4, |_| ());
    let alone = case.run(1, |_| ()).remove(0);
    assert!(all.iter().all(|one| one.ended.is_ok() && one.weights == all[0].weights));
    assert_eq!(all[0].all("skipped_steps"), alone.all("skipped_steps"));
    assert!(!alone.all("skipped_steps").is_empty());
}

#[test]
fn p28_a_gradient_that_is_not_finite_is_named_with_its_rank() {
    struct Spoil;
    impl Hook for Spoil {
        fn kind(&self) -> &str {
            "spoil"
        }
        fn wants(&self) -> Vec<Want> {
            vec![Want::edit_gradient("hidden")]
        }
        fn edit(&mut self, _at: &At, x: &Tensor, cx: &mut Cx) -> HookResult<Option<Tensor>> {
            let infinite = || (x * 1e38)? * 1e38;
            Ok((cx.clock().step == 4).then(infinite).transpose()?)
        }
    }
    let case = Case::new(37, 8, 50);
    let all = in_threads(2, |world| {
        let rank = world.rank();
        let (mut trainer, _) = case.trainer(world);
        if rank == 1 {
            let options = HookOptions { allow_non_finite: true, ..HookOptions::default() };
            trainer.add_hook_with(Spoil, options).unwrap();
        }
        trainer.train().map(|_| ()).unwrap_err().to_string()
    });
    assert!(
        all.iter().all(|error| error.contains("step 4: rank 1 on ") && error.contains("gradient of `w`")),
        "{all:?}"
    );
}

#[test]
fn p28_a_validation_that_one_rank_asks_for_is_done_by_all() {
    let mut case = Case::new(37, 8, 30);
    case.settings.validate_every = None;
    let all = case.run(3, |trainer| {
        trainer
            .add_hook(on_rank(1, 4, |cx| {
                cx.request(Request::Validate);
                Ok(())
            }))
            .unwrap();
    });
    assert!(all.iter().all(|one| one.all("val/loss").len() == 2 && one.rows == all[0].rows));
}

#[test]
fn p28_whoever_interrupts_one_rank_interrupts_all() {
    let all = Case::new(37, 8, 1000).run(3, |trainer| {
        let interrupt = trainer.interrupt();
        trainer
            .add_hook(on_rank(1, 9, move |_| {
                interrupt.raise();
                Ok(())
            }))
            .unwrap();
    });
    assert!(all.iter().all(|one| one.step == all[0].step));
    assert!(all.into_iter().all(|one| one.ended.unwrap().status == RunStatus::Interrupted));
}

#[test]
fn p25_a_rank_that_goes_its_own_way_ends_the_run() {
    let all = Case::new(37, 8, 50).run(2, |trainer| {
        trainer
            .add_hook(on_rank(1, 3, |cx| {
                cx.scale_lr(0.5);
                Ok(())
            }))
            .unwrap();
    });
    for one in all {
        let error = one.ended.unwrap_err();
        assert!(
            error.starts_with("the ranks have come apart: after step 4, the state of the run of rank 1"),
            "{error}"
        );
    }
    // Weights that differ are found at the next comparison, after step 7.
    let all = Case::new(37, 8, 50).run(2, |trainer| {
        let param = trainer.model.params().get("w").unwrap().clone();
        let change = move |_: &mut Cx| Ok(param.var().set(&(param.value() * 1.0001)?)?);
        trainer.add_hook(on_rank(1, 3, change)).unwrap();
    });
    for one in all {
        let error = one.ended.unwrap_err();
        assert!(
            error.starts_with("the ranks have come apart: after step 7, the weights of rank 1"),
            "{error}"
        );
    }
}

struct Double;

impl Hook for Double {
    fn kind(&self) -> &str {
        "double"
    }
    fn update(&mut self, grads: &mut NamedGrads, _cx: &mut Cx) -> HookResult {
        let all: Vec<_> = grads.iter().map(|(name, grad)| (name.to_string(), grad.clone())).collect();
        all.into_iter().try_for_each(|(name, grad)| grads.set(&name, (grad * 2.0)?))
    }
}

#[test]
fn update_hooks_get_the_sums_or_the_local_gradients() {
    for update_hooks in [UpdateHooks::Summed, UpdateHooks::Local] {
        let mut case = Case::new(32, 8, 20);
        case.settings.ranks.update_hooks = update_hooks;
        case.settings.clip = Clip::None;
        // Twice the sum, or the sum of twice the parts.
        let double = |trainer: &mut Trainer| {
            trainer.add_hook(Double).unwrap();
        };
        let (alone, all) = (case.run(1, double).remove(0), case.run(2, double));
        assert!(
            all.iter().all(|one| near(&one.all("loss"), &alone.all("loss")) && one.weights == all[0].weights)
        );
    }
}

#[test]
fn hooks_of_which_there_is_one_are_off_on_other_ranks() {
    let on = in_threads(2, |world| {
        let (mut trainer, _) = Case::new(8, 8, 1).trainer(world);
        trainer.add_console_logging(1).unwrap();
        let on = |kind: &str| trainer.list_hooks().iter().any(|hook| hook.kind == kind && hook.enabled);
        (on("console_log"), on("grad_coverage"))
    });
    assert_eq!(on, [(true, true), (false, true)]);
}
