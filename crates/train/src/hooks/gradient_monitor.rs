//! Numbers about gradients.

use std::collections::BTreeSet;

use candle_core::{DType, Tensor};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{AttachError, Cx, Histogram, Hook, HookResult, NamedGrads, glob_matches};

use crate::hooks::freeze::no_parameter;
use crate::hooks::none_of;
use crate::optim::sum_of_squares;

/// What a [`GradientMonitor`] measures.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GradientMonitorOptions {
    /// Measures at every n-th step.
    pub log_frequency: u64,
    /// Logs a histogram of every gradient, `grad/<parameter>`, for logs that can hold one.
    pub log_histogram: bool,
    /// Logs the norm of every gradient, `grad_norm/<parameter>`, and that of all of them, `grad_norm/total`.
    pub log_norm: bool,
    /// Only parameters whose name has one of these in it, or matches one of these globs; empty for all.
    pub param_filter: Vec<String>,
    /// Percentiles of every gradient's elements, from 0 to 100, logged as `grad_p50/<parameter>`.
    pub percentiles: Vec<f64>,
    /// A gradient whose norm is smaller is called vanishing.
    pub vanishing_below: f64,
    /// A gradient whose norm is larger, or no number, is called exploding.
    pub exploding_above: f64,
}

impl Default for GradientMonitorOptions {
    fn default() -> Self {
        Self {
            log_frequency: 100,
            log_histogram: false,
            log_norm: true,
            param_filter: Vec::new(),
            percentiles: Vec::new(),
            vanishing_below: 1e-7,
            exploding_above: 1e3,
        }
    }
}

/// Measures the gradients as the optimizer will get them, and says which are vanishing or exploding: once per parameter as a warning, and
/// their numbers as `<id>/vanishing` and `<id>/exploding`. It changes nothing.
pub struct GradientMonitor {
    options: GradientMonitorOptions,
    said: Said,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Said {
    vanishing: BTreeSet<String>,
    exploding: BTreeSet<String>,
}

/// Bins of a histogram.
const BINS: usize = 64;

impl GradientMonitor {
    /// The kind's name.
    pub const KIND: &'static str = "gradient_monitor";

    /// Options that make no sense are an error.
    pub fn new(options: GradientMonitorOptions) -> Result<Self, AttachError> {
        let mut problems = Vec::new();
        if options.log_frequency == 0 {
            problems.push("`log_frequency` is 0, it must be at least 1".to_string());
        }
        let wrong = options.percentiles.iter().filter(|percent| !(0.0..=100.0).contains(*percent));
        problems.extend(wrong.map(|percent| format!("percentile {percent} is not between 0 and 100")));
        // Written so that NaN is wrong too.
        if !(options.vanishing_below >= 0.0 && options.vanishing_below < options.exploding_above) {
            problems.push(format!(
                "`vanishing_below` is {} and `exploding_above` is {}: the first must be the smaller, and not negative",
                options.vanishing_below, options.exploding_above
            ));
        }
        none_of(problems, Self::KIND)?;
        Ok(Self { options, said: Said::default() })
    }

    fn is_watched(&self, name: &str) -> bool {
        let filters = &self.options.param_filter;
        filters.is_empty() || filters.iter().any(|filter| fits(filter, name))
    }

    fn measure(&mut self, name: &str, grad: &Tensor, cx: &mut Cx) -> HookResult {
        let GradientMonitorOptions { percentiles, log_histogram, .. } = &self.options;
        if percentiles.is_empty() && !log_histogram {
            return Ok(());
        }
        let mut sorted: Vec<f64> = read(grad)?.into_iter().filter(|x| x.is_finite()).collect();
        sorted.par_sort_unstable_by(f64::total_cmp);
        if sorted.is_empty() {
            return Ok(());
        }
        for percent in percentiles {
            cx.log(format!("grad_p{percent}/{name}"), percentile(&sorted, *percent));
        }
        if *log_histogram {
            cx.log_histogram(format!("grad/{name}"), histogram(&sorted));
        }
        Ok(())
    }
}

fn fits(filter: &str, name: &str) -> bool {
    name.contains(filter) || glob_matches(filter, name)
}

/// Interpolated between neighbours, as numpy does by default.
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let position = percent / 100.0 * (sorted.len() - 1) as f64;
    let below = sorted[position.floor() as usize];
    let above = sorted[position.ceil() as usize];
    below + (above - below) * position.fract()
}

fn histogram(sorted: &[f64]) -> Histogram {
    let (first, last) = (sorted[0], sorted[sorted.len() - 1]);
    // Equal values would make bins of no width.
    let (low, high) = if first < last { (first, last) } else { (first - 0.5, last + 0.5) };
    let mut counts = vec![0; BINS];
    let scale = BINS as f64 / (high - low);
    sorted.iter().for_each(|x| counts[(((x - low) * scale) as usize).min(BINS - 1)] += 1);
    Histogram { low, high, counts }
}

