//! Looking for trouble in what passes at points.

use std::fmt;
use std::sync::Arc;

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cx::Cx;
use crate::error::{AttachError, HookResult};
use crate::hook::{At, Hook, Site, Want};
use crate::manager::HookManager;
use crate::options::HookOptions;
use crate::selector::Selector;
use crate::states::Retention;
use crate::statistics::Hits;

/// What a [`Debug`](struct@Debug) hook looks for in a tensor.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// Not a number.
    Nan,
    /// Plus or minus infinity.
    Inf,
    /// Anything above this value.
    Above(f64),
    /// Anything below this value.
    Below(f64),
    /// Another shape than this one; -1 stands for any size.
    Shape(Vec<i64>),
    /// Whatever a closure looks for.
    #[serde(skip)]
    Custom(CustomCondition),
}

impl Condition {
    /// A condition of your own: the closure says what is wrong with the tensor, if anything.
    pub fn custom(
        name: impl Into<String>,
        test: impl Fn(&At, &Tensor) -> HookResult<Option<String>> + Send + Sync + 'static,
    ) -> Self {
        Self::Custom(CustomCondition { name: name.into(), test: Arc::new(test) })
    }

    /// What is wrong, and the first element for which it is.
    fn check(&self, at: &At, x: &Tensor) -> HookResult<Option<Trouble>> {
        let hits = match self {
            Condition::Nan => Hits::find(x, f64::is_nan)?,
            Condition::Inf => Hits::find(x, f64::is_infinite)?,
            Condition::Above(limit) => Hits::find(x, |value| value > *limit)?,
            Condition::Below(limit) => Hits::find(x, |value| value < *limit)?,
            Condition::Shape(want) => return Ok(wrong_shape(want, x.dims())),
            Condition::Custom(custom) => return Ok((custom.test)(at, x)?.map(Trouble::in_words)),
        };
        Ok(hits.first.map(|(element, value)| {
            let index = index_of(element, x.dims());
            let what = format!(
                "{self} in {} of {} elements, first {value} at {index:?}",
                hits.count,
                x.elem_count()
            );
            Trouble { what, count: hits.count, index: Some(index), value: Some(value) }
        }))
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Nan => f.write_str("NaN"),
            Condition::Inf => f.write_str("infinity"),
            Condition::Above(limit) => write!(f, "above {limit}"),
            Condition::Below(limit) => write!(f, "below {limit}"),
            Condition::Shape(want) => write!(f, "shape other than {want:?}"),
            Condition::Custom(custom) => f.write_str(&custom.name),
        }
    }
}

/// A closure as a [`Condition`]; made by [`Condition::custom`].
#[derive(Clone)]
pub struct CustomCondition {
    name: String,
    test: Arc<Test>,
}

type Test = dyn Fn(&At, &Tensor) -> HookResult<Option<String>> + Send + Sync;

struct Trouble {
    what: String,
    count: u64,
    index: Option<Vec<usize>>,
    value: Option<f64>,
}

impl Trouble {
    fn in_words(what: String) -> Self {
        Self { what, count: 1, index: None, value: None }
    }
}

fn wrong_shape(want: &[i64], dims: &[usize]) -> Option<Trouble> {
    let fits = |(want, size): (&i64, &usize)| *want == -1 || *want == *size as i64;
    let right = want.len() == dims.len() && want.iter().zip(dims).all(fits);
    (!right).then(|| Trouble::in_words(format!("shape {dims:?} where {want:?} was expected")))
}

/// The index of the n-th element in row-major order.
fn index_of(mut element: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (i, size) in index.iter_mut().zip(dims).rev() {
        *i = element % size;
        element /= size;
    }
    index
}

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
    /// The points or layers.
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
    /// How many findings are kept, the first ones; further ones are only counted.
    #[serde(default = "usual_findings")]
    pub max_findings: usize,
    /// How many tensors `dump` keeps, the first ones.
    #[serde(default = "usual_dumps")]
    pub max_dumps: usize,
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
    /// Logs NaN and infinity at these points.
    pub fn new(points: impl Into<Selector>) -> Self {
        Self {
            points: points.into(),
            conditions: usual_conditions(),
            actions: usual_actions(),
            gradients: false,
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
}

impl Debug {
    /// The kind's name.
    pub const KIND: &'static str = "debug";

    /// Options that look for nothing are an error.
    pub fn new(options: DebugOptions) -> Result<Self, AttachError> {
        if options.conditions.is_empty() {
            let problems = vec!["`conditions` is empty: nothing would be looked for".to_string()];
            return Err(AttachError::BadOptions { kind: Self::KIND.to_string(), problems });
        }
        Ok(Self { options, findings: Vec::new(), found: 0, dumped: 0 })
    }

    fn act(&mut self, at: &At, x: &Tensor, finding: &Finding, cx: &mut Cx) -> HookResult {
        for action in &self.options.actions {
            match action {
                Action::Log => tracing::warn!(hook = cx.hook_id(), "{finding}"),
                Action::Dump if self.dumped < self.options.max_dumps => {
                    cx.keep(at, x, Retention::All, None)?;
                    self.dumped += 1;
                }
                Action::Dump => {}
                Action::Call(callback) => callback(finding, x)?,
                Action::Stop => cx.abort(finding.to_string()),
            }
        }
        Ok(())
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
        for condition in self.options.conditions.clone() {
            let Some(trouble) = condition.check(at, x)? else { continue };
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
            self.act(at, x, &finding, cx)?;
        }
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
    use crate::mock::Mock;
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
