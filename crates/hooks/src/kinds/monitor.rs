//! Numbers about what passes at points.

use std::collections::BTreeMap;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cx::Cx;
use crate::error::{AttachError, HookResult};
use crate::hook::{At, Hook, Want};
use crate::manager::HookManager;
use crate::options::HookOptions;
use crate::point::PointId;
use crate::selector::Selector;
use crate::statistics::{Moments, percentile, sorted_finite};
use crate::tensors::byte_size;

/// One thing that a [`Monitor`] measures. NaN and infinity are counted, and left out of every other number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The mean.
    Mean,
    /// The standard deviation of the population (divided by n).
    Std,
    /// The smallest element.
    Min,
    /// The largest element.
    Max,
    /// The Euclidean norm.
    Norm,
    /// The share of elements that are exactly zero.
    Zeros,
    /// These percentiles, from 0 to 100, interpolated between neighbours.
    Percentiles(Vec<f64>),
    /// The counts in so many bins of equal width between the smallest and the largest element.
    Histogram(usize),
    /// The time between a layer's input and its output, without this hook's own. Layers that share an input start together.
    Time,
    /// The bytes of the tensor.
    Bytes,
    /// The resident memory of the process, where the system tells (Linux).
    Memory,
}

/// What a [`Monitor`] watches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MonitorOptions {
    /// The points or layers.
    #[schemars(extend("examples" = ["blocks.*.hook_resid_post"]))]
    pub points: Selector,
    /// What is measured; by default mean, std, min, max, norm and zeros.
    #[serde(default = "usual_metrics")]
    pub metrics: Vec<Metric>,
}

fn usual_metrics() -> Vec<Metric> {
    vec![Metric::Mean, Metric::Std, Metric::Min, Metric::Max, Metric::Norm, Metric::Zeros]
}

/// The last numbers of one point, as far as they were asked for. All but `non_finite` and `bytes` are about the finite elements.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LayerStats {
    /// How many tensors were seen.
    pub count: u64,
    /// Elements of the last one.
    pub elements: u64,
    /// How many of them are NaN or infinite, and left out of the rest.
    pub non_finite: u64,
    /// The mean.
    pub mean: Option<f64>,
    /// The standard deviation of the population.
    pub std: Option<f64>,
    /// The smallest element.
    pub min: Option<f64>,
    /// The largest element.
    pub max: Option<f64>,
    /// The Euclidean norm.
    pub norm: Option<f64>,
    /// The share of zeros.
    pub zeros: Option<f64>,
    /// By name: `p50` is the median.
    pub percentiles: BTreeMap<String, f64>,
    /// The histogram.
    pub histogram: Option<Histogram>,
    /// Seconds between the layer's input and its output.
    pub seconds: Option<f64>,
    /// Bytes of the tensor.
    pub bytes: Option<u64>,
    /// Resident bytes of the process.
    pub memory: Option<u64>,
}

/// Counts in bins of equal width.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Histogram {
    /// Where the first bin begins.
    pub low: f64,
    /// Where the last bin ends.
    pub high: f64,
    /// Elements per bin.
    pub counts: Vec<u64>,
}

/// Measures what passes, and logs it as `<hook id>/<point>/<metric>`, a histogram as `<hook id>/<point>`, the time of a layer as
/// `time/<hook id>/<point>`.
pub struct Monitor {
    options: MonitorOptions,
    stats: BTreeMap<String, LayerStats>,
    stopwatch: Stopwatch,
}

impl Monitor {
    /// The kind's name.
    pub const KIND: &'static str = "monitor";

    /// Options that measure nothing, or nothing sensible, are an error.
    pub fn new(options: MonitorOptions) -> Result<Self, AttachError> {
        let mut problems = Vec::new();
        if options.metrics.is_empty() {
            problems.push("`metrics` is empty: nothing would be measured".to_string());
        }
        for metric in &options.metrics {
            match metric {
                Metric::Histogram(bins) if !(1..=1 << 16).contains(bins) => {
                    problems.push(format!("`histogram` has {bins} bins, it must have 1 to 65536"));
                }
                Metric::Percentiles(list) => problems.extend(
                    list.iter()
                        .filter(|percent| !(0.0..=100.0).contains(*percent))
                        .map(|percent| format!("percentile {percent} is not between 0 and 100")),
                ),
                _ => {}
            }
        }
        match problems.is_empty() {
            true => Ok(Self { options, stats: BTreeMap::new(), stopwatch: Stopwatch::default() }),
            false => Err(AttachError::BadOptions { kind: Self::KIND.to_string(), problems }),
        }
    }

