//! Looking for trouble in what passes at points.

mod condition;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cx::Cx;
use crate::error::{AttachError, HookResult};
use crate::event::BatchInfo;
use crate::grads::NamedGrads;
use crate::hook::{At, Hook, Site, Want};
use crate::manager::HookManager;
use crate::options::HookOptions;
use crate::selector::Selector;
use crate::states::Retention;
use crate::statistics::Hits;

use condition::Trouble;
pub use condition::{Condition, CustomCondition};

/// What a [`Debug`](struct@Debug) hook does when a condition is met.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Logs it as a warning.
    Log,
    /// Keeps the tensor among the captured states of this hook.
    Dump,
    /// Ends the pass with the finding as the reason.
    Stop,
    /// Calls a closure.
    #[serde(skip)]
    Call(Arc<Callback>),
}

/// What [`Action::Call`] calls.
pub type Callback = dyn Fn(&Finding, &Tensor) -> HookResult + Send + Sync;

impl Action {
    /// Calls `callback` with the finding and the tensor.
    pub fn call(callback: impl Fn(&Finding, &Tensor) -> HookResult + Send + Sync + 'static) -> Self {
        Self::Call(Arc::new(callback))
    }
}

/// What a [`Debug`](struct@Debug) hook looks for, where, and what it does then.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DebugOptions {
    /// The points or layers; by default all of them.
    #[serde(default = "everywhere")]
    pub points: Selector,
    /// What it looks for: "nan", "inf", {"above": x}, {"below": x}, {"shape": [2, -1]}.
    #[serde(default = "usual_conditions")]
    pub conditions: Vec<Condition>,
    /// What it does then, in this order: "log", "dump", "stop". Whatever it does, the finding is kept.
    #[serde(default = "usual_actions")]
    pub actions: Vec<Action>,
    /// Looks at the gradients as well.
    #[serde(default)]
    pub gradients: bool,
    /// Ends the run where a loss, an activation or a parameter's gradient is NaN or infinite, and names the layer or the parameter and the
    /// batch; the tensor is kept.
    #[serde(default = "yes")]
    pub break_on_nan: bool,
    /// Logs the shapes of batches and of what passes at the points: when they are first seen, and when they change.
    #[serde(default)]
    pub log_shapes: bool,
    /// How many findings are kept, the first ones; further ones are only counted.
    #[serde(default = "usual_findings")]
    pub max_findings: usize,
    /// How many tensors `dump` keeps, the first ones.
    #[serde(default = "usual_dumps")]
    pub max_dumps: usize,
}

fn everywhere() -> Selector {
    "*".into()
}

fn yes() -> bool {
    true
}

fn usual_conditions() -> Vec<Condition> {
    vec![Condition::Nan, Condition::Inf]
}

fn usual_actions() -> Vec<Action> {
    vec![Action::Log]
}

fn usual_findings() -> usize {
    100
}

fn usual_dumps() -> usize {
    10
}

impl DebugOptions {
    /// Logs NaN and infinity at these points, and does not end the run.
    pub fn new(points: impl Into<Selector>) -> Self {
        Self {
            points: points.into(),
            conditions: usual_conditions(),
            actions: usual_actions(),
            gradients: false,
            break_on_nan: false,
            log_shapes: false,
            max_findings: usual_findings(),
            max_dumps: usual_dumps(),
        }
    }
}

/// A condition that was met.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The point.
    pub point: String,
    /// "forward", "gradient", ...
    pub site: &'static str,
    /// The step.
    pub step: u64,
    /// What was looked for.
    pub condition: String,
    /// What was found, in words, with the first element.
    pub what: String,
    /// How many elements.
    pub count: u64,
    /// Where the first of them is.
    pub index: Option<Vec<usize>>,
    /// The first of them.
    pub value: Option<f64>,
    /// The shape of the tensor.
    pub shape: Vec<usize>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gradient = if self.site == Site::Gradient.as_str() { "the gradient at " } else { "" };
        write!(f, "{gradient}`{}`, step {}: {}", self.point, self.step, self.what)
    }
}

