//! Parameters that do not train, for good or for a while.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{AttachError, Cx, Hook, HookResult, Request, TrainState, glob_matches, nearest};

use crate::hooks::console::Console;
use crate::hooks::none_of;

/// What a [`Freeze`] freezes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FreezeOptions {
    /// Names of parameters, or globs over them such as `transformer.h.0.*`.
    #[schemars(extend("examples" = [["*.h.0.*"]]))]
    pub params: Vec<String>,
    /// They train from this epoch on, counted from 0; without it never.
    pub until_epoch: Option<u64>,
}

/// Freezes parameters when training starts, and lets them go when an epoch begins. A name or glob that matches no parameter ends the run
/// before its first step.
pub struct Freeze {
    options: FreezeOptions,
    released: bool,
}

impl Freeze {
    /// The kind's name.
    pub const KIND: &'static str = "freeze";

    /// Options that would freeze nothing are an error.
    pub fn new(options: FreezeOptions) -> Result<Self, AttachError> {
        let mut problems = Vec::new();
        if options.params.is_empty() {
            problems.push("`params` is empty: nothing would be frozen".to_string());
        }
        if options.until_epoch == Some(0) {
            problems.push("`until_epoch` is 0: nothing would ever be frozen".to_string());
        }
        none_of(problems, Self::KIND)?;
        Ok(Self { options, released: false })
    }

    /// The chosen parameters in the model's order, or what matches none.
    fn chosen(&self, state: &TrainState) -> Result<Vec<String>, String> {
        let names = || state.params.iter().map(|param| param.name.as_str());
        let fits = |glob: &str, name: &str| glob == name || glob_matches(glob, name);
        let idle = self.options.params.iter().filter(|glob| !names().any(|name| fits(glob, name)));
        let problems: Vec<String> = idle.map(|glob| no_parameter(glob, names())).collect();
        match problems.is_empty() {
            true => {
                let is_chosen = |name: &&str| self.options.params.iter().any(|glob| fits(glob, name));
                Ok(names().filter(is_chosen).map(str::to_string).collect())
            }
            false => Err(problems.join("; ")),
        }
    }

    fn is_over(&self, epoch: u64) -> bool {
        self.options.until_epoch.is_some_and(|until| epoch >= until)
    }

    fn release(&mut self, cx: &mut Cx) -> HookResult {
        let state = cx.state().ok_or("there is no run with parameters")?;
        let names = self.chosen(state)?;
        if cx.verbose() {
            Console::default().line(&format!("{}: {} parameters train again", cx.hook_id(), names.len()));
        }
        cx.request(Request::Unfreeze(names));
        self.released = true;
        Ok(())
    }
}

/// What to say of a name or glob that matches no parameter.
pub(crate) fn no_parameter<'a>(glob: &str, names: impl Iterator<Item = &'a str>) -> String {
    let near: Vec<String> = nearest(glob, names, 3).iter().map(|name| format!("`{name}`")).collect();
    let hint = if near.is_empty() { String::new() } else { format!("; nearest: {}", near.join(", ")) };
    format!("no parameter matches `{glob}`{hint}")
}