    /// The last numbers of every point that was seen.
    pub fn stats(&self) -> &BTreeMap<String, LayerStats> {
        &self.stats
    }

    fn measure(&self, x: &Tensor) -> HookResult<LayerStats> {
        let moments = Moments::of(x)?;
        let mut stats = LayerStats {
            elements: moments.elements(),
            non_finite: moments.non_finite(),
            ..LayerStats::default()
        };
        // NaN where there is nothing to measure says nothing: `None` does.
        let known = |value: f64| (moments.finite > 0).then_some(value);
        let mut sorted = None;
        for metric in &self.options.metrics {
            match metric {
                Metric::Mean => stats.mean = known(moments.mean()),
                Metric::Std => stats.std = known(moments.std()),
                Metric::Min => stats.min = known(moments.min),
                Metric::Max => stats.max = known(moments.max),
                Metric::Norm => stats.norm = known(moments.norm()),
                Metric::Zeros => stats.zeros = known(moments.zeros as f64 / moments.finite as f64),
                Metric::Bytes => stats.bytes = Some(byte_size(x) as u64),
                Metric::Memory => stats.memory = resident_bytes(),
                Metric::Time => {}
                Metric::Percentiles(percents) => {
                    let sorted = sorted_values(&mut sorted, x)?;
                    let named = percents
                        .iter()
                        .filter_map(|p| Some((format!("p{p}"), known(percentile(sorted, *p))?)));
                    stats.percentiles.extend(named);
                }
                Metric::Histogram(bins) => {
                    stats.histogram = Some(Histogram::of_sorted(sorted_values(&mut sorted, x)?, *bins));
                }
            }
        }
        Ok(stats)
    }
}

fn sorted_values<'a>(sorted: &'a mut Option<Vec<f64>>, x: &Tensor) -> HookResult<&'a [f64]> {
    let values = match sorted.take() {
        Some(values) => values,
        None => sorted_finite(x)?,
    };
    Ok(sorted.insert(values))
}

impl LayerStats {
    /// Every number that is there, by name. Time is not: it is never the same twice, and stands among the timings.
    fn named(&self) -> impl Iterator<Item = (&str, f64)> {
        let counts = [("bytes", self.bytes), ("memory", self.memory)];
        let broken = (self.non_finite > 0).then_some(self.non_finite);
        let counts = counts.into_iter().chain([("non_finite", broken)]);
        let values = [
            ("mean", self.mean),
            ("std", self.std),
            ("min", self.min),
            ("max", self.max),
            ("norm", self.norm),
            ("zeros", self.zeros),
        ];
        let values =
            values.into_iter().chain(counts.map(|(name, count)| (name, count.map(|count| count as f64))));
        let percentiles = self.percentiles.iter().map(|(name, value)| (name.as_str(), *value));
        values.filter_map(|(name, value)| Some((name, value?))).chain(percentiles)
    }
}

impl Histogram {
    fn of_sorted(sorted: &[f64], bins: usize) -> Self {
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else { return Self::default() };
        // Equal values would make bins of no width.
        let (low, high) = if min < max { (min, max) } else { (min - 0.5, max + 0.5) };
        let mut counts = vec![0; bins];
        let mut from = 0;
        for (bin, count) in counts.iter_mut().enumerate() {
            let end = low + (high - low) * ((bin + 1) as f64 / bins as f64);
            let to = if bin + 1 == bins { sorted.len() } else { sorted.partition_point(|x| *x < end) };
            *count = (to - from) as u64;
            from = to;
        }
        Self { low, high, counts }
    }
}

impl Hook for Monitor {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn wants(&self) -> Vec<Want> {
        let points = &self.options.points;
        let mut wants = vec![Want::observe(points.clone())];
        if self.options.metrics.contains(&Metric::Time) {
            wants.push(Want::observe(points.clone()).before());
        }
        wants
    }

