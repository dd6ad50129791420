//! NaN and infinity: who brought them in, and what becomes of the step.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Tensor;
use tenterhook_hooks::{At, Cx, Hook, HookManager, HookResult, NamedGrads, PassSetup, Want};
use tenterhook_nn::backward;

use super::Trainer;
use super::step::{Loaded, StepOutcome};
use crate::config::OnNonFinite;
use crate::error::TrainError;
use crate::optim::{OptimError, first_non_finite};

impl Trainer {
    /// The loss of a batch is not finite: what there is to say about it.
    pub(super) fn look_into_loss(&self, loaded: &Loaded, loss: f64) -> String {
        let origin = match self.find_origin(loaded, false) {
            Some(place) => format!("first at {place}"),
            None => "every activation is finite, so it is the loss itself: look at the targets".to_string(),
        };
        format!("the loss is {loss} at {}: {origin}", loaded.named())
    }

    /// A gradient is not finite, after the backward or after an update hook. `own` are this rank's, `grads` those of all.
    /// Returns why the step is skipped, or ends the run.
    pub(super) fn non_finite_gradient(
        &mut self,
        loaded: &Loaded,
        own: &NamedGrads,
        grads: &NamedGrads,
        whence: &str,
    ) -> Result<String, TrainError> {
        if self.world.is_alone() {
            let trouble = self.look_into_gradients(loaded, grads, whence)?;
            return self.judge(trouble);
        }
        // Where the sum alone is at fault every rank has the same to say.
        let guilty = whence == "backward" && first_non_finite(own)?.is_some();
        let trouble = guilty.then(|| self.look_into_gradients(loaded, own, whence)).transpose()?;
        let trouble = match self.trouble_of_all(trouble)? {
            Some(trouble) => trouble,
            None => self.look_into_gradients(loaded, grads, "the sum over the ranks, or an update hook")?,
        };
        self.judge(trouble)
    }

    fn look_into_gradients(
        &self,
        loaded: &Loaded,
        grads: &NamedGrads,
        whence: &str,
    ) -> Result<String, TrainError> {
        let guilty = match first_non_finite(grads)? {
            Some(found) => format!(
                "the gradient of `{}` has {} NaN or infinite values, first {} at element {}",
                found.param, found.count, found.value, found.index
            ),
            None => "the norm of the gradients is too large for a number".to_string(),
        };
        let origin = match (whence, self.find_origin(loaded, true)) {
            ("backward", Some(place)) => format!("first at {place}"),
            ("backward", None) => "every gradient at a point is finite".to_string(),
            (hook, _) => format!("it was finite before {hook}"),
        };
        Ok(format!("{guilty}, after {}: {origin}", loaded.named()))
    }

    /// The optimizers found that the step would make a weight NaN or infinite.
    pub(super) fn non_finite_update(
        &mut self,
        loaded: &Loaded,
        error: &OptimError,
    ) -> Result<String, TrainError> {
        self.judge(format!("{error}, after {}", loaded.named()))
    }

    pub(super) fn judge(&mut self, what: String) -> Result<String, TrainError> {
        let step = self.progress.step;
        match self.settings.on_non_finite {
            OnNonFinite::Stop => Err(TrainError::NonFinite(format!(
                "step {step}: {what}. The weights are those of before this step; `on_non_finite = \"skip\"` leaves such steps out"
            ))),
            OnNonFinite::Skip => {
                tracing::warn!("step {step} is skipped: {what}");
                Ok(what)
            }
        }
    }

    /// Counts skipped steps; too many in a row end the run.
    pub(super) fn count_skipped(&mut self, outcome: &StepOutcome) -> Result<(), TrainError> {
        let Some(what) = &outcome.skipped else {
            self.progress.skipped_in_a_row = 0;
            return Ok(());
        };
        self.progress.skipped += 1;
        self.progress.skipped_in_a_row += 1;
        let (in_a_row, most) = (self.progress.skipped_in_a_row, self.settings.max_skipped);
        if most > 0 && in_a_row >= most {
            return Err(TrainError::NonFinite(format!(
                "{in_a_row} steps in a row were skipped, the last because {what}"
            )));
        }
        Ok(())
    }

    /// Runs the batch again and looks at every point: first without anybody's hooks, so that nobody is called twice, and only when
    /// the model is clean with them.
    fn find_origin(&self, loaded: &Loaded, gradients: bool) -> Option<String> {
        let alone = HookManager::new(self.model.points().clone());
        self.search(&alone, loaded, gradients).or_else(|| {
            let found = self.search(&self.hooks, loaded, gradients)?;
            Some(format!("{found}, which a hook has changed"))
        })
    }

    fn search(&self, hooks: &HookManager, loaded: &Loaded, gradients: bool) -> Option<String> {
        let found = Arc::new(Mutex::new(None));
        let _finder = hooks.scoped(Finder { gradients, found: found.clone() }).ok()?;
        let setup = PassSetup {
            seed: self.settings.seed,
            clock: self.events.clock(),
            first_row: loaded.first_row,
            ..PassSetup::train(0)
        };
        let pass = hooks.pass(setup);
        // Whatever fails here, what was found until then is the answer.
        let output = self.model.forward(&loaded.batch, &pass).ok();
        let loss = output.and_then(|output| self.model.loss(&output, &loaded.batch).ok());
        if let (Some(loss), true) = (loss, gradients) {
            let _ = backward(&loss, self.model.params(), None);
        }
        std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Remembers the first place where something is not finite.
struct Finder {
    gradients: bool,
    found: Arc<Mutex<Option<String>>>,
}

impl Hook for Finder {
    fn kind(&self) -> &str {
        "non_finite_finder"
    }

    fn wants(&self) -> Vec<Want> {
        match self.gradients {
            true => vec![Want::observe("*"), Want::observe_gradient("*")],
            false => vec![Want::observe("*")],
        }
    }

    fn observe(&mut self, at: &At, x: &Tensor, _cx: &mut Cx) -> HookResult {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_some() || !x.dtype().is_float() {
            return Ok(());
        }
        let bad = at.non_finite(x)?;
        if bad > 0 {
            let what = if at.site().is_gradient() { "the gradient at " } else { "" };
            *found = Some(format!("{what}point `{}` ({bad} of {} values)", at.name(), x.elem_count()));
        }
        Ok(())
    }
}