impl Hook for GradientMonitor {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
        let params = cx.state().map(|state| state.params.clone()).unwrap_or_default();
        let names = || params.iter().map(|param| param.name.as_str());
        let filters = self.options.param_filter.iter();
        let idle = filters.filter(|filter| !names().any(|name| fits(filter, name)));
        let problems: Vec<String> = idle.map(|filter| no_parameter(filter, names())).collect();
        if !problems.is_empty() {
            cx.abort(problems.join("; "));
        }
        Ok(())
    }

    // Built-in hooks come last: these are the gradients that all others have left.
    fn update(&mut self, grads: &mut NamedGrads, cx: &mut Cx) -> HookResult {
        if !cx.clock().step.is_multiple_of(self.options.log_frequency) {
            return Ok(());
        }
        let (mut total, mut vanishing, mut exploding) = (0.0, 0u64, 0u64);
        for (name, grad) in grads.iter() {
            if !self.is_watched(name) {
                continue;
            }
            let squares = sum_of_squares(name, grad)?;
            total += squares;
            let norm = squares.sqrt();
            if self.options.log_norm {
                cx.log(format!("grad_norm/{name}"), norm);
            }
            if norm < self.options.vanishing_below {
                vanishing += 1;
                if self.said.vanishing.insert(name.to_string()) {
                    let limit = self.options.vanishing_below;
                    tracing::warn!(
                        hook = cx.hook_id(),
                        "vanishing gradient: `{name}` has norm {norm:e} < {limit:e}"
                    );
                }
            } else if norm.is_nan() || norm > self.options.exploding_above {
                exploding += 1;
                if self.said.exploding.insert(name.to_string()) {
                    let limit = self.options.exploding_above;
                    tracing::warn!(
                        hook = cx.hook_id(),
                        "exploding gradient: `{name}` has norm {norm:e} > {limit:e}"
                    );
                }
            }
            self.measure(name, grad, cx)?;
        }
        if self.options.log_norm {
            cx.log("grad_norm/total", total.sqrt());
        }
        cx.log(format!("{}/vanishing", cx.hook_id()), vanishing as f64);
        cx.log(format!("{}/exploding", cx.hook_id()), exploding as f64);
        Ok(())
    }

    fn save_state(&self) -> HookResult<Option<serde_json::Value>> {
        Ok(Some(serde_json::to_value(&self.said)?))
    }

    fn load_state(&mut self, state: serde_json::Value) -> HookResult {
        self.said = serde_json::from_value(state)?;
        Ok(())
    }
}