impl Hook for Freeze {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
        let state = cx.state().ok_or("there is no run with parameters")?;
        let names = match self.chosen(state) {
            Ok(names) => names,
            Err(problem) => {
                // A failure would only be reported; training what should be frozen is worse than not training.
                cx.abort(problem);
                return Ok(());
            }
        };
        if self.released {
            return Ok(());
        }
        if self.is_over(state.current_epoch) {
            return self.release(cx);
        }
        // After a restart they may be frozen already.
        let names: Vec<String> = names.into_iter().filter(|name| !state.frozen.contains(name)).collect();
        if !names.is_empty() {
            cx.request(Request::Freeze(names));
        }
        Ok(())
    }

    fn on_epoch_start(&mut self, epoch: u64, cx: &mut Cx) -> HookResult {
        if self.is_over(epoch) && !self.released { self.release(cx) } else { Ok(()) }
    }

    fn save_state(&self) -> HookResult<Option<serde_json::Value>> {
        Ok(Some(self.released.into()))
    }

    fn load_state(&mut self, state: serde_json::Value) -> HookResult {
        self.released = serde_json::from_value(state)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::test_support::{acts, assert_resumes, options};
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tenterhook_hooks::{Event, MockTrainer};

    fn started(json: Value) -> MockTrainer {
        let mut trainer = MockTrainer::new();
        trainer.attach(Freeze::new(options(json)).unwrap()).unwrap();
        trainer.fire(Event::TrainStart).unwrap();
        trainer
    }

    #[test]
    fn what_matches_is_frozen() {
        for (params, want) in [
            (json!(["layer.bias"]), vec!["layer.bias"]),
            (json!(["layer.*"]), vec!["layer.bias", "layer.weight"]),
            (json!(["*.weight", "layer.weight"]), vec!["layer.weight"]),
        ] {
            assert_eq!(started(json!({"params": params})).state.frozen, want, "{params}");
        }
    }

    #[test]
    fn they_train_again_from_the_epoch_on() -> HookResult {
        let mut trainer = started(json!({"params": ["*.bias"], "until_epoch": 2}));
        trainer.next_epoch()?;
        assert_eq!(trainer.state.frozen, ["layer.bias"]);
        trainer.next_epoch()?;
        assert!(trainer.state.frozen.is_empty());
        trainer.next_epoch()?;
        assert_eq!(trainer.requests().len(), 2, "asked once");

        let mut for_good = started(json!({"params": ["*.bias"]}));
        (0..5).try_for_each(|_| for_good.next_epoch())?;
        assert_eq!(for_good.state.frozen, ["layer.bias"]);
        Ok(())
    }

    #[test]
    fn a_run_that_goes_on_after_the_epoch_is_not_frozen_again() -> HookResult {
        let mut trainer = MockTrainer::new();
        trainer.state.current_epoch = 3;
        trainer.state.frozen = vec!["layer.bias".to_string()];
        trainer.attach(Freeze::new(options(json!({"params": ["*.bias"], "until_epoch": 2})))?)?;
        trainer.fire(Event::TrainStart)?;
        assert!(trainer.state.frozen.is_empty());

        // What it had let go before the restart is not asked for again: another hook may have frozen it since.
        let mut trainer = MockTrainer::new();
        trainer.state.current_epoch = 3;
        let mut hook = Freeze::new(options(json!({"params": ["*.bias"], "until_epoch": 2})))?;
        hook.load_state(true.into())?;
        trainer.attach(hook)?;
        trainer.fire(Event::TrainStart)?;
        assert!(trainer.requests().is_empty());
        Ok(())
    }

    #[test]
    fn what_matches_nothing_ends_the_run() -> HookResult {
        let mut trainer = MockTrainer::new();
        trainer.attach(Freeze::new(options(json!({"params": ["layer.wieght", "x.*", "*"]})))?)?;
        let ended = trainer.fire(Event::TrainStart).unwrap_err().to_string();
        assert!(ended.contains("no parameter matches `layer.wieght`; nearest: `layer.weight`"), "{ended}");
        assert!(ended.contains("no parameter matches `x.*`"), "{ended}");
        assert!(trainer.requests().is_empty());
        Ok(())
    }

    #[test]
    fn senseless_options_are_all_named() {
        let error = Freeze::new(options(json!({"until_epoch": 0})));
        let Some(AttachError::BadOptions { problems, .. }) = error.err() else { panic!("accepted") };
        assert_eq!(problems.len(), 2);
    }

    proptest! {
        #[test]
        fn p05_decisions_survive_a_restart(acts in acts(), cut in 0..40usize, until in prop::option::of(1..4u64)) {
            let options = json!({"params": ["*.bias"], "until_epoch": until});
            assert_resumes(|| Box::new(Freeze::new(crate::hooks::test_support::options(options.clone())).unwrap()), &acts, cut);
        }
    }
}
