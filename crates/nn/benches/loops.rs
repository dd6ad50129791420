//! What it costs to share a loop among threads, beside rayon: `cargo bench -p tenterhook-nn --bench loops`.
//!
//! A loop of as many tasks as there are threads, each of some microseconds, called from a thread of its own as a forward is, with a pause in which that
//! thread does something else.

#![allow(clippy::print_stdout)]

use rayon::prelude::*;
use std::time::{Duration, Instant};
use tenterhook_nn::parallel;

/// Keeps this thread busy.
fn busy(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// The median of what a loop takes beyond its tasks, in microseconds.
fn cost(task: Duration, pause: Duration, run: impl Fn()) -> f64 {
    const ROUNDS: usize = 2001;
    let round = || {
        busy(pause);
        let began = Instant::now();
        run();
        began.elapsed().saturating_sub(task).as_secs_f64() * 1e6
    };
    let mut times: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn main() {
    let threads = parallel::threads();
    println!("{threads} threads; microseconds that a loop takes beyond its tasks, one for every thread");
    println!("{:>10} {:>10} {:>10} {:>10}", "task", "pause", "ours", "rayon");
    for task in [10, 50, 200].map(Duration::from_micros) {
        for pause in [5, 50, 1000].map(Duration::from_micros) {
            let ours = cost(task, pause, || parallel::for_each(threads, |_| busy(task)));
            let rayon = cost(task, pause, || (0..threads).into_par_iter().for_each(|_| busy(task)));
            println!("{task:>10.0?} {pause:>10.0?} {ours:>10.1} {rayon:>10.1}");
        }
    }
}
