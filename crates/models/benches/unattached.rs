//! What points cost in a forward of GPT-2 small when nobody listens, and what a statistics hook per block costs:
//! `cargo bench -p tenterhook-models`.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use tenterhook_hooks::{HookOptions, Pass, PassSetup, PointId, hook_fn};
use tenterhook_models::Transformer;
use tenterhook_models::config::TransformerConfig;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn time(f: impl Fn()) -> Duration {
    let begin = Instant::now();
    f();
    begin.elapsed()
}

/// Nanoseconds of one tap that nobody listens to, beyond the loop around it.
fn tap_cost(pass: &Pass, point: PointId) -> f64 {
    const ROUNDS: u32 = 1_000_000;
    let run = |tap: bool| {
        let x = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
        let mut x = Some(x);
        time_loop(ROUNDS, || {
            let value = black_box(x.take()).unwrap();
            x = Some(if tap { black_box(pass).tap(black_box(point), value).unwrap() } else { value });
        })
    };
    let best = |tap| (0..15).map(|_| run(tap)).min().unwrap().as_secs_f64();
    (best(true) - best(false)) * 1e9 / f64::from(ROUNDS)
}

fn time_loop(rounds: u32, mut f: impl FnMut()) -> Duration {
    let begin = Instant::now();
    (0..rounds).for_each(|_| f());
    begin.elapsed()
}

fn main() {
    let config = TransformerConfig::gpt2(50257, 1024, 768, 12, 12);
    let model = Transformer::init(config, 1, DType::F32, &Device::Cpu).unwrap();
    let ids: Vec<u32> = (0..128).map(|i| i * 37 % 50257).collect();
    let ids = Tensor::from_vec(ids, (1, 128), &Device::Cpu).unwrap();
    let hooks = model.hook_manager();
    let off = HookOptions { enabled: false, ..HookOptions::default() };
    hooks.register_with(hook_fn::observe("*", |_, _, _| Ok(())), off).unwrap();
    let forward = |pass: &Pass| drop(black_box(model.forward(&ids, pass).unwrap()));
    (0..3).for_each(|_| forward(&Pass::default()));

    // Alternating, so that both see the same machine.
    let monitors = model.hook_manager();
    monitors.register_monitoring_hook("blocks.*.hook_resid_post", None, None).unwrap();
    let (mut silent, mut disabled, mut monitored) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..21 {
        silent.push(time(|| forward(&Pass::default())));
        disabled.push(time(|| forward(&hooks.pass(PassSetup::default()))));
        monitored.push(time(|| forward(&monitors.pass(PassSetup::default()))));
    }
    let (silent, disabled, monitored) = (median(silent), median(disabled), median(monitored));
    let taps = model.points().len();
    let cost = tap_cost(&hooks.pass(PassSetup::default()), model.points().find("hook_embed").unwrap());
    let share = cost * taps as f64 / (silent.as_secs_f64() * 1e9) * 100.0;
    println!("GPT-2 small, 1x128, forward without hooks     {:>10.2} ms", silent.as_secs_f64() * 1e3);
    println!("the same with one disabled hook everywhere    {:>10.2} ms", disabled.as_secs_f64() * 1e3);
    println!("the same with one statistics hook per block   {:>10.2} ms", monitored.as_secs_f64() * 1e3);
    println!("one tap that nobody listens to                {cost:>10.2} ns");
    println!(
        "all {taps} taps of a forward                     {:>10.2} us = {share:.4} % of the forward",
        cost * taps as f64 / 1e3
    );
}
