//! Whatever is registered, removed, switched and scoped in whatever order: the set and the order are those of a simple model.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use tenterhook_hooks::{HookOptions, Mock, ScopedHook};

use crate::support::{Notes, tensor};

#[derive(Clone, Debug)]
enum Op {
    Register { builtin: bool, id: Option<u8> },
    Scope { builtin: bool },
    Leave { by_panic: bool },
    Replace(usize),
    Remove(usize),
    Enable(usize),
    Disable(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let one = prop_oneof![
        4 => (any::<bool>(), proptest::option::of(0u8..6)).prop_map(|(builtin, id)| Op::Register { builtin, id }),
        2 => any::<bool>().prop_map(|builtin| Op::Scope { builtin }),
        2 => any::<bool>().prop_map(|by_panic| Op::Leave { by_panic }),
        1 => (0usize..8).prop_map(Op::Replace),
        2 => (0usize..8).prop_map(Op::Remove),
        2 => (0usize..8).prop_map(Op::Enable),
        2 => (0usize..8).prop_map(Op::Disable),
    ];
    proptest::collection::vec(one, 1..60)
}

/// What the manager should hold.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    id: String,
    tag: String,
    builtin: bool,
    enabled: bool,
}

struct Pair {
    mock: Mock,
    model: Vec<Entry>,
    notes: Notes,
    made: usize,
    scopes: Vec<ScopedHook>,
}

impl Pair {
    fn tag(&mut self) -> String {
        self.made += 1;
        format!("hook {}", self.made)
    }

    fn add(&mut self, id: String, tag: String, builtin: bool) {
        // User hooks first; inside each half in order of registration.
        let at = self.model.iter().filter(|entry| builtin || !entry.builtin).count();
        self.model.insert(at, Entry { id, tag, builtin, enabled: true });
    }

    fn apply(&mut self, op: Op) {
        let pick = |model: &[Entry], i: usize| (!model.is_empty()).then(|| i % model.len());
        match op {
            Op::Register { builtin, id } => {
                let tag = self.tag();
                let id = id.map(|id| format!("given {id}"));
                let taken = id.as_ref().is_some_and(|id| self.model.iter().any(|entry| entry.id == *id));
                let options = HookOptions { id, builtin, ..HookOptions::default() };
                let result = self.mock.hooks().register_with(self.notes.observer(&tag, "p"), options);
                assert_eq!(result.is_err(), taken);
                if let Ok(id) = result {
                    self.add(id, tag, builtin);
                }
            }
            Op::Scope { builtin } => {
                let tag = self.tag();
                let options = HookOptions { builtin, ..HookOptions::default() };
                let scope = self.mock.hooks().scoped_with(self.notes.observer(&tag, "p"), options).unwrap();
                self.add(scope.id().to_string(), tag, builtin);
                self.scopes.push(scope);
            }
            Op::Leave { by_panic } => {
                let Some(scope) = self.scopes.pop() else { return };
                let id = scope.id().to_string();
                let left = catch_unwind(AssertUnwindSafe(|| {
                    let _scope = scope;
                    if by_panic {
                        std::panic::resume_unwind(Box::new(()));
                    }
                }));
                assert_eq!(left.is_err(), by_panic);
                self.model.retain(|entry| entry.id != id); // ids are never used twice, so this is its own
            }
            Op::Replace(i) => {
                let (Some(i), tag) = (pick(&self.model, i), self.tag()) else { return };
                self.mock.hooks().replace_hook(&self.model[i].id, self.notes.observer(&tag, "p")).unwrap();
                self.model[i].tag = tag;
            }
            Op::Remove(i) => {
                let Some(i) = pick(&self.model, i) else { return };
                self.mock.hooks().remove_hook(&self.model.remove(i).id).unwrap();
            }
            Op::Enable(i) | Op::Disable(i) => {
                let Some(i) = pick(&self.model, i) else { return };
                let (hooks, id) = (self.mock.hooks(), &self.model[i].id);
                let enable = matches!(op, Op::Enable(_));
                if enable {
                    hooks.enable_hook(id).unwrap()
                } else {
                    hooks.disable_hook(id).unwrap()
                }
                self.model[i].enabled = enable;
            }
        }
    }

    fn check(&mut self) {
        let held = self
            .mock
            .hooks()
            .list_hooks()
            .into_iter()
            .map(|hook| (hook.id, hook.enabled))
            .collect::<Vec<_>>();
        let model = self.model.iter().map(|entry| (entry.id.clone(), entry.enabled)).collect::<Vec<_>>();
        assert_eq!(held, model);
        self.mock.step();
        self.mock.fire("p", &tensor(&[1.0])).unwrap();
        let on = self.model.iter().filter(|entry| entry.enabled).map(|entry| entry.tag.clone());
        assert_eq!(self.notes.take(), on.collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn p18_random_sequences_keep_the_set_and_the_order(ops in ops()) {
        let mock = Mock::new(["p"]).unwrap();
        let mut pair = Pair { mock, model: Vec::new(), notes: Notes::default(), made: 0, scopes: Vec::new() };
        for op in ops {
            pair.apply(op);
            pair.check();
        }
    }
}
