//! Telling hooks what happens in a run.

use std::sync::{Arc, Mutex, atomic::Ordering::Relaxed};

use crate::clock::{Clock, PassSetup};
use crate::cx::{Facts, Ledger};
use crate::error::{HookError, HookResult};
use crate::event::{Event, Metrics, Scope};
use crate::grads::NamedGrads;
use crate::guard::{self, Halt};
use crate::kinds::monitor::Histogram;
use crate::manager::Inner;
use crate::pass::Pass;
use crate::receipt::{Control, Receipt};
use crate::request::Request;
use crate::slot::Slot;
use crate::sync::lock;
use crate::train_state::TrainState;

/// The events of one step, and of what follows it until the next. Made by [`HookManager::events`](crate::HookManager::events).
///
/// What hooks publish, ask for and fail with is collected here; [`absorb`](Events::absorb) adds what they did at points.
pub struct Events {
    pub(crate) manager: Arc<Inner>,
    pub(crate) facts: Facts,
}

/// Why a run cannot go on: a hook with [`OnError::Abort`](crate::OnError::Abort) failed, or a hook asked for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Ended {
    /// A hook failed.
    #[error(transparent)]
    Failed(HookError),
    /// A hook asked to abort.
    #[error("hook `{hook_id}` asked to abort: {reason}")]
    Aborted {
        /// Who asked.
        hook_id: String,
        /// Why.
        reason: String,
    },
}

/// What hooks published since it was last taken.
#[derive(Clone, Debug, Default)]
pub struct Published {
    /// Numbers.
    pub metrics: Metrics,
    /// Histograms.
    pub histograms: std::collections::BTreeMap<String, Histogram>,
}

impl Events {
    pub(crate) fn new(manager: Arc<Inner>, facts: Facts) -> Self {
        Self { manager, facts }
    }

    /// Step, epoch and batch.
    pub fn clock(&self) -> Clock {
        self.facts.setup.clock
    }

    /// How passes of this step are set up.
    pub fn setup(&self) -> &PassSetup {
        &self.facts.setup
    }

    /// The same step at another batch or micro-batch.
    pub fn set_clock(&mut self, clock: Clock) {
        self.facts.setup.clock = clock;
    }

    /// Tells every hook that is on, in order. A failure is isolated, unless the hook says otherwise. Of the end of a run every hook
    /// hears, whatever another one makes of it.
    pub fn fire(&self, state: &TrainState, event: Event) -> Result<(), Ended> {
        let mut ended = Ok(());
        for slot in self.told(event.scope()) {
            let tell = |hook: &mut dyn crate::Hook, cx: &mut crate::Cx| event.tell(hook, cx);
            let done = guard::call(&slot, &self.facts, Some(state), None, event.name(), tell, |()| {
                Ok(Receipt { events: 1, ..Receipt::default() })
            });
            if let Err(halt) = done {
                ended = ended.and(Err(self.ended(halt)));
                if !event.is_end() {
                    break;
                }
            }
        }
        ended
    }

    /// Lets every update hook transform the gradients, one after the other. What a hook leaves is what the next one sees and what the
    /// optimizer uses; a hook that fails leaves everything as it was.
    pub fn update(&self, state: &TrainState, mut grads: NamedGrads) -> Result<NamedGrads, Ended> {
        for slot in self.told(Scope::Step) {
            let before = grads.clone();
            let run = |hook: &mut dyn crate::Hook, cx: &mut crate::Cx| {
                let mut given = before.clone();
                hook.update(&mut given, cx).map(|()| given)
            };
            let check = |after: &NamedGrads| check_update(&slot, &before, after);
            let after = guard::call(&slot, &self.facts, Some(state), None, "update", run, check);
            if let Some(after) = after.map_err(|halt| self.ended(halt))? {
                grads = after;
            }
        }
        Ok(grads)
    }

