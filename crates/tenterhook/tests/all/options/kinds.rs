//! Hooks that misbehave, or look where no built-in one does.

use std::fs;
use std::time::Duration;

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::Deserialize;
use tenterhook::hooks::{At, BatchInfo, Cx, Hook, HookRegistry, HookResult, Want};
use tenterhook::training::registry;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EditOptions {
    /// Where.
    points: String,
    /// By how much.
    by: f64,
}

/// Multiplies.
struct Edit(EditOptions);

impl Hook for Edit {
    fn kind(&self) -> &str {
        "test.edit"
    }
    fn wants(&self) -> Vec<Want> {
        vec![Want::edit(self.0.points.as_str())]
    }
    fn edit(&mut self, _at: &At, x: &Tensor, _cx: &mut Cx) -> HookResult<Option<Tensor>> {
        Ok(Some((x * self.0.by)?))
    }
}

/// Fails at every batch.
struct Fail;

impl Hook for Fail {
    fn kind(&self) -> &str {
        "test.fail"
    }
    fn on_train_batch_start(&mut self, _batch: &BatchInfo, _cx: &mut Cx) -> HookResult {
        Err("it does not work".into())
    }
}

/// Takes its time at the first step.
struct Slow;

impl Hook for Slow {
    fn kind(&self) -> &str {
        "test.slow"
    }
    fn on_train_batch_start(&mut self, _batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        if cx.clock().step == 0 {
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    }
}

/// Logs how long the event file of TensorBoard is.
struct Peek;

impl Hook for Peek {
    fn kind(&self) -> &str {
        "test.peek"
    }
    fn on_train_batch_end(&mut self, _batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        let dir = cx.state().and_then(|state| state.run_dir.clone()).ok_or("no directory")?;
        let bytes = fs::read_dir(dir.join("tensorboard"))?.map(|entry| Ok(entry?.metadata()?.len()));
        let bytes: u64 = bytes.sum::<std::io::Result<u64>>()?;
        cx.log("peek", bytes as f64);
        Ok(())
    }
}

pub(super) fn registry_with_test_kinds() -> HookRegistry {
    let mut registry = registry();
    registry.register::<EditOptions>("test.edit", "multiplies", |o| Ok(Box::new(Edit(o)))).unwrap();
    registry.register::<Nothing>("test.fail", "fails", |_| Ok(Box::new(Fail))).unwrap();
    registry.register::<Nothing>("test.slow", "is slow", |_| Ok(Box::new(Slow))).unwrap();
    registry.register::<Nothing>("test.peek", "peeks", |_| Ok(Box::new(Peek))).unwrap();
    registry
}
