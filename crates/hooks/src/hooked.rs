//! Points on a candle module of your own.

use candle_core::{Module, Result, Tensor};

use crate::error::AttachError;
use crate::pass::Pass;
use crate::point::{Point, PointId, PointTableBuilder};

/// A candle module whose input and output are points: `path.hook_in` and `path.hook_out` (also just `path`).
///
/// ```
/// # use candle_core::{Device, Module, Tensor};
/// use tenterhook_hooks::{HookManager, Hooked, PassSetup, PointTable, hook_fn};
///
/// let mut points = PointTable::builder();
/// let double = Hooked::new(&mut points, "double", |x: &Tensor| x * 2.0)?; // any candle module
/// let hooks = HookManager::new(points.build());
///
/// hooks.register(hook_fn::edit("double", |at, y, _| Ok(Some((y + at.input().unwrap())?))))?;
/// let pass = hooks.pass(PassSetup::default());
/// let y = double.forward_with(&Tensor::new(&[1f32], &Device::Cpu)?, &pass)?;
/// assert_eq!(y.to_vec1::<f32>()?, [3.0]);
/// // The same where a plain candle module is wanted:
/// let y = double.bind(&pass).forward(&Tensor::new(&[5f32], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec1::<f32>()?, [15.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Hooked<M> {
    module: M,
    input: PointId,
    output: PointId,
}

impl<M: Module> Hooked<M> {
    /// Declares the points of `module` under `path`.
    pub fn new(
        points: &mut PointTableBuilder,
        path: &str,
        module: M,
    ) -> std::result::Result<Self, AttachError> {
        let input = points.point(Point::new(format!("{path}.hook_in"), "..."))?;
        let output = points.point(Point::new(format!("{path}.hook_out"), "..."))?;
        points.layer(path, input, output)?;
        Ok(Self { module, input, output })
    }

    /// The module's forward, with the hooks of the pass.
    pub fn forward_with(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        // A module may hand its input or a parameter straight through, so nothing is known about who owns the storage.
        let x = pass.tap_shared(self.input, None, x.clone())?;
        let y = self.module.forward(&x)?;
        pass.tap_shared(self.output, Some(&x), y)
    }

    /// The module with the hooks of this pass, where a plain [`Module`] is wanted.
    pub fn bind<'a>(&'a self, pass: &'a Pass) -> Bound<'a, M> {
        Bound { hooked: self, pass }
    }

    /// The module itself.
    pub fn inner(&self) -> &M {
        &self.module
    }
}

/// A [`Hooked`] module together with a pass: a plain candle [`Module`].
pub struct Bound<'a, M> {
    hooked: &'a Hooked<M>,
    pass: &'a Pass,
}

impl<M: Module> Module for Bound<'_, M> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.hooked.forward_with(x, self.pass)
    }
}
