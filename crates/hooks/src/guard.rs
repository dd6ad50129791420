//! The one place where hooks are called: panics are caught here, time is taken, receipts are written, the policy is applied.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use candle_core::{Error, Result, Tensor};

use crate::backtrace;
use crate::cx::{Cx, Facts};
use crate::error::{BoxError, HookError, HookResult, PanicMessage};
use crate::hook::{At, Hook};
use crate::options::OnError;
use crate::part::Refused;
use crate::receipt::{Control, Receipt};
use crate::slot::{Slot, thread_tag};
use crate::sync::lock;
use crate::tensors::difference;
use crate::train_state::TrainState;

/// Lets a hook look at a tensor.
pub(crate) fn observe(slot: &Slot, facts: &Facts, at: &At, x: &Tensor) -> Result<()> {
    let run = |hook: &mut dyn Hook, cx: &mut Cx| hook.observe(at, x, cx);
    call(slot, facts, None, Some(at.name), "observe", run, |()| Ok(ONCE))?;
    Ok(())
}

const ONCE: Receipt = Receipt { fired: 1, ..Receipt::NOTHING };

/// Why a call ends the pass or the run.
pub(crate) enum Halt {
    Failed(HookError),
    Aborted { hook_id: String, reason: String },
}

impl From<Halt> for Error {
    fn from(halt: Halt) -> Self {
        // candle's error keeps only the text; the typed error travels in the ledger.
        match halt {
            Halt::Failed(error) => Error::msg(error),
            Halt::Aborted { hook_id, reason } => {
                Error::msg(format!("hook `{hook_id}` asked to abort: {reason}"))
            }
        }
    }
}

/// Lets a hook replace a tensor. What comes back is fit to take the original's place.
pub(crate) fn edit(slot: &Slot, facts: &Facts, at: &At, x: &Tensor) -> Result<Option<Tensor>> {
    let check = |edited: &Option<Tensor>| {
        let mut receipt = ONCE;
        if let Some(y) = edited {
            receipt.add(&check_replacement(slot, x, y, at.point().masked)?);
        }
        Ok(receipt)
    };
    let run = |hook: &mut dyn Hook, cx: &mut Cx| hook.edit(at, x, cx);
    Ok(call(slot, facts, None, Some(at.name), "edit", run, check)?.flatten())
}

/// Whether a tensor may take another's place.
///
/// `masked`: minus infinity is a value like any other there.
pub(crate) fn check_replacement(slot: &Slot, x: &Tensor, y: &Tensor, masked: bool) -> HookResult<Receipt> {
    if y.shape() != x.shape() {
        return Err(format!("returned shape {:?} where {:?} was given", y.dims(), x.dims()).into());
    }
    if y.dtype() != x.dtype() {
        return Err(format!("returned dtype {:?} where {:?} was given", y.dtype(), x.dtype()).into());
    }
    if !y.device().same_device(x.device()) {
        return Err("returned a tensor on another device".into());
    }
    let difference = difference(x, y, masked)?;
    if difference.broken > 0 && !slot.options.allow_non_finite {
        let count = difference.broken;
        return Err(format!(
            "turned {count} finite values into NaN or infinity (allow_non_finite permits it)"
        )
        .into());
    }
    Ok(Receipt { edits: 1, elements_changed: difference.changed, ..Receipt::default() })
}

