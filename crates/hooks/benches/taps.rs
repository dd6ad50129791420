//! What a tap costs, against the floor of the same loop without it. `cargo bench -p tenterhook-hooks`

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use candle_core::{Device, Tensor, Var};
use tenterhook_hooks::{HookManager, HookOptions, Pass, PassSetup, Point, PointId, PointTable, hook_fn};

const ROUNDS: usize = 31;

/// The median time of `work` in nanoseconds per call, over rounds of `calls`.
fn median(calls: usize, mut work: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            (0..calls).for_each(|_| work());
            begin.elapsed().as_nanos() as f64 / calls as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

struct Bench {
    hooks: HookManager,
    here: PointId,
    elsewhere: PointId,
}

impl Bench {
    fn new() -> Self {
        let mut points = PointTable::builder();
        let here = points.point(Point::new("here", "d")).unwrap();
        let elsewhere = points.point(Point::new("elsewhere", "d")).unwrap();
        Self { hooks: HookManager::new(points.build()), here, elsewhere }
    }

    fn observed(self) -> Self {
        self.hooks
            .register(hook_fn::observe("here", |_, x, _| {
                black_box(x);
                Ok(())
            }))
            .unwrap();
        self
    }

    fn pass(&self) -> Pass {
        self.hooks.pass(PassSetup::train(0))
    }
}

fn row(name: &str, nanoseconds: f64, floor: f64) {
    println!("{name:<44} {nanoseconds:>10.1} {:>10.1}", nanoseconds - floor);
}

fn main() {
    let x = Tensor::zeros(64, candle_core::DType::F32, &Device::Cpu).unwrap();
    // The tensor is moved through a slot, as a model moves its activations: the floor is that move.
    let moved = |mut step: Box<dyn FnMut(Tensor) -> Tensor>, calls: usize| {
        let mut slot = Some(x.clone());
        median(calls, move || {
            let x = slot.take().unwrap();
            slot = Some(black_box(step(black_box(x))));
        })
    };
    let tap = |bench: Bench, calls: usize| {
        let (pass, here) = (bench.pass(), bench.here);
        moved(Box::new(move |x| pass.tap(here, x).unwrap()), calls)
    };
    println!("one tap of 64 f32 values, median of {ROUNDS} rounds{:>4} {:>10}", "ns", "over floor");
    let floor = moved(Box::new(|x| x), 1_000_000);
    row("floor: the loop without a tap", floor, floor);

    let (silent, point) = (Pass::default(), Bench::new().here);
    row(
        "off: a pass without hooks",
        moved(Box::new(move |x| silent.tap(point, x).unwrap()), 1_000_000),
        floor,
    );
    let unarmed = Bench::new().observed();
    let (pass, elsewhere) = (unarmed.pass(), unarmed.elsewhere);
    row(
        "unarmed: hooks elsewhere",
        moved(Box::new(move |x| pass.tap(elsewhere, x).unwrap()), 1_000_000),
        floor,
    );

    let disabled = Bench::new();
    let off = HookOptions { enabled: false, ..HookOptions::default() };
    for _ in 0..100 {
        disabled.hooks.register_with(hook_fn::observe("here", |_, _, _| Ok(())), off.clone()).unwrap();
    }
    row("disabled: 100 hooks here, switched off", tap(disabled, 1_000_000), floor);
    row("observed", tap(Bench::new().observed(), 10_000), floor);
    let edited = Bench::new();
    edited.hooks.register(hook_fn::edit("here", |_, x, _| Ok(Some(x.clone())))).unwrap();
    row("edited: replaced by itself", tap(edited, 10_000), floor);
    let copied = Bench::new();
    copied.hooks.register(hook_fn::edit("here", |_, x, _| Ok(Some(x.copy()?)))).unwrap();
    row("edited: replaced by a copy, which is compared", tap(copied, 10_000), floor);

    let leaf = Var::from_tensor(&x).unwrap();
    let backward = |pass: &Pass, here: PointId| {
        let y = pass.tap(here, leaf.as_tensor().clone()).unwrap();
        black_box(y.sum_all().unwrap().backward().unwrap());
    };
    let (silent, here) = (Pass::default(), Bench::new().here);
    let floor = median(2_000, || backward(&silent, here));
    println!();
    row("floor: sum and backward without a tap", floor, floor);
    let gradient = Bench::new();
    gradient.hooks.register(hook_fn::observe_gradient("here", |_, _, _| Ok(()))).unwrap();
    let pass = gradient.pass();
    row("with gradient: observed in the backward", median(2_000, || backward(&pass, gradient.here)), floor);

    println!();
    row("making a pass without a manager", median(100_000, || drop(black_box(Pass::default()))), 0.0);
    let none = Bench::new();
    row("making a pass, no hooks", median(100_000, || drop(black_box(none.pass()))), 0.0);
    let one = Bench::new().observed();
    row("making a pass, one hook", median(100_000, || drop(black_box(one.pass()))), 0.0);
    statistics();
    disabled_against_none();
}

/// The usual metrics of an activation of GPT-2 small.
fn statistics() {
    let bench = Bench::new();
    bench.hooks.register_monitoring_hook("here", None, None).unwrap();
    let (pass, x) = (bench.pass(), Tensor::ones((256, 768), candle_core::DType::F32, &Device::Cpu).unwrap());
    let time = median(20, || drop(black_box(pass.tap(bench.here, x.clone()).unwrap())));
    println!(
        "\nmonitored: six metrics of 256 x 768 values in {:.0} us, {:.2} ns per value",
        time / 1e3,
        time / x.elem_count() as f64
    );
}

/// A step of a small model: matrix products between taps.
fn step(weights: &[Tensor], x: &Tensor, pass: &Pass, points: &[PointId]) {
    let mut y = x.clone();
    for (w, point) in weights.iter().zip(points) {
        y = pass.tap(*point, y.matmul(w).unwrap()).unwrap();
    }
    black_box(y);
}

/// P24: hooks that are registered and switched off cost at most 1% of a step.
fn disabled_against_none() {
    let layers = 12;
    let mut points = PointTable::builder();
    let ids: Vec<PointId> =
        (0..layers).map(|i| points.point(Point::new(format!("layers.{i}"), "pos d")).unwrap()).collect();
    let points = points.build();
    let weights: Vec<Tensor> = (0..layers)
        .map(|_| (Tensor::ones((128, 128), candle_core::DType::F32, &Device::Cpu).unwrap() / 128.0).unwrap())
        .collect();
    let x = Tensor::ones((64, 128), candle_core::DType::F32, &Device::Cpu).unwrap();
    let (none, off) = (HookManager::new(points.clone()), HookManager::new(points));
    for _ in 0..20 {
        let options = HookOptions { enabled: false, ..HookOptions::default() };
        off.register_with(hook_fn::observe("*", |_, _, _| Ok(())), options).unwrap();
    }
    // Both in turn, so that a machine that gets slower or faster meanwhile does so for both.
    let mut ratios: Vec<f64> = (0..301)
        .map(|_| {
            let time = |hooks: &HookManager| {
                let begin = Instant::now();
                (0..3).for_each(|_| step(&weights, &x, &hooks.pass(PassSetup::train(0)), &ids));
                begin.elapsed().as_secs_f64()
            };
            // And each first in every other round: the second one finds warm caches.
            let ((a, b), (c, d)) = ((time(&none), time(&off)), (time(&off), time(&none)));
            (b + c) / (a + d)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let percent = (ratios[ratios.len() / 2] - 1.0) * 100.0;
    let verdict = if percent <= 1.0 { "kept" } else { "BROKEN" };
    println!(
        "\nP24, a step with 20 disabled hooks on all {layers} layers against none: {percent:+.2}% (at most +1%: {verdict})"
    );
}
