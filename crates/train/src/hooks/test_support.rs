//! Testing that hooks survive a restart.

use candle_core::{Device, Tensor};
use proptest::prelude::*;
use tenterhook_hooks::{
    Ended, Event, Hook, HookOptions, MetricsRow, MockTrainer, NamedGrads, ParamInfo, Request, SavedHook,
};

/// Something that happens in a made-up run.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// A step with this loss; parameters and gradients take values that depend on it and on the step.
    Step(f64),
    /// A validation with this `val/loss`.
    Validate(f64),
    /// The next epoch and its first step.
    NextEpoch,
}

/// Runs of any length, with losses from a handful of values: equal ones and hopeless ones are what hooks trip over.
pub(crate) fn acts() -> impl Strategy<Value = Vec<Act>> {
    let finite = prop::sample::select(vec![0.5, 0.75, 1.0, 1.0 + 1e-6, 2.0, 2000.0]);
    let values = prop_oneof![8 => finite, 1 => Just(f64::NAN), 1 => Just(f64::INFINITY)];
    let act = (values, 0..6u8).prop_map(|(value, which)| match which {
        0..3 => Act::Step(value),
        3..5 => Act::Validate(value),
        _ => Act::NextEpoch,
    });
    prop::collection::vec(act, 0..40)
}

/// Options as the registry reads them; absent ones have their defaults.
pub(crate) fn options<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> T {
    serde_json::from_value(json).unwrap()
}

/// Everything that can be seen of a hook from outside while something happens.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    requests: Vec<Request>,
    /// As text, in which NaN is NaN. Timings are left out.
    rows: Vec<String>,
    ended: Option<String>,
    errors: Vec<String>,
}

/// Runs `acts` once as they are, and once with a restart before the act number `cut` (beyond the end: before the last): whatever the hook
/// does afterwards must be the same, and so must its state in the end.
pub(crate) fn assert_resumes(make: impl Fn() -> Box<dyn Hook>, acts: &[Act], cut: usize) {
    let cut = cut.min(acts.len());
    let mut uncut = Run::new(make());
    uncut.begin();
    let (before, after) = acts.split_at(cut);
    before.iter().for_each(|act| drop(uncut.play(act)));

    let mut resumed = Run::new(make());
    resumed.trainer.state = uncut.trainer.state.clone();
    resumed.trainer.hooks().load_hook(uncut.saved()).unwrap();
    resumed.begin();

    for (i, act) in after.iter().enumerate() {
        let (want, got) = (uncut.play(act), resumed.play(act));
        assert_eq!(got, want, "act {} ({act:?}) after a restart at {cut}", cut + i);
    }
    let (want, got) = (uncut.saved(), resumed.saved());
    assert_eq!(got.state, want.state, "state after a restart at {cut}");
    let bits = |saved: &SavedHook| -> Vec<(String, Vec<u32>)> {
        let bits = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let bits = |x: &Tensor| bits(x).iter().map(|x| x.to_bits()).collect();
        saved.tensors.iter().map(|(name, x)| (name.clone(), bits(x))).collect()
    };
    assert_eq!(bits(&got), bits(&want), "tensors after a restart at {cut}");
}

struct Run {
    trainer: MockTrainer,
    /// Why the run should have ended: it goes on, to see more.
    ended: Option<String>,
}

impl Run {
    fn new(hook: Box<dyn Hook>) -> Self {
        let trainer = MockTrainer::new();
        trainer.hooks().register_boxed(hook, HookOptions::id("it")).unwrap();
        Self { trainer, ended: None }
    }

    fn begin(&mut self) {
        self.fire(Event::TrainStart);
    }

    /// The state as it comes back from a file.
    fn saved(&self) -> SavedHook {
        let mut saved = self.trainer.hooks().save_hook("it").unwrap();
        let text = saved.state.map(|state| serde_json::to_string(&state).unwrap());
        saved.state = text.map(|text| serde_json::from_str(&text).unwrap());
        saved
    }

    fn fire(&mut self, event: Event) {
        let result = self.trainer.fire(event);
        self.note(result);
    }

    fn note(&mut self, result: Result<(), Ended>) {
        let ended = result.err().map(|ended| ended.to_string()).or_else(|| self.trainer.stopped());
        self.ended = self.ended.take().or(ended);
    }

    fn step(&mut self, loss: f64) {
        let state = &mut self.trainer.state;
        let value = (loss + state.step as f64 / 7.0) as f32;
        let params = state.params.iter().map(|param| ParamInfo {
            name: param.name.clone(),
            value: Tensor::full(value, param.shape(), &Device::Cpu).unwrap(),
        });
        state.params = params.collect();
        let grads = state.params.iter().map(|param| (param.name.clone(), param.value.clone()));
        let grads: NamedGrads = grads.collect();
        let result = self.trainer.step_with(loss, &grads);
        self.note(result);
    }

    fn play(&mut self, act: &Act) -> Seen {
        let (requests, rows) = (self.trainer.requests().len(), self.trainer.rows().len());
        let errors = self.trainer.errors().len();
        match act {
            Act::Step(loss) => self.step(*loss),
            Act::Validate(loss) => {
                let result = self.trainer.validate(&[("val/loss", *loss)]);
                self.note(result);
            }
            Act::NextEpoch => {
                self.fire(Event::EpochEnd(self.trainer.state.current_epoch));
                self.trainer.state.current_epoch += 1;
                self.trainer.state.current_batch_idx = 0;
                self.fire(Event::EpochStart(self.trainer.state.current_epoch));
                self.step(1.0);
            }
        }
        let shown = |row: &MetricsRow| {
            let mut row = row.clone();
            row.values.retain(|name, _| !name.starts_with("time/"));
            format!("{row:?}")
        };
        Seen {
            requests: self.trainer.requests()[requests..].to_vec(),
            rows: self.trainer.rows()[rows..].iter().map(shown).collect(),
            ended: self.ended.clone(),
            errors: self.trainer.errors()[errors..].iter().map(ToString::to_string).collect(),
        }
    }
}