    /// Takes over what hooks did at the points of a pass: metrics, requests, failures and wishes for an end.
    pub fn absorb(&self, pass: &Pass) -> Result<(), Ended> {
        let theirs = std::mem::take(&mut *pass.ledger());
        let fatal = theirs.fatal.clone();
        let mut ledger = lock(&self.facts.ledger);
        ledger.absorb(theirs);
        match (fatal, &ledger.control) {
            (Some(error), _) => Err(Ended::Failed(error)),
            (None, Some(Control::Abort { hook_id, reason })) => {
                Err(Ended::Aborted { hook_id: hook_id.clone(), reason: reason.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Publishes a metric on behalf of the trainer, for hooks to read.
    pub fn log(&self, name: impl Into<String>, value: f64) {
        lock(&self.facts.ledger).metrics.insert(name.into(), value);
    }

    /// A metric of this step.
    pub fn metric(&self, name: &str) -> Option<f64> {
        lock(&self.facts.ledger).metrics.get(name).copied()
    }

    /// All metrics of this step so far.
    pub fn metrics(&self) -> Metrics {
        lock(&self.facts.ledger).metrics.clone()
    }

    /// Takes what was published.
    pub fn take_published(&self) -> Published {
        let mut ledger = lock(&self.facts.ledger);
        Published {
            metrics: std::mem::take(&mut ledger.metrics),
            histograms: std::mem::take(&mut ledger.histograms),
        }
    }

    /// Takes what was asked for, in order, with the id of the hook that asked.
    pub fn take_requests(&self) -> Vec<(String, Request)> {
        std::mem::take(&mut lock(&self.facts.ledger).requests)
    }

    /// Takes the failures.
    pub fn take_errors(&self) -> Vec<HookError> {
        std::mem::take(&mut lock(&self.facts.ledger).errors)
    }

    /// The end that a hook asked for.
    pub fn control(&self) -> Option<Control> {
        lock(&self.facts.ledger).control.clone()
    }

    fn told(&self, scope: Scope) -> Vec<Arc<Slot>> {
        let clock = &self.facts.setup.clock;
        let seed = self.facts.setup.seed;
        let mut slots = self.manager.slots();
        slots.retain(|slot| match scope {
            Scope::Run => slot.is_enabled(),
            Scope::Epoch => slot.is_enabled() && clock.epoch >= slot.options.start_after_epoch,
            Scope::Step => slot.is_active(clock, seed),
        });
        slots
    }

    fn ended(&self, halt: Halt) -> Ended {
        match halt {
            Halt::Failed(error) => Ended::Failed(error),
            Halt::Aborted { hook_id, reason } => Ended::Aborted { hook_id, reason },
        }
    }
}

impl Ledger {
    fn absorb(&mut self, other: Ledger) {
        self.metrics.extend(other.metrics);
        self.histograms.extend(other.histograms);
        self.requests.extend(other.requests);
        self.errors.extend(other.errors);
        match (&self.control, other.control) {
            (None | Some(Control::Stop { .. }), Some(abort @ Control::Abort { .. })) => {
                self.control = Some(abort)
            }
            (None, Some(stop)) => self.control = Some(stop),
            _ => {}
        }
    }
}

fn check_update(slot: &Slot, before: &NamedGrads, after: &NamedGrads) -> HookResult<Receipt> {
    let names = |grads: &NamedGrads| grads.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
    if before.len() != after.len() || before.iter().zip(after.iter()).any(|((a, _), (b, _))| a != b) {
        let (had, has) = (names(before), names(after));
        let lost: Vec<&String> = had.iter().filter(|name| !has.contains(name)).take(5).collect();
        return Err(format!("took away gradients: {lost:?}; set them to zero instead").into());
    }
    let mut receipt = Receipt { events: 1, ..Receipt::default() };
    for ((name, old), (_, new)) in before.iter().zip(after.iter()) {
        if old.id() == new.id() {
            continue;
        }
        let changed = guard::check_replacement(slot, old, new, false)
            .map_err(|error| format!("gradient of `{name}`: {error}"))?;
        receipt.add(&changed);
    }
    Ok(receipt)
}

impl Inner {
    pub(crate) fn begin_event_facts(self: &Arc<Self>, setup: PassSetup) -> Facts {
        Facts {
            table: self.table.clone(),
            setup,
            ledger: Mutex::default(),
            number: self.passes.load(Relaxed),
            edited: false.into(),
            board: self.board.clone(),
            states: Some(self.states.clone()),
            manager: Arc::downgrade(self),
            running: self.running.clone(),
        }
    }
}