fn read(x: &Tensor) -> HookResult<Vec<f64>> {
    Ok(x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::test_support::{acts, assert_resumes, options};
    use candle_core::Device;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tenterhook_hooks::{Event, HookOptions, MockTrainer};

    fn hook(json: Value) -> GradientMonitor {
        GradientMonitor::new(options(json)).unwrap()
    }

    fn grads(of: &[(&str, &[f32])]) -> NamedGrads {
        let grad = |x: &[f32]| Tensor::new(x, &Device::Cpu).unwrap();
        of.iter().map(|(name, x)| (name.to_string(), grad(x))).collect()
    }

    fn after_a_step(json: Value, of: &[(&str, &[f32])]) -> MockTrainer {
        let mut trainer = MockTrainer::new();
        trainer.attach_with(hook(json), HookOptions::id("g")).unwrap();
        trainer.step_with(1.0, &grads(of)).unwrap();
        trainer
    }

    #[test]
    fn norms_percentiles_and_histograms() {
        let of: [(&str, &[f32]); 2] = [("a.weight", &[3.0, -4.0, 0.0]), ("b.bias", &[12.0])];
        let all = json!({"percentiles": [50, 75], "log_histogram": true});
        let trainer = after_a_step(all, &of);
        for (name, want) in [
            ("grad_norm/a.weight", 5.0),
            ("grad_norm/b.bias", 12.0),
            ("grad_norm/total", 13.0),
            ("grad_p50/a.weight", 0.0),
            ("grad_p75/a.weight", 1.5),
            ("grad_p50/b.bias", 12.0),
            ("g/vanishing", 0.0),
            ("g/exploding", 0.0),
        ] {
            assert_eq!(trainer.metric(name), Some(want), "{name}");
        }
        let histogram = &trainer.rows()[0].histograms["grad/a.weight"];
        assert_eq!((histogram.low, histogram.high, histogram.counts.len()), (-4.0, 3.0, 64));
        let filled: Vec<usize> = (0..64).filter(|bin| histogram.counts[*bin] == 1).collect();
        assert_eq!(filled, [0, 36, 63], "-4, then 4/7 of the way, then 3");
        assert_eq!(trainer.rows()[0].histograms["grad/b.bias"].counts.iter().sum::<u64>(), 1);
    }

    #[test]
    fn every_option_leaves_out_what_it_should() {
        let of: [(&str, &[f32]); 2] = [("a.weight", &[3.0, 4.0]), ("b.bias", &[12.0])];
        for (options, present, absent) in [
            (json!({}), "grad_norm/b.bias", "grad_p50/b.bias"),
            (json!({"log_norm": false}), "g/exploding", "grad_norm/total"),
            (json!({"param_filter": ["weight"]}), "grad_norm/a.weight", "grad_norm/b.bias"),
            (json!({"param_filter": ["b.*"]}), "grad_norm/b.bias", "grad_norm/a.weight"),
        ] {
            let trainer = after_a_step(options.clone(), &of);
            assert!(trainer.metric(present).is_some() && trainer.metric(absent).is_none(), "{options}");
            assert!(trainer.rows()[0].histograms.is_empty());
        }
        let filtered = after_a_step(json!({"param_filter": ["weight"]}), &of);
        assert_eq!(filtered.metric("grad_norm/total"), Some(5.0));
    }

    #[test]
    fn it_measures_at_every_nth_step() -> HookResult {
        for (options, want) in [(json!({"log_frequency": 2}), vec![0, 2, 4]), (json!({}), vec![0])] {
            let mut trainer = MockTrainer::new();
            trainer.attach(hook(options))?;
            (0..5).try_for_each(|_| trainer.step_with(1.0, &grads(&[("w", &[1.0])])))?;
            let measured = |i: &usize| trainer.rows()[*i].values.contains_key("grad_norm/w");
            assert_eq!((0..5).filter(measured).collect::<Vec<_>>(), want);
        }
        Ok(())
    }

    #[test]
    fn vanishing_and_exploding_parameters_are_named_once() -> HookResult {
        const NAN: f32 = f32::NAN;
        let of: [(&str, &[f32]); 5] =
            [("big", &[2e3]), ("dead", &[0.0]), ("nan", &[NAN]), ("small", &[1e-8]), ("well", &[1.0])];
        let mut trainer = after_a_step(json!({"log_frequency": 1}), &of);
        trainer.step_with(1.0, &grads(&of))?;
        assert_eq!((trainer.metric("g/vanishing"), trainer.metric("g/exploding")), (Some(2.0), Some(2.0)));
        assert!(trainer.metric("grad_norm/nan").is_some_and(f64::is_nan), "the raw value");
        let said = trainer.hooks().with_hook("g", |hook: &mut GradientMonitor| hook.said.clone())?;
        let names = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>();
        assert_eq!(
            (names(&said.vanishing), names(&said.exploding)),
            (vec!["dead".to_string(), "small".to_string()], vec!["big".to_string(), "nan".to_string()],)
        );

        let other = json!({"vanishing_below": 1.5, "exploding_above": 1e4});
        let trainer = after_a_step(other, &[("big", &[2e3]), ("well", &[1.0])]);
        assert_eq!((trainer.metric("g/vanishing"), trainer.metric("g/exploding")), (Some(1.0), Some(0.0)));
        Ok(())
    }

    #[test]
    fn sums_are_in_f64_and_in_fixed_chunks() -> HookResult {
        let values: Vec<f32> = (0..200_003).map(|i| ((i * 7919) % 1013) as f32 * 1e-3).collect();
        let want: f64 = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let grad = Tensor::new(values, &Device::Cpu)?;
        let in_threads = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| sum_of_squares("x", &grad)).unwrap()
        };
        assert_eq!(in_threads(1).to_bits(), in_threads(3).to_bits());
        assert!((in_threads(1).sqrt() - want).abs() < 1e-9 * want);
        Ok(())
    }

    #[test]
    fn a_filter_that_matches_nothing_ends_the_run() -> HookResult {
        let mut trainer = MockTrainer::new();
        trainer.attach(hook(json!({"param_filter": ["layer.wieght", "bias"]})))?;
        let ended = trainer.fire(Event::TrainStart).unwrap_err().to_string();
        assert!(ended.contains("no parameter matches `layer.wieght`; nearest: `layer.weight`"), "{ended}");
        Ok(())
    }

    #[test]
    fn senseless_options_are_all_named() {
        let wrong = json!({"log_frequency": 0, "percentiles": [-1, 50, 101], "vanishing_below": 1e9});
        let Some(AttachError::BadOptions { problems, .. }) = GradientMonitor::new(options(wrong)).err()
        else {
            panic!("accepted")
        };
        assert_eq!(problems.len(), 4);
    }

    proptest! {
        #[test]
        fn p05_what_it_says_survives_a_restart(acts in acts(), cut in 0..40usize) {
            let options = json!({"log_frequency": 2, "log_histogram": true, "percentiles": [10]});
            assert_resumes(|| Box::new(hook(options.clone())), &acts, cut);
        }
    }
}
