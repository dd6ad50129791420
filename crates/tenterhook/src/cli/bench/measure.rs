//! Times, speeds and memory, and how they are told.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Map, Value, json};

use crate::cli::capture::positive;
use crate::cli::error::CliError;
use crate::cli::output;

/// How often the work is done.
#[derive(Args)]
pub(super) struct RepeatArgs {
    /// Rounds that are timed.
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = positive)]
    pub(super) repeat: usize,
    /// Rounds before them that are not.
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub(super) warmup: usize,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl RepeatArgs {
    /// Does the work as often as it was asked for, and times it.
    pub(super) fn time<E>(&self, mut work: impl FnMut() -> Result<(), E>) -> Result<Timing, E> {
        (0..self.warmup).try_for_each(|_| work())?;
        let timed = |_| {
            let start = Instant::now();
            work().map(|()| start.elapsed().as_secs_f64())
        };
        Ok(Timing((0..self.repeat).map(timed).collect::<Result<_, _>>()?))
    }

    /// The same for several kinds of work by turns, so that whatever else the machine does hits all of them; every other round goes
    /// backwards, so that none always comes after the same one. In a round each is done as often as takes about `at_least`.
    pub(super) fn by_turns(&self, works: &mut [Work], at_least: Duration) -> Result<Vec<Timing>, CliError> {
        /// In case a clock says that something took no time at all.
        const MOST: f64 = 1e5;
        let mut times = vec![1; works.len()];
        for (work, times) in works.iter_mut().zip(&mut times) {
            let mut once = Duration::MAX;
            for _ in 0..self.warmup {
                let start = Instant::now();
                work()?;
                once = once.min(start.elapsed());
            }
            *times = (at_least.as_secs_f64() / once.as_secs_f64()).ceil().clamp(1.0, MOST) as u32;
        }
        let mut seconds: Vec<Timing> = works.iter().map(|_| Timing(Vec::new())).collect();
        let mut order: Vec<usize> = (0..works.len()).collect();
        for _ in 0..self.repeat {
            for &i in &order {
                let start = Instant::now();
                (0..times[i]).try_for_each(|_| works[i]())?;
                seconds[i].0.push(start.elapsed().as_secs_f64() / f64::from(times[i]));
            }
            order.reverse();
        }
        Ok(seconds)
    }
}

/// Something to be done again and again.
pub(super) type Work<'a> = Box<dyn FnMut() -> Result<(), CliError> + 'a>;

/// The seconds that each round took.
pub(super) struct Timing(pub(super) Vec<f64>);

impl Timing {
    pub(super) fn median(&self) -> f64 {
        median(&self.0)
    }

    /// What share more a round took than the one of `other` beside it.
    pub(super) fn share_beyond(&self, other: &Self) -> f64 {
        median(&self.0.iter().zip(&other.0).map(|(mine, its)| mine / its - 1.0).collect::<Vec<_>>())
    }

    /// How many seconds more.
    pub(super) fn beyond(&self, other: &Self) -> f64 {
        median(&self.0.iter().zip(&other.0).map(|(mine, its)| mine - its).collect::<Vec<_>>())
    }

    pub(super) fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// The middle of some numbers, or the mean of the two in the middle; NaN of none.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        even if even % 2 == 0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

/// What a round came to.
pub(super) struct Measured {
    pub(super) timing: Timing,
    /// Tokens of a round.
    pub(super) tokens: f64,
    /// What the model's numbers need in a round, where that is known.
    pub(super) flops: Option<f64>,
    /// Megabytes that the process had at most.
    pub(super) peak_rss_mb: Option<f64>,
}

impl Measured {
    fn gflops(&self) -> Option<f64> {
        self.flops.map(|flops| flops / self.timing.median() / 1e9)
    }

