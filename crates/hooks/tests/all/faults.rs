//! A hook that fails does what its policy says, and nothing else happens.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::{DType, Tensor, Var};
use tenterhook_hooks::{
    Access, At, Cx, Hook, HookOptions, HookResult, Mock, OnError, Pass, Point, PointTable, Site, Want,
};

use crate::support::{Notes, bits, tensor, values};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Nothing,
    Err,
    Panic,
    WrongShape,
    WrongDtype,
    NonFinite,
    Slow,
    Reentrant,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Policy {
    Isolate,
    Quarantine,
    Abort,
}

/// Doubles what it gets, unless something is wrong with it.
struct Faulty {
    fault: Fault,
    want: Want,
    /// The current pass, for the hook that calls itself.
    pass: Arc<Mutex<Option<Pass>>>,
}

impl Faulty {
    fn misbehave(&self, at: &At, x: &Tensor, cx: &Cx) -> HookResult<Option<Tensor>> {
        Ok(Some(match self.fault {
            Fault::Nothing => (x * 2.0)?,
            Fault::Err => return Err("did not work".into()),
            Fault::Panic => panic!("fell over"),
            Fault::WrongShape => x.narrow(0, 0, 1)?,
            Fault::WrongDtype => x.to_dtype(DType::F64)?,
            Fault::NonFinite => (x * f64::INFINITY)?,
            Fault::Slow => {
                std::thread::sleep(Duration::from_millis(3));
                (x * 2.0)?
            }
            Fault::Reentrant => {
                let pass = self.pass.lock().unwrap().clone().unwrap();
                let here = cx.points().find(at.name()).unwrap();
                let leaf = Var::from_tensor(x)?;
                pass.tap(here, leaf.as_tensor().clone())?.sum_all()?.backward()?;
                (x * 2.0)?
            }
        }))
    }
}

