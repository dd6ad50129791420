//! One path for weights and points.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use candle_core::{DType, Device, Error, Result, Tensor};
use tenterhook_hooks::random::Stream;
use tenterhook_hooks::{Point, PointId, PointTable, PointTableBuilder};

use crate::param::{Param, Params};

/// How a weight begins when it is not read from a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All 0.
    Zeros,
    /// All 1.
    Ones,
    /// Normally distributed around 0.
    Normal {
        /// The standard deviation.
        std: f64,
    },
}

/// Where weights come from: a model file, or a random start.
pub trait Weights {
    /// The weight of this full name and shape. `init` is for sources that make new ones.
    fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor>;
}

impl<W: Weights + ?Sized> Weights for &mut W {
    fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        (**self).tensor(name, shape, init, dtype, device)
    }
}

/// A random start: every weight is a function of the seed and its name.
#[derive(Clone, Copy, Debug)]
pub struct RandomWeights {
    /// The seed.
    pub seed: u64,
}

impl Weights for RandomWeights {
    fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let std = match init {
            Init::Zeros => return Tensor::zeros(shape, dtype, device),
            Init::Ones => return Tensor::ones(shape, dtype, device),
            Init::Normal { std } => std,
        };
        let stream = Stream::new(self.seed).named("init").named(name);
        let count = shape.iter().product::<usize>() as u64;
        let values: Vec<f64> = (0..count).map(|i| std * stream.normal(i)).collect();
        Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
    }
}

/// Hands out weights and declares points while a model is built, both under the same dotted path, so that a layer's name cannot drift
/// from its weights' names.
///
/// ```
/// use candle_core::{DType, Device};
/// use tenterhook_nn::{Init, RandomWeights, Scope};
///
/// let root = Scope::new(RandomWeights { seed: 1 }, DType::F32, &Device::Cpu);
/// let fc = root.pp("mlp").pp("fc");
/// let weight = fc.param("weight", &[4, 3], Init::Normal { std: 0.02 })?;
/// fc.layer(None, None)?; // mlp.fc.hook_in and mlp.fc.hook_out
/// let (points, params) = root.finish();
/// assert_eq!(weight.name(), "mlp.fc.weight");
/// assert!(points.find("mlp.fc.hook_out").is_some() && params.get("mlp.fc.weight").is_some());
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Scope<'a> {
    path: String,
    block: Option<usize>,
    build: Rc<RefCell<Build<'a>>>,
}

struct Build<'a> {
    weights: Box<dyn Weights + 'a>,
    points: PointTableBuilder,
    params: Params,
    dtype: DType,
    device: Device,
}

impl<'a> Scope<'a> {
    /// The root of a model.
    pub fn new(weights: impl Weights + 'a, dtype: DType, device: &Device) -> Self {
        let build = Build {
            weights: Box::new(weights),
            points: PointTable::builder(),
            params: Params::default(),
            dtype,
            device: device.clone(),
        };
        Self { path: String::new(), block: None, build: Rc::new(RefCell::new(build)) }
    }

    /// The child of this name. An empty name is this scope itself.
    pub fn pp(&self, name: impl ToString) -> Self {
        let path = match (self.path.is_empty(), name.to_string()) {
            (_, name) if name.is_empty() => self.path.clone(),
            (true, name) => name,
            (false, name) => format!("{}.{name}", self.path),
        };
        Self { path, ..self.clone() }
    }

    /// The same scope, whose points belong to this transformer block.
    pub fn in_block(&self, block: usize) -> Self {
        Self { block: Some(block), ..self.clone() }
    }

    /// The dotted path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A weight of this layer.
    pub fn param(&self, name: &str, shape: &[usize], init: Init) -> Result<Param> {
        let name = self.pp(name).path;
        let build = &mut *self.build.borrow_mut();
        if build.params.get(&name).is_some() {
            candle_core::bail!("the weight `{name}` is declared twice in one model");
        }
        let value = build.weights.tensor(&name, shape, init, build.dtype, &build.device)?;
        let param = Param::new(&name, &value)?;
        build.params.insert(param.clone());
        Ok(param)
    }

    /// Declares a point, in this scope's block.
    pub fn point(&self, point: Point) -> Result<PointId> {
        self.build.borrow_mut().points.point(point.in_block(self.block)).map_err(Error::wrap)
    }

    /// Declares the module at this path. Its input and output are the points given, or new ones: `path.hook_in`, `path.hook_out`.
    pub fn layer(&self, input: Option<PointId>, output: Option<PointId>) -> Result<(PointId, PointId)> {
        let new = |end: &str, axes: &str| self.point(Point::new(format!("{}.{end}", self.path), axes));
        let input = input.map_or_else(|| new("hook_in", "batch pos d_in"), Ok)?;
        let output = output.map_or_else(|| new("hook_out", "batch pos d_out"), Ok)?;
        self.build.borrow_mut().points.layer(&self.path, input, output).map_err(Error::wrap)?;
        Ok((input, output))
    }

    /// Declares the transformer block at this path.
    pub fn block_layer(&self, input: PointId, output: PointId) -> Result<()> {
        self.layer(Some(input), Some(output))?;
        self.build.borrow_mut().points.mark_block();
        Ok(())
    }

    /// Says something of the points declared so far that shows only when the model is complete.
    pub fn for_each_point(&self, say: impl FnMut(&mut Point)) {
        self.build.borrow_mut().points.points_mut().for_each(say);
    }

    /// The points and parameters declared so far; call it when the model is complete.
    pub fn finish(self) -> (Arc<PointTable>, Params) {
        let build = &mut *self.build.borrow_mut();
        (std::mem::take(&mut build.points).build(), std::mem::take(&mut build.params))
    }
}