    /// What every command tells, with what this one adds.
    pub(super) fn to_json(&self, more: Value) -> Value {
        let mut all = Map::new();
        if let Value::Object(more) = more {
            all.extend(more);
        }
        let times: Vec<f64> = self.timing.0.iter().map(|seconds| seconds * 1e3).collect();
        let told = json!({
            "median_ms": self.timing.median() * 1e3,
            "min_ms": self.timing.min() * 1e3,
            "tokens": self.tokens,
            "tokens_per_s": self.tokens / self.timing.median(),
            "flops": self.flops,
            "gflops": self.gflops(),
            "peak_rss_mb": self.peak_rss_mb,
            "threads": rayon::current_num_threads(),
            "times_ms": times,
        });
        if let Value::Object(told) = told {
            all.extend(told);
        }
        Value::Object(all)
    }

    /// The same for people.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
        let rounds = self.timing.0.len();
        let speed = self.gflops().map(|gflops| format!(", {gflops:.1} GFLOP/s")).unwrap_or_default();
        let threads = rayon::current_num_threads();
        let mut lines = vec![
            ("median", format!("{} of {rounds}", ms(self.timing.median()))),
            ("shortest", ms(self.timing.min())),
            (
                "speed",
                format!("{:.0} tokens/s{speed}, {threads} threads", self.tokens / self.timing.median()),
            ),
        ];
        lines.extend(self.peak_rss_mb.map(|megabytes| ("memory", format!("{megabytes:.0} MB at most"))));
        lines
    }
}

/// Prints lines with their names in front.
pub(super) fn tell(title: &str, lines: &[(&str, String)]) -> Result<(), CliError> {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<String> = lines.iter().map(|(name, text)| format!("{name:width$}  {text}")).collect();
    output::text(&format!("{title}\n{}", lines.join("\n")))
}

/// The most memory this process has had, in megabytes; `None` where the system does not say.
pub(super) fn peak_rss_mb() -> Option<f64> {
    let told = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = told.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: f64 = peak.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_found_in_any_order() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn what_goes_by_turns_is_compared_round_by_round() {
        let args = RepeatArgs { repeat: 2, warmup: 1, json: false };
        let order = std::cell::RefCell::new(String::new());
        let note = |letter: char| -> Work {
            let order = &order;
            Box::new(move || {
                order.borrow_mut().push(letter);
                Ok(())
            })
        };
        let lengths = args
            .by_turns(&mut [note('a'), note('b')], Duration::ZERO)
            .map(|times| times.iter().map(|timing| timing.0.len()).collect::<Vec<_>>());
        assert_eq!((lengths.ok(), order.borrow().as_str()), (Some(vec![2, 2]), "ababba"));
        let (slow, quick) = (Timing(vec![3.0, 2.2, 8.0]), Timing(vec![2.0, 2.0, 4.0]));
        assert!((slow.share_beyond(&quick) - 0.5).abs() < 1e-12);
        assert_eq!(slow.beyond(&quick), 1.0);
    }

    #[test]
    fn what_is_over_in_no_time_is_done_several_times_in_a_round() {
        // The quickest of several rounds decides, so that one that was held up does not.
        let (args, done) = (RepeatArgs { repeat: 3, warmup: 9, json: false }, std::cell::Cell::new(0));
        let work: Work = Box::new(|| {
            done.set(done.get() + 1);
            Ok(())
        });
        let times = args.by_turns(&mut [work], Duration::from_millis(1));
        assert_eq!(times.map(|times| times[0].0.len()).ok(), Some(3));
        assert!(done.get() > 9 + 3, "{}", done.get());
    }

    #[test]
    fn rounds_before_the_timed_ones_are_done_and_not_counted() {
        let (args, mut done) = (RepeatArgs { repeat: 3, warmup: 2, json: false }, 0);
        let timing = args.time(|| -> Result<(), CliError> {
            done += 1;
            Ok(())
        });
        assert_eq!((done, timing.map(|timing| timing.0.len()).ok()), (5, Some(3)));
    }
}