impl Hook for Faulty {
    fn kind(&self) -> &str {
        "faulty"
    }
    fn wants(&self) -> Vec<Want> {
        vec![self.want.clone()]
    }
    fn observe(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult {
        self.misbehave(at, x, cx).map(drop)
    }
    fn edit(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult<Option<Tensor>> {
        self.misbehave(at, x, cx)
    }
}

/// The points of one layer.
fn one_layer() -> Arc<PointTable> {
    let mut points = PointTable::builder();
    let input = points.point(Point::new("layer.hook_in", "d")).unwrap();
    let output = points.point(Point::new("layer.hook_out", "d")).unwrap();
    points.layer("layer", input, output).unwrap();
    points.build()
}

/// A model of one layer, a faulty hook on it and an observer beside that.
struct Scene {
    mock: Mock,
    site: Site,
    pass: Arc<Mutex<Option<Pass>>>,
    witness: Notes,
}

const X: [f32; 3] = [1.0, -0.0, 3.5];

impl Scene {
    fn new(site: Site, access: Access, fault: Fault, options: HookOptions) -> Self {
        let mut mock = Mock::with_points(one_layer());
        let pass = Arc::new(Mutex::new(None));
        let want = Want { site, select: "layer".into(), access };
        mock.attach_with(Faulty { fault, want, pass: pass.clone() }, options).unwrap();
        let witness = Notes::default();
        for point in ["layer.hook_in", "layer.hook_out"] {
            mock.attach(witness.observer("saw it", point)).unwrap();
        }
        Self { mock, site, pass, witness }
    }

    /// One step: what comes out of the point, forward or backward.
    fn run(&mut self) -> candle_core::Result<Tensor> {
        self.mock.step();
        *self.pass.lock().unwrap() = Some(self.mock.pass().clone());
        match self.site {
            Site::Forward => self.mock.fire("layer", &tensor(&X)),
            Site::PreForward => self.mock.fire("layer.hook_in", &tensor(&X)),
            _ => self.mock.backward("layer", &tensor(&[7.0; 3]), &tensor(&X)),
        }
    }
}

/// One line of the table: two failing steps, a third one, and then the hook is well again.
fn check(site: Site, access: Access, fault: Fault, policy: Policy) {
    let case = format!("{site:?} {access:?} {fault:?} {policy:?}");
    let options = HookOptions {
        id: Some("bad".into()),
        on_error: if policy == Policy::Abort { OnError::Abort } else { OnError::Isolate },
        quarantine_after: if policy == Policy::Quarantine { 2 } else { 0 },
        slow_after_ms: 1,
        ..HookOptions::default()
    };
    let mut scene = Scene::new(site, access, fault, options);
    let original = match site {
        Site::Gradient => vec![1.0, 0.0, 3.5], // candle adds every gradient to a zero, so there is no -0
        _ => X.to_vec(),
    };
    let bits_of = |values: &[f32]| bits(&tensor(values));
    let doubled: Vec<f32> =
        if access == Access::Edit { original.iter().map(|x| x * 2.0).collect() } else { original.clone() };
    let fails = !matches!(fault, Fault::Slow | Fault::Reentrant);

    for step in 1..=3u64 {
        let outcome = scene.run();
        let report = scene.mock.report();
        let receipt = report.receipt("bad").unwrap().clone();
        let quarantined = policy == Policy::Quarantine && fails && step == 3;
        assert_eq!(
            scene.mock.hooks().is_enabled("bad").unwrap(),
            !(policy == Policy::Quarantine && fails && step >= 2),
            "{case}"
        );
        if policy == Policy::Abort && fault != Fault::Slow {
            let error = outcome.expect_err(&case);
            let fatal = scene.mock.pass().fatal().expect(&case);
            assert_eq!((fatal.hook_id.as_str(), fatal.hook_type.as_str()), ("bad", "faulty"), "{case}");
            assert_eq!(fatal.event, if access == Access::Edit { "edit" } else { "observe" }, "{case}");
            assert_eq!(
                fatal.point.as_deref(),
                Some(if site == Site::PreForward { "layer.hook_in" } else { "layer" })
            );
            assert!(error.to_string().contains("hook `bad` (faulty) failed in"), "{case}: {error}");
        } else {
            let outcome = outcome.expect(&case);
            match fails {
                true => assert_eq!(bits(&outcome), bits_of(&original), "{case}"),
                false => assert_eq!(values(&outcome), doubled, "{case}"),
            }
            assert!(scene.mock.pass().fatal().is_none(), "{case}");
        }
        match fault {
            Fault::Slow => assert_eq!((receipt.slow_calls, receipt.errors), (1, 0), "{case}"),
            // The call inside fails; with isolate the one outside does not even notice.
            Fault::Reentrant if policy != Policy::Abort => {
                assert_eq!((receipt.fired, receipt.errors), (2, 1), "{case}")
            }
            Fault::Reentrant => assert_eq!((receipt.fired, receipt.errors), (2, 2), "{case}"),
            _ if quarantined => assert_eq!((receipt.fired, receipt.errors), (0, 0), "{case}"),
            _ => assert_eq!((receipt.fired, receipt.errors, receipt.edits), (1, 1, 0), "{case}"),
        }
        assert_eq!(report.degraded(), receipt.errors > 0, "{case}");
        let told = report.errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        let expected = match fault {
            Fault::Err => "did not work",
            Fault::Panic => "panicked: fell over",
            Fault::WrongShape => "returned shape [1] where [3] was given",
            Fault::WrongDtype => "returned dtype F64 where F32 was given",
            Fault::NonFinite => "finite values into NaN or infinity",
            Fault::Reentrant => "called again while it is running",
            Fault::Slow | Fault::Nothing => "",
        };
        assert!(quarantined || told.contains(expected), "{case}: {told}");
        let witnessed = scene.witness.take();
        assert!(!witnessed.is_empty() || policy == Policy::Abort, "{case}: the hook beside it was disturbed");
    }

    // Nothing is stuck: the hook can be reached, healed, switched on, and works.
    let cured = scene.mock.hooks().with_hook("bad", |hook: &mut Faulty| hook.fault = Fault::Nothing);
    cured.expect(&case);
    scene.mock.hooks().enable_hook("bad").unwrap();
    assert_eq!(values(&scene.run().expect(&case)), doubled, "{case}");
}

fn check_all(site: Site) {
    use Fault::{Err, NonFinite, Panic, Reentrant, Slow, WrongDtype, WrongShape};
    for policy in [Policy::Isolate, Policy::Quarantine, Policy::Abort] {
        for fault in [Err, Panic, WrongShape, WrongDtype, NonFinite, Slow, Reentrant] {
            check(site, Access::Edit, fault, policy);
        }
        for fault in [Err, Panic, Slow, Reentrant] {
            check(site, Access::Observe, fault, policy);
        }
    }
}

#[test]
fn p19_faults_in_forward_follow_the_policy() {
    check_all(Site::Forward);
}

#[test]
fn p19_faults_in_pre_forward_follow_the_policy() {
    check_all(Site::PreForward);
}

#[test]
fn p19_faults_in_backward_follow_the_policy() {
    check_all(Site::Gradient);
}

#[test]
fn quarantine_counts_failures_in_a_row_also_within_a_pass() {
    let mut mock = Mock::new(["p"]).unwrap();
    let mut calls = 0;
    let flaky = tenterhook_hooks::hook_fn::observe("p", move |_, _, _| {
        calls += 1;
        if calls == 3 { Ok(()) } else { Err("no".into()) } // the third call works
    });
    let id = mock.attach_with(flaky, HookOptions { quarantine_after: 3, ..HookOptions::default() }).unwrap();
    for _ in 0..10 {
        mock.fire("p", &tensor(&X)).unwrap();
    }
    let report = mock.report();
    assert_eq!(report.receipt(&id).map(|r| (r.fired, r.errors)), Some((6, 5)));
    assert!(report.hooks[0].quarantined && !report.hooks[0].enabled);
}

#[test]
fn non_finite_edits_are_allowed_on_request_and_where_the_input_was_not_finite() {
    let mut mock = Mock::new(["p"]).unwrap();
    let break_it = || tenterhook_hooks::hook_fn::edit("p", |_, x, _| Ok(Some((x * f64::NAN)?)));
    let id = mock
        .attach_with(break_it(), HookOptions { allow_non_finite: true, ..HookOptions::id("allowed") })
        .unwrap();
    assert!(values(&mock.fire("p", &tensor(&[1.0])).unwrap())[0].is_nan());
    mock.hooks().remove_hook(&id).unwrap();
    mock.attach(break_it()).unwrap();
    mock.fire("p", &tensor(&[f32::INFINITY])).unwrap();
    assert!(!mock.report().degraded(), "what was not finite may stay so");
}

#[test]
fn a_hook_may_register_and_remove_hooks_while_it_runs() {
    let mut mock = Mock::new(["p"]).unwrap();
    let (hooks, notes) = (mock.hooks().clone(), Notes::default());
    let inner = notes.clone();
    mock.attach(tenterhook_hooks::hook_fn::observe("p", move |_, _, _| {
        let late = hooks.register(inner.observer("late", "p"))?;
        hooks.list_hooks();
        if late != "observe_fn-2" {
            hooks.remove_hook(&late)?;
        }
        Ok(())
    }))
    .unwrap();
    mock.fire("p", &tensor(&X)).unwrap();
    assert_eq!(notes.take(), [""; 0], "it takes part from the next pass on");
    mock.step();
    mock.fire("p", &tensor(&X)).unwrap();
    assert_eq!(notes.take(), ["late"]);
    assert_eq!(mock.hooks().list_hooks().len(), 2);
    mock.hooks().remove_all(); // the hook holds its manager
}