/// Looks for trouble: see [`HookManager::register_debug_hook`].
pub struct Debug {
    options: DebugOptions,
    findings: Vec<Finding>,
    found: u64,
    dumped: usize,
    /// The batch on its way, in words.
    batch: Option<String>,
    /// The shapes that were logged, by name.
    shapes: BTreeMap<String, Vec<usize>>,
}

impl Debug {
    /// The kind's name.
    pub const KIND: &'static str = "debug";

    /// Options that look for nothing are an error.
    pub fn new(mut options: DebugOptions) -> Result<Self, AttachError> {
        if options.break_on_nan {
            let looks_for = |wanted: fn(&Condition) -> bool| options.conditions.iter().any(wanted);
            let (nan, inf) = (
                looks_for(|one| matches!(one, Condition::Nan)),
                looks_for(|one| matches!(one, Condition::Inf)),
            );
            options.conditions.extend((!nan).then_some(Condition::Nan));
            options.conditions.extend((!inf).then_some(Condition::Inf));
        }
        if options.conditions.is_empty() && !options.log_shapes {
            let problems = vec!["`conditions` is empty: nothing would be looked for".to_string()];
            return Err(AttachError::BadOptions { kind: Self::KIND.to_string(), problems });
        }
        let (findings, shapes) = (Vec::new(), BTreeMap::new());
        Ok(Self { options, findings, found: 0, dumped: 0, batch: None, shapes })
    }

    fn note(
        &mut self,
        at: &At,
        x: &Tensor,
        condition: &Condition,
        trouble: Trouble,
        cx: &mut Cx,
    ) -> HookResult {
        let finding = Finding {
            point: at.name().to_string(),
            site: at.site().as_str(),
            step: cx.clock().step,
            condition: condition.to_string(),
            what: trouble.what,
            count: trouble.count,
            index: trouble.index,
            value: trouble.value,
            shape: x.dims().to_vec(),
        };
        self.found += 1;
        cx.log(format!("{}/findings", cx.hook_id()), self.found as f64);
        if self.findings.len() < self.options.max_findings {
            self.findings.push(finding.clone());
        }
        for action in self.options.actions.clone() {
            match action {
                Action::Log => tracing::warn!(hook = cx.hook_id(), "{finding}"),
                Action::Dump => self.dump(at, x, cx)?,
                Action::Call(callback) => callback(&finding, x)?,
                Action::Stop => cx.abort(finding.to_string()),
            }
        }
        if self.options.break_on_nan && matches!(condition, Condition::Nan | Condition::Inf) {
            self.dump(at, x, cx)?;
            cx.abort(format!("{finding}{}", self.in_batch()));
        }
        Ok(())
    }

    fn dump(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult {
        if self.dumped < self.options.max_dumps {
            cx.keep(at, x, Retention::All, None)?;
            self.dumped += 1;
        }
        Ok(())
    }

    /// Where a run is, for the end of a sentence.
    fn in_batch(&self) -> String {
        self.batch.as_ref().map(|batch| format!(", in {batch}")).unwrap_or_default()
    }

    fn log_shape(&mut self, what: String, x: &Tensor, cx: &Cx) {
        if self.shapes.get(&what).is_none_or(|known| known != x.dims()) {
            tracing::info!(hook = cx.hook_id(), "{what}: {:?} {}", x.dims(), x.dtype().as_str());
            self.shapes.insert(what, x.dims().to_vec());
        }
    }
}

impl Hook for Debug {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn wants(&self) -> Vec<Want> {
        let points = &self.options.points;
        let mut wants = vec![Want::observe(points.clone())];
        if self.options.gradients {
            wants.push(Want::observe_gradient(points.clone()));
        }
        wants
    }

