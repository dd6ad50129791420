//! The update hook that changes nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{AttachError, Cx, Hook, HookResult, NamedGrads};

/// [`IdentityUpdate`] has no options of its own.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IdentityUpdateOptions {}

/// Leaves the gradients as they are, bit for bit, and counts how often it was asked. The default update hook: it shows that the
/// way through update hooks is there and changes nothing.
#[derive(Debug, Default)]
pub struct IdentityUpdate {
    calls: u64,
}

impl IdentityUpdate {
    /// The kind's name.
    pub const KIND: &'static str = "identity_update";

    /// It cannot fail; every kind is made alike.
    pub fn new(_options: IdentityUpdateOptions) -> Result<Self, AttachError> {
        Ok(Self::default())
    }

    /// How often it was asked, over all attempts of the run.
    pub fn calls(&self) -> u64 {
        self.calls
    }
}

impl Hook for IdentityUpdate {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn update(&mut self, _grads: &mut NamedGrads, _cx: &mut Cx) -> HookResult {
        self.calls += 1;
        Ok(())
    }

    fn save_state(&self) -> HookResult<Option<serde_json::Value>> {
        Ok(Some(self.calls.into()))
    }

    fn load_state(&mut self, state: serde_json::Value) -> HookResult {
        self.calls = serde_json::from_value(state)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Tensor};
    use tenterhook_hooks::{HookManager, PassSetup, PointTable, TrainState};

    #[test]
    fn gradients_stay_the_very_same_tensors() -> HookResult {
        let hooks = HookManager::new(PointTable::builder().build());
        let id = hooks.register(IdentityUpdate::default())?;
        let x = Tensor::new(&[1f32, f32::NAN], &Device::Cpu)?;
        let grads: NamedGrads = [("w".to_string(), x.clone())].into_iter().collect();
        let events = hooks.events(PassSetup::train(0));
        let after = events.update(&TrainState::default(), grads.clone())?;
        let after = events.update(&TrainState::default(), after)?;
        assert_eq!(after.get("w").map(Tensor::id), Some(x.id()));
        assert_eq!(hooks.with_hook(&id, |hook: &mut IdentityUpdate| hook.calls())?, 2);

        let saved = hooks.save_hook(&id)?;
        let mut fresh = IdentityUpdate::default();
        fresh.load_state(saved.state.ok_or("no state")?)?;
        assert_eq!(fresh.calls(), 2);
        Ok(())
    }
}
