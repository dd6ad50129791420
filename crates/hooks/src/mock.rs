//! Testing hooks without a model.

use std::sync::Arc;

use candle_core::{Error, Result, Tensor, Var};

use crate::board::Board;
use crate::clock::{Gradients, Mode, PassSetup};
use crate::error::{AttachError, nearest};
use crate::hook::Hook;
use crate::manager::HookManager;
use crate::options::HookOptions;
use crate::pass::Pass;
use crate::point::{Point, PointId, PointTable};
use crate::receipt::Report;

/// A model that is nothing but points: fire a tensor at one of them and see what a hook does.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// use tenterhook_hooks::{Mock, hook_fn};
///
/// let mut mock = Mock::new(["blocks.0.hook_resid_post"])?;
/// let id = mock.attach(hook_fn::edit("blocks.*", |_, x, cx| {
///     cx.log("size", x.elem_count() as f64);
///     Ok(Some((x * 2.0)?))
/// }))?;
/// let y = mock.fire("blocks.0.hook_resid_post", &Tensor::new(&[1f32, 2.0], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec1::<f32>()?, [2.0, 4.0]);
/// assert_eq!(mock.metric("size"), Some(2.0));
/// assert_eq!(mock.report().receipt(&id).unwrap().fired, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Mock {
    hooks: HookManager,
    setup: PassSetup,
    pass: Pass,
}

impl Mock {
    /// Points with these names, in training at step 0. A name twice is an error.
    pub fn new<Name: Into<String>>(
        names: impl IntoIterator<Item = Name>,
    ) -> std::result::Result<Self, AttachError> {
        let mut points = PointTable::builder();
        for name in names {
            points.point(Point::new(name, "..."))?;
        }
        Ok(Self::with_points(points.build()))
    }

    /// The points of a table of your own, with layers, aliases and axes.
    pub fn with_points(points: Arc<PointTable>) -> Self {
        Self::with_manager(HookManager::new(points))
    }

    /// The points and hooks of a manager, such as one with limits.
    pub fn with_manager(hooks: HookManager) -> Self {
        let setup = PassSetup::train(0);
        let pass = hooks.pass(setup.clone());
        Self { hooks, setup, pass }
    }

    /// Attaches a hook and begins the pass of this step anew.
    pub fn attach(&mut self, hook: impl Hook) -> std::result::Result<String, AttachError> {
        self.attach_with(hook, HookOptions::default())
    }

    /// The same with options.
    pub fn attach_with(
        &mut self,
        hook: impl Hook,
        options: HookOptions,
    ) -> std::result::Result<String, AttachError> {
        let id = self.hooks.register_with(hook, options)?;
        self.begin();
        Ok(id)
    }

    /// Sends a tensor past a point, in the current pass, and returns what comes out.
    pub fn fire(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        self.pass.tap_shared(self.find(name)?, None, x.clone())
    }

    /// Sends a value past a point and a gradient back; returns the gradient that arrives before the point.
    pub fn backward(&self, name: &str, value: &Tensor, gradient: &Tensor) -> Result<Tensor> {
        let leaf = Var::from_tensor(value)?;
        let y = self.fire(name, leaf.as_tensor())?;
        let gradients = (y * gradient)?.sum_all()?.backward()?;
        let cut =
            || Error::msg("no gradient arrives: a hook replaced the value by one that does not depend on it");
        gradients.get(&leaf).cloned().ok_or_else(cut)
    }

    /// Begins the pass of the next step; hooks attached to the manager meanwhile take part.
    pub fn step(&mut self) {
        self.hooks.board().end_step();
        self.setup.clock.step += 1;
        self.setup.clock.batch += 1;
        self.begin();
    }

    /// Goes on with training passes.
    pub fn train(&mut self) {
        (self.setup.mode, self.setup.gradients) = (Mode::Train, Gradients::Parameters);
        self.begin();
    }

    /// Goes on with evaluation passes, which have no gradients.
    pub fn eval(&mut self) {
        (self.setup.mode, self.setup.gradients) = (Mode::Eval, Gradients::Off);
        self.begin();
    }

    /// Goes on with passes that are set up like this.
    pub fn set_up(&mut self, setup: PassSetup) {
        self.setup = setup;
        self.begin();
    }

    /// What the hooks did in the current pass.
    pub fn report(&self) -> Report {
        self.pass.report()
    }

    /// A metric that a hook logged in the current pass.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.pass.report().metrics.get(name).copied()
    }

    /// Where hooks leave things for each other.
    pub fn board(&self) -> &Board {
        self.hooks.board()
    }

    /// The manager.
    pub fn hooks(&self) -> &HookManager {
        &self.hooks
    }

    /// The current pass.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    fn begin(&mut self) {
        self.pass = self.hooks.pass(self.setup.clone());
    }

    fn find(&self, name: &str) -> Result<PointId> {
        let points = self.hooks.points();
        points.find(name).ok_or_else(|| {
            let nearest = nearest(name, points.all_names(), 3);
            Error::msg(AttachError::NoMatch { what: "point", selector: name.to_string(), nearest })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::HookResult;
    use crate::hook_fn;
    use candle_core::Device;

    #[test]
    fn values_and_gradients_go_through_the_hooks() -> HookResult {
        let x = Tensor::new(&[1f32, -2.0], &Device::Cpu)?;
        let mut mock = Mock::new(["p", "q"])?;
        mock.attach(hook_fn::edit_gradient("p", |_, g, _| Ok(Some((g * 10.0)?))))?;
        mock.attach(hook_fn::edit("q", |_, x, _| Ok(Some((x * 3.0)?))))?;
        assert_eq!(mock.backward("p", &x, &x)?.to_vec1::<f32>()?, [10.0, -20.0]);
        assert_eq!(mock.backward("q", &x, &x)?.to_vec1::<f32>()?, [3.0, -6.0]);
        mock.eval();
        assert_eq!(
            mock.backward("p", &x, &x)?.to_vec1::<f32>()?,
            [1.0, -2.0],
            "no gradient hooks without gradients"
        );
        mock.train();
        assert_eq!(mock.backward("p", &x, &x)?.to_vec1::<f32>()?, [10.0, -20.0]);
        Ok(())
    }

    #[test]
    fn a_wrong_name_is_an_error_with_the_right_one() -> HookResult {
        let mock = Mock::new(["blocks.0.hook_resid_post"])?;
        let error = mock.fire("blocks.0.hook_resid_pst", &Tensor::new(&[1f32], &Device::Cpu)?).err();
        assert!(error.is_some_and(|error| error.to_string().contains("nearest: `blocks.0.hook_resid_post`")));
        Ok(())
    }

    #[test]
    fn a_step_is_a_new_pass() -> HookResult {
        let mut mock = Mock::new(["p"])?;
        mock.attach(hook_fn::observe("p", |_, _, cx| {
            cx.board().put_for_step(7u8);
            cx.log("step", cx.clock().step as f64);
            Ok(())
        }))?;
        mock.fire("p", &Tensor::new(&[1f32], &Device::Cpu)?)?;
        assert_eq!((mock.metric("step"), mock.board().get::<u8>().as_deref()), (Some(0.0), Some(&7)));
        mock.step();
        assert_eq!((mock.metric("step"), mock.board().get::<u8>()), (None, None));
        mock.fire("p", &Tensor::new(&[1f32], &Device::Cpu)?)?;
        assert_eq!(mock.metric("step"), Some(1.0));
        Ok(())
    }
}