    fn observe(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult {
        if self.options.log_shapes && !at.site().is_gradient() {
            self.log_shape(format!("`{}`", at.name()), x, cx);
        }
        for condition in self.options.conditions.clone() {
            if let Some(trouble) = condition.check(at, x)? {
                self.note(at, x, &condition, trouble, cx)?;
            }
        }
        Ok(())
    }

    fn on_train_batch_start(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        self.batch = Some(batch.to_string());
        if self.options.log_shapes {
            for (name, tensor) in batch.batch.iter() {
                self.log_shape(format!("batch of `{}`, `{name}`", batch.dataloader_name), tensor, cx);
            }
        }
        Ok(())
    }

    fn on_before_backward(&mut self, loss: f64, cx: &mut Cx) -> HookResult {
        if self.options.break_on_nan && !loss.is_finite() {
            cx.abort(format!("the loss is {loss}, step {}{}", cx.clock().step, self.in_batch()));
        }
        Ok(())
    }

    fn on_after_backward(&mut self, grads: &NamedGrads, cx: &mut Cx) -> HookResult {
        if !self.options.break_on_nan {
            return Ok(());
        }
        for (name, grad) in grads.iter() {
            let hits = Hits::find(grad, |value| !value.is_finite())?;
            if let Some((element, value)) = hits.first {
                let (step, index) = (cx.clock().step, condition::index_of(element, grad.dims()));
                let (count, all) = (hits.count, grad.elem_count());
                cx.abort(format!(
                    "the gradient of `{name}`, step {step}: {count} of {all} elements are not finite, first {value} at {index:?}{}",
                    self.in_batch()
                ));
                return Ok(());
            }
        }
        Ok(())
    }

    fn save_state(&self) -> HookResult<Option<serde_json::Value>> {
        Ok(Some(serde_json::json!({ "found": self.found, "dumped": self.dumped })))
    }

    fn load_state(&mut self, mut state: serde_json::Value) -> HookResult {
        self.found = serde_json::from_value(state["found"].take())?;
        self.dumped = serde_json::from_value(state["dumped"].take())?;
        Ok(())
    }
}

impl HookManager {
    /// Logs and keeps what meets a condition at the chosen points, by default NaN and infinity; read it with
    /// [`findings`](HookManager::findings). For other actions register a [`Debug`](struct@Debug).
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// use tenterhook_hooks::{Condition, HookManager, PassSetup, Point, PointTable};
    ///
    /// let mut points = PointTable::builder();
    /// let stream = points.point(Point::new("blocks.0.hook_resid_post", "batch d_model"))?;
    /// let hooks = HookManager::new(points.build());
    ///
    /// let id = hooks.register_debug_hook("blocks.*", None, Some(vec![Condition::Above(100.0)]))?;
    /// hooks.pass(PassSetup::default()).tap(stream, Tensor::new(&[[1f32, 250.0]], &Device::Cpu)?)?;
    /// assert_eq!(hooks.findings(&id)?[0].index, Some(vec![0, 1]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn register_debug_hook(
        &self,
        layer: impl Into<Selector>,
        id: Option<&str>,
        conditions: Option<Vec<Condition>>,
    ) -> Result<String, AttachError> {
        let mut options = DebugOptions::new(layer);
        options.conditions = conditions.unwrap_or(options.conditions);
        self.register_with(Debug::new(options)?, HookOptions::builtin(id))
    }