    fn observe(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult {
        if at.site().is_input() {
            self.stopwatch.start(at.id);
            return Ok(());
        }
        let begin = Instant::now();
        let seconds = self.stopwatch.elapsed(begin, at, cx);
        let count = self.stats.get(at.name()).map_or(0, |stats| stats.count) + 1;
        let stats = LayerStats { count, seconds, ..self.measure(x)? };
        for (metric, value) in stats.named() {
            cx.log(format!("{}/{}/{metric}", cx.hook_id(), at.name()), value);
        }
        if let Some(seconds) = seconds {
            cx.log(format!("time/{}/{}", cx.hook_id(), at.name()), seconds);
        }
        if let Some(histogram) = &stats.histogram {
            cx.log_histogram(format!("{}/{}", cx.hook_id(), at.name()), histogram.clone());
        }
        self.stats.insert(at.name().to_string(), stats);
        self.stopwatch.own += begin.elapsed();
        Ok(())
    }
}

/// When the inputs of layers passed.
#[derive(Default)]
struct Stopwatch {
    /// Time spent in the monitor itself, which belongs to no layer.
    own: Duration,
    started: BTreeMap<PointId, Start>,
}

struct Start {
    at: Instant,
    own: Duration,
    /// Passes may run on several threads: times of one never mix with those of another.
    thread: ThreadId,
}

impl Stopwatch {
    fn start(&mut self, input: PointId) {
        let start = Start { at: Instant::now(), own: self.own, thread: thread::current().id() };
        self.started.insert(input, start);
    }

    fn elapsed(&self, now: Instant, at: &At, cx: &Cx) -> Option<f64> {
        if self.started.is_empty() {
            return None;
        }
        let start = self.started.get(&self.input_of(at, cx)?)?;
        let elapsed = now.duration_since(start.at).saturating_sub(self.own.saturating_sub(start.own));
        (start.thread == thread::current().id()).then_some(elapsed.as_secs_f64())
    }

    fn input_of(&self, at: &At, cx: &Cx) -> Option<PointId> {
        let name = at.name();
        let points = cx.points();
        let by_name = points.layer(name).or_else(|| points.layer(name.strip_suffix(".hook_out")?));
        let layer = by_name.or_else(|| points.layers().iter().find(|layer| layer.output == at.id))?;
        Some(layer.input)
    }
}

impl HookManager {
    /// Measures what passes at the chosen points or layers, with the usual metrics unless others are given; read the numbers
    /// with [`monitoring`](HookManager::monitoring).
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// use tenterhook_hooks::{HookManager, Metric, PassSetup, Point, PointTable};
    ///
    /// let mut points = PointTable::builder();
    /// let stream = points.point(Point::new("blocks.0.hook_resid_post", "batch pos d_model"))?;
    /// let hooks = HookManager::new(points.build());
    ///
    /// let id = hooks.register_monitoring_hook("blocks.*", None, Some(vec![Metric::Mean, Metric::Max]))?;
    /// hooks.pass(PassSetup::default()).tap(stream, Tensor::new(&[1f32, 3.0], &Device::Cpu)?)?;
    /// assert_eq!(hooks.monitoring(&id)?["blocks.0.hook_resid_post"].mean, Some(2.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn register_monitoring_hook(
        &self,
        layer: impl Into<Selector>,
        id: Option<&str>,
        metrics: Option<Vec<Metric>>,
    ) -> Result<String, AttachError> {
        let options = MonitorOptions { points: layer.into(), metrics: metrics.unwrap_or_else(usual_metrics) };
        self.register_with(Monitor::new(options)?, HookOptions::builtin(id))
    }

    /// The last numbers of a monitoring hook, by the name of the point.
    pub fn monitoring(&self, id: &str) -> Result<BTreeMap<String, LayerStats>, AttachError> {
        self.with_hook(id, |monitor: &mut Monitor| monitor.stats.clone())
    }
}

