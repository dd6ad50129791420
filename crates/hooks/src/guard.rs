//! The one place where hooks are called: panics are caught here, time is taken, receipts are written, the policy is applied.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use candle_core::{Error, Result, Tensor};

use crate::cx::{Cx, Facts};
use crate::error::{BoxError, HookError, HookResult, PanicMessage};
use crate::hook::{At, Hook};
use crate::options::OnError;
use crate::receipt::{Control, Receipt};
use crate::slot::{Slot, thread_tag};
use crate::sync::lock;
use crate::tensors::difference;

/// Lets a hook look at a tensor.
pub(crate) fn observe(slot: &Slot, facts: &Facts, at: &At, x: &Tensor) -> Result<()> {
    call(slot, facts, at, "observe", |hook, cx| hook.observe(at, x, cx), |()| Ok(Receipt::default()))?;
    Ok(())
}

/// Lets a hook replace a tensor. What comes back is fit to take the original's place.
pub(crate) fn edit(slot: &Slot, facts: &Facts, at: &At, x: &Tensor) -> Result<Option<Tensor>> {
    let check =
        |edited: &Option<Tensor>| edited.as_ref().map_or(Ok(Receipt::default()), |y| check_edit(slot, x, y));
    Ok(call(slot, facts, at, "edit", |hook, cx| hook.edit(at, x, cx), check)?.flatten())
}

fn check_edit(slot: &Slot, x: &Tensor, y: &Tensor) -> HookResult<Receipt> {
    if y.shape() != x.shape() {
        return Err(format!("returned shape {:?} where {:?} was given", y.dims(), x.dims()).into());
    }
    if y.dtype() != x.dtype() {
        return Err(format!("returned dtype {:?} where {:?} was given", y.dtype(), x.dtype()).into());
    }
    if !y.device().same_device(x.device()) {
        return Err("returned a tensor on another device".into());
    }
    let difference = difference(x, y)?;
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
/// `check` looks at what the hook returned, outside the hook's lock, because it may use all cores.
fn call<R>(
    slot: &Slot,
    facts: &Facts,
    at: &At,
    event: &'static str,
    run: impl FnOnce(&mut dyn Hook, &mut Cx) -> HookResult<R>,
    check: impl FnOnce(&R) -> HookResult<Receipt>,
) -> Result<Option<R>> {
    if slot.quarantined.load(Relaxed) {
        return Ok(None); // since this pass began
    }
    let mut elapsed = Duration::ZERO; // of the call, not of waiting for another thread to leave the hook
    let mut cx = Cx { facts, hook_id: &slot.id, extra: Receipt::default() };
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
    let mut receipt = std::mem::take(&mut cx.extra);
    let outcome = outcome.and_then(|value| {
        receipt.add(&check(&value)?);
        Ok(value)
    });

    receipt.fired = 1;
    receipt.nanoseconds = elapsed.as_nanos() as u64;
    receipt.errors = outcome.is_err().into();
    if slot.options.slow_after().is_some_and(|limit| elapsed > limit) {
        receipt.slow_calls = 1;
        if !slot.said_slow.swap(true, Relaxed) {
            tracing::warn!(hook = slot.id, point = at.name, ?elapsed, "slow hook");
        }
    }
    lock(&slot.totals).add(&receipt);
    lock(&facts.ledger).receipts.entry(slot.serial).or_default().add(&receipt);

    let value = match outcome {
        Ok(value) => {
            slot.failures_in_a_row.store(0, Relaxed);
            Some(value)
        }
        Err(error) => {
            failed(slot, facts, at, event, error)?;
            None
        }
    };
    match asked_to_abort(facts) {
        Some(message) => Err(Error::msg(message)),
        None => Ok(value),
    }
}

fn failed(slot: &Slot, facts: &Facts, at: &At, event: &'static str, error: BoxError) -> Result<()> {
    let error = HookError {
        hook_id: slot.id.clone(),
        hook_type: slot.kind.clone(),
        event,
        point: Some(at.name.to_string()),
        original_error: Arc::from(error),
    };
    if !slot.said_failed.swap(true, Relaxed) || slot.options.verbose {
        tracing::warn!("{error}");
    }
    let mut ledger = lock(&facts.ledger);
    ledger.errors.push(error.clone());
    match slot.options.on_error {
        OnError::Isolate => {
            let failures = slot.failures_in_a_row.fetch_add(1, Relaxed) + 1;
            if slot.options.quarantine_after > 0 && failures >= slot.options.quarantine_after {
                slot.quarantine();
                tracing::warn!(hook = slot.id, failures, "disabled: it failed too often in a row");
            }
            Ok(())
        }
        OnError::Abort => {
            // candle's error keeps only the text; the typed error travels in the pass.
            let message = error.to_string();
            ledger.fatal.get_or_insert(error);
            Err(Error::msg(message))
        }
    }
}

fn asked_to_abort(facts: &Facts) -> Option<String> {
    match &lock(&facts.ledger).control {
        Some(Control::Abort { hook_id, reason }) => {
            Some(format!("hook `{hook_id}` asked to abort: {reason}"))
        }
        _ => None,
    }
}