    /// What a debug hook found, the first ones first.
    pub fn findings(&self, id: &str) -> Result<Vec<Finding>, AttachError> {
        self.with_hook(id, |debug: &mut Debug| debug.findings.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::clock::PassSetup;
    use crate::event::Event;
    use crate::life::Ended;
    use crate::mock::Mock;
    use crate::mock_trainer::MockTrainer;
    use crate::point::{Point, PointTable};
    use crate::receipt::Control;
    use candle_core::Device;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn tensor(values: &[f32]) -> candle_core::Result<Tensor> {
        Tensor::new(values, &Device::Cpu)?.reshape((1, values.len()))
    }

    /// What the hook says about the values, if anything.
    fn check(condition: Condition, values: &[f32]) -> HookResult<Option<String>> {
        let mut mock = Mock::new(["p"])?;
        let id =
            mock.attach(Debug::new(DebugOptions { conditions: vec![condition], ..DebugOptions::new("p") })?)?;
        mock.fire("p", &tensor(values)?)?;
        Ok(mock.hooks().findings(&id)?.first().map(ToString::to_string))
    }

    #[test]
    fn conditions_name_the_first_element() -> HookResult {
        let values = [1.0, f32::NAN, f32::INFINITY, -7.0, f32::NAN];
        let told = |condition| check(condition, &values);
        let nan = "`p`, step 0: NaN in 2 of 5 elements, first NaN at [0, 1]";
        assert_eq!(told(Condition::Nan)?.as_deref(), Some(nan));
        let below = "`p`, step 0: below -1 in 1 of 5 elements, first -7 at [0, 3]";
        assert_eq!(told(Condition::Below(-1.0))?.as_deref(), Some(below));
        assert!(told(Condition::Inf)?.is_some_and(|text| text.ends_with("first inf at [0, 2]")));
        assert!(told(Condition::Above(2.0))?.is_some_and(|text| text.ends_with("first inf at [0, 2]")));
        assert!(
            told(Condition::Shape(vec![1, 4]))?
                .is_some_and(|text| text.contains("shape [1, 5] where [1, 4]"))
        );
        assert_eq!(told(Condition::Shape(vec![-1, 5]))?, None);
        let odd = Condition::custom("odd length", |_, x| {
            Ok((x.elem_count() % 2 == 1).then(|| format!("{} elements", x.elem_count())))
        });
        assert!(told(odd)?.is_some_and(|text| text.ends_with("5 elements")));
        assert_eq!(check(Condition::Nan, &[1.0])?, None);
        Ok(())
    }

    #[test]
    fn actions_are_taken_and_lists_are_bounded() -> HookResult {
        let mut mock = Mock::new(["p"])?;
        let calls = Arc::new(AtomicU32::new(0));
        let counter = calls.clone();
        let call = Action::call(move |finding, x| {
            assert_eq!(finding.shape, x.dims());
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        let mut options = DebugOptions { max_findings: 2, max_dumps: 1, ..DebugOptions::new("p") };
        options.actions = vec![Action::Log, Action::Dump, call];
        let id = mock.attach(Debug::new(options)?)?;
        for _ in 0..3 {
            mock.fire("p", &tensor(&[f32::NAN])?)?;
        }
        assert_eq!(calls.load(Ordering::Relaxed), 3);
        assert_eq!(mock.hooks().findings(&id)?.len(), 2);
        assert_eq!(mock.hooks().get_captured_states(&id)?.len(), 1);
        assert_eq!(mock.metric("debug/findings"), Some(3.0));
        Ok(())
    }

    #[test]
    fn p05_findings_are_counted_on_after_a_restart() -> HookResult {
        let started = || -> HookResult<(Mock, String)> {
            let mut mock = Mock::new(["p"])?;
            let id = mock.attach(Debug::new(DebugOptions::new("p"))?)?;
            Ok((mock, id))
        };
        let values = [1.0, f32::NAN, 2.0, f32::INFINITY, f32::NAN];
        for cut in 0..=values.len() {
            let (uncut, id) = started()?;
            for value in &values[..cut] {
                uncut.fire("p", &tensor(&[*value])?)?;
            }
            let (resumed, _) = started()?;
            resumed.hooks().load_hook(uncut.hooks().save_hook(&id)?)?;
            for value in &values[cut..] {
                uncut.fire("p", &tensor(&[*value])?)?;
                resumed.fire("p", &tensor(&[*value])?)?;
                let found = resumed.metric("debug/findings");
                assert_eq!(found, uncut.metric("debug/findings").filter(|_| found.is_some()), "{cut}");
            }
            let found = |mock: &Mock| mock.hooks().with_hook(&id, |debug: &mut Debug| debug.found);
            assert_eq!((found(&resumed)?, found(&uncut)?), (3, 3), "{cut}");
        }
        Ok(())
    }

    #[test]
    fn break_on_nan_names_the_layer_the_parameter_and_the_batch() -> HookResult {
        let bad = |value: f32| Tensor::new(&[1.0, value], &Device::Cpu);
        let ended = |event: &dyn Fn(&mut MockTrainer) -> Result<(), Ended>, options: serde_json::Value| {
            let mut trainer = MockTrainer::new();
            trainer.attach(Debug::new(serde_json::from_value(options)?)?)?;
            let (batch, none) = (Batch::new(vec![5, 9]), Default::default());
            let info = BatchInfo {
                batch: &batch,
                batch_idx: 3,
                dataloader_idx: 0,
                dataloader_name: "train",
                metrics: &none,
                completes_step: true,
            };
            trainer.fire(Event::TrainBatchStart(&info))?;
            Ok::<_, crate::BoxError>(event(&mut trainer).err().map(|error| error.to_string()))
        };
        let loss = |trainer: &mut MockTrainer| trainer.fire(Event::BeforeBackward(f64::NAN));
        let told = ended(&loss, serde_json::json!({}))?.unwrap_or_default();
        assert!(told.contains("the loss is NaN, step 0, in batch 3 of `train` (examples 5, 9)"), "{told}");
        assert_eq!(ended(&loss, serde_json::json!({"break_on_nan": false}))?, None);
        let grads: NamedGrads = [("fc.weight".to_string(), bad(f32::INFINITY)?)].into_iter().collect();
        let told = ended(&|trainer| trainer.fire(Event::AfterBackward(&grads)), serde_json::json!({}))?;
        let told = told.unwrap_or_default();
        assert!(told.contains("the gradient of `fc.weight`") && told.contains("first inf at [1]"), "{told}");

        let mut mock = Mock::new(["p"])?;
        let id = mock.attach(Debug::new(serde_json::from_value(serde_json::json!({"actions": []}))?)?)?;
        let error = mock.fire("p", &bad(f32::NAN)?).err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| text.contains("`p`, step 0: NaN in 1 of 2 elements")));
        assert_eq!(mock.hooks().get_captured_states(&id)?.len(), 1, "the tensor is kept");
        Ok(())
    }

    #[test]
    fn shapes_are_logged_when_they_are_new_or_change() -> HookResult {
        let mut mock = Mock::new(["p"])?;
        let id =
            mock.attach(Debug::new(serde_json::from_value(serde_json::json!({"log_shapes": true}))?)?)?;
        for (length, known) in [(1, 1), (1, 1), (2, 1)] {
            mock.fire("p", &tensor(&vec![0.0; length])?)?;
            let shapes = mock.hooks().with_hook(&id, |debug: &mut Debug| debug.shapes.clone())?;
            assert_eq!((shapes.len(), shapes["`p`"].clone()), (known, vec![1, length]));
        }
        Ok(())
    }

    #[test]
    fn minus_infinity_is_no_trouble_where_scores_are_masked() -> HookResult {
        let mut points = PointTable::builder();
        let scores = points.point(Point::new("scores", "query key").masked())?;
        let hooks = HookManager::new(points.build());
        let id = hooks.register_debug_hook("*", None, None)?;
        let pass = hooks.pass(PassSetup::default());
        pass.tap(scores, tensor(&[1.0, f32::NEG_INFINITY])?)?;
        assert!(hooks.findings(&id)?.is_empty());
        pass.tap(scores, tensor(&[f32::INFINITY, f32::NEG_INFINITY])?)?;
        assert_eq!(hooks.findings(&id)?[0].count, 1);
        Ok(())
    }

    #[test]
    fn stop_ends_the_pass_and_says_where_and_why() -> HookResult {
        let mut mock = Mock::new(["p"])?;
        let options = DebugOptions { actions: vec![Action::Stop], gradients: true, ..DebugOptions::new("p") };
        mock.attach(Debug::new(options)?)?;
        mock.fire("p", &tensor(&[1.0])?)?;
        let error = mock.fire("p", &tensor(&[1.0, f32::INFINITY])?).err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| {
            text.contains("`p`, step 0: infinity in 1 of 2 elements, first inf at [0, 1]")
        }));
        assert!(matches!(mock.report().control, Some(Control::Abort { .. })));
        assert!(!mock.report().degraded(), "an asked-for end is no failure");
        mock.step();
        let error =
            mock.backward("p", &tensor(&[1.0])?, &tensor(&[f32::NAN])?).err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| text.contains("the gradient at `p`, step 1: NaN")));
        Ok(())
    }
}