/// The resident memory of this process. `/proc/self/statm` would be in pages, whose size differs between machines.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::Mock;
    use crate::point::{Point, PointTable};
    use candle_core::Device;

    fn layer() -> HookResult<Mock> {
        let mut points = PointTable::builder();
        let input = points.point(Point::new("mlp.hook_in", "..."))?;
        let output = points.point(Point::new("mlp.hook_out", "..."))?;
        points.layer("mlp", input, output)?;
        points.point(Point::new("scale", "..."))?;
        Ok(Mock::with_points(points.build()))
    }

    #[test]
    fn every_metric_is_measured_and_logged() -> HookResult {
        let mut mock = layer()?;
        let mut all = usual_metrics();
        all.extend([Metric::Percentiles(vec![50.0, 99.5]), Metric::Histogram(2)]);
        all.extend([Metric::Time, Metric::Bytes, Metric::Memory]);
        let id = mock.hooks().register_monitoring_hook("mlp", Some("watch"), Some(all))?;
        mock.step();
        let x = Tensor::new(&[0f32, 1.0, 2.0, f32::NAN, 5.0], &Device::Cpu)?;
        mock.fire("mlp.hook_in", &x)?;
        thread::sleep(Duration::from_millis(5));
        mock.fire("mlp", &x)?;

        let stats = &mock.hooks().monitoring(&id)?["mlp"];
        assert_eq!((stats.count, stats.elements, stats.non_finite, stats.bytes), (1, 5, 1, Some(20)));
        assert_eq!(
            (stats.mean, stats.min, stats.max, stats.zeros),
            (Some(2.0), Some(0.0), Some(5.0), Some(0.25))
        );
        assert!(stats.norm.is_some_and(|norm| (norm - 30f64.sqrt()).abs() < 1e-12));
        assert!(stats.std.is_some_and(|std| (std - 3.5f64.sqrt()).abs() < 1e-12));
        assert_eq!(stats.percentiles.get("p50"), Some(&1.5));
        assert_eq!(stats.histogram, Some(Histogram { low: 0.0, high: 5.0, counts: vec![3, 1] }));
        assert!(stats.seconds.is_some_and(|seconds| seconds > 0.004));
        assert_eq!(stats.memory.is_some(), cfg!(target_os = "linux"));
        assert_eq!(mock.metric("watch/mlp/mean"), Some(2.0));
        assert_eq!(mock.metric("watch/mlp/non_finite"), Some(1.0));
        assert!(mock.metric("watch/mlp/p99.5").is_some());

        mock.fire("mlp", &x)?;
        assert_eq!(mock.hooks().monitoring(&id)?["mlp"].count, 2);
        serde_json::to_string(&mock.hooks().monitoring(&id)?)?;
        Ok(())
    }

    #[test]
    fn nothing_finite_is_nothing_known() -> HookResult {
        let mut mock = layer()?;
        let id = mock.hooks().register_monitoring_hook("scale", None, None)?;
        mock.step();
        mock.fire("scale", &Tensor::new(&[f32::NAN], &Device::Cpu)?)?;
        let stats = &mock.hooks().monitoring(&id)?["scale"];
        assert_eq!((stats.mean, stats.min, stats.non_finite), (None, None, 1));
        Ok(())
    }

    #[test]
    fn a_histogram_counts_every_finite_element() {
        let sorted: Vec<f64> = (0..=100).map(f64::from).collect();
        let histogram = Histogram::of_sorted(&sorted, 10);
        assert_eq!(histogram.counts, [10, 10, 10, 10, 10, 10, 10, 10, 10, 11]);
        assert_eq!(Histogram::of_sorted(&[3.0; 4], 2), Histogram { low: 2.5, high: 3.5, counts: vec![0, 4] });
        assert_eq!(Histogram::of_sorted(&[], 2).counts.len(), 0);
    }

    #[test]
    fn senseless_options_are_all_named() -> HookResult {
        let mock = layer()?;
        let metrics = vec![Metric::Histogram(0), Metric::Percentiles(vec![-1.0, 50.0, 101.0])];
        let error = mock.hooks().register_monitoring_hook("mlp", None, Some(metrics)).err();
        let Some(AttachError::BadOptions { problems, .. }) = error else { return Err("accepted".into()) };
        assert_eq!(problems.len(), 3);
        let time_of_a_point = mock.hooks().register_monitoring_hook("scale", None, Some(vec![Metric::Time]));
        assert!(time_of_a_point.is_err_and(|error| error.to_string().contains("no layer matches `scale`")));
        Ok(())
    }
}