/// Calls a hook. `Ok(None)` when the hook was skipped or its failure was isolated; `Err` ends the pass.
///
/// `check` looks at what the hook returned, outside the hook's lock, because it may use all cores, and says how the call counts.
pub(crate) fn call<R>(
    slot: &Slot,
    facts: &Facts,
    state: Option<&TrainState>,
    point: Option<&str>,
    event: &'static str,
    run: impl FnOnce(&mut dyn Hook, &mut Cx) -> HookResult<R>,
    check: impl FnOnce(&R) -> HookResult<Receipt>,
) -> std::result::Result<Option<R>, Halt> {
    if slot.quarantined.load(Relaxed) {
        return Ok(None); // since this pass began
    }
    let mut elapsed = Duration::ZERO; // of the call, not of waiting for another thread to leave the hook
    let verbose = slot.options.verbose;
    let mut cx = Cx { facts, state, hook_id: &slot.id, verbose, extra: Receipt::default() };
    facts.running.store(slot.serial, Relaxed);
    let outcome = slot
        .hook
        .with(thread_tag(), |hook| {
            let begin = Instant::now();
            let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut **hook, &mut cx)));
            elapsed = begin.elapsed();
            outcome
        })
        .unwrap_or_else(|_| Ok(Err("called again while it is running on this thread".into())))
        .unwrap_or_else(|payload| Err(Box::new(PanicMessage::from_payload(&*payload))));
    facts.running.store(0, Relaxed);
    let mut receipt = std::mem::take(&mut cx.extra);
    let outcome = outcome.and_then(|value| {
        receipt.add(&check(&value)?);
        Ok(value)
    });

    let refused = outcome.as_ref().is_err_and(|error| error.is::<Refused>());
    if outcome.is_err() {
        receipt.errors = u64::from(!refused);
        receipt.add(&if point.is_some() { ONCE } else { Receipt { events: 1, ..Receipt::NOTHING } });
    }
    receipt.nanoseconds = elapsed.as_nanos() as u64;
    if slot.options.slow_after().is_some_and(|limit| elapsed > limit) {
        receipt.slow_calls = 1;
        if !slot.said_slow.swap(true, Relaxed) {
            tracing::warn!(hook = slot.id, event, point, ?elapsed, "slow hook");
        }
    }
    lock(&slot.totals).add(&receipt);
    lock(&facts.ledger).receipts.entry(slot.serial).or_default().add(&receipt);

    let value = match outcome {
        Ok(value) => {
            slot.note_success(event);
            Some(value)
        }
        Err(error) => {
            failed(slot, facts, point, event, error, refused)?;
            None
        }
    };
    match asked_to_abort(facts) {
        Some(halt) => Err(halt),
        None => Ok(value),
    }
}

fn failed(
    slot: &Slot,
    facts: &Facts,
    point: Option<&str>,
    event: &'static str,
    error: BoxError,
    refused: bool,
) -> std::result::Result<(), Halt> {
    let debug = facts.manager.upgrade().is_some_and(|manager| manager.debug.load(Relaxed));
    let error = HookError {
        hook_id: slot.id.clone(),
        hook_type: slot.kind.clone(),
        event,
        point: point.map(str::to_string),
        backtrace: debug.then(|| Arc::new(backtrace::of(&*error))),
        original_error: Arc::from(error),
    };
    if refused {
        // It was asked for nonsense and did not fail: nobody's policy, and nothing to go on with.
        lock(&facts.ledger).fatal.get_or_insert(error.clone());
        return Err(Halt::Failed(error));
    }
    if !slot.said_failed.swap(true, Relaxed) || slot.options.verbose {
        match &error.backtrace {
            Some(backtrace) => tracing::warn!("{error}\n{backtrace}"),
            None => tracing::warn!("{error}"),
        }
    }
    let mut ledger = lock(&facts.ledger);
    ledger.errors.push(error.clone());
    match slot.options.on_error {
        OnError::Isolate => {
            let failures = slot.note_failure(event);
            if slot.options.quarantine_after > 0 && failures >= slot.options.quarantine_after {
                slot.quarantine();
                tracing::warn!(hook = slot.id, failures, "disabled: it failed too often in a row");
            }
            Ok(())
        }
        OnError::Abort => {
            ledger.fatal.get_or_insert(error.clone());
            Err(Halt::Failed(error))
        }
    }
}

fn asked_to_abort(facts: &Facts) -> Option<Halt> {
    match &lock(&facts.ledger).control {
        Some(Control::Abort { hook_id, reason }) => {
            Some(Halt::Aborted { hook_id: hook_id.clone(), reason: reason.clone() })
        }
        _ => None,
    }
}
