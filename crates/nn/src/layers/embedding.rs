//! A table of vectors.

use candle_core::{Result, Tensor};
use tenterhook_hooks::{Pass, Point, PointId};

use crate::ops::embedding;
use crate::param::Param;
use crate::scope::{Init, Scope};

/// One vector per token or position, with the ids and the vectors as points.
#[derive(Clone, Debug)]
pub struct Embedding {
    weight: Param,
    input: PointId,
    output: PointId,
}

impl Embedding {
    /// Declares the table and its points at this scope. `output` is a point to share.
    pub fn new(scope: &Scope, rows: usize, width: usize, std: f64, output: Option<PointId>) -> Result<Self> {
        let weight = scope.param("weight", &[rows, width], Init::Normal { std })?;
        let ids = Point::new(format!("{}.hook_in", scope.path()), "batch pos").without_gradient();
        let (input, output) = scope.layer(Some(scope.point(ids)?), output)?;
        Ok(Self { weight, input, output })
    }

    /// The vectors of these ids, times `scale` where a model wants that.
    pub fn forward(&self, ids: &Tensor, scale: Option<f64>, pass: &Pass) -> Result<Tensor> {
        let ids = pass.tap_shared(self.input, None, ids.clone())?;
        let vectors = embedding(&ids, self.weight.at(pass), self.weight.buffer(pass).as_ref())?;
        let vectors = match scale {
            Some(scale) => (vectors * scale)?,
            None => vectors,
        };
        pass.tap_output(self.output, &ids, vectors)
    }

    /// The table, to be tied with another layer.
    pub fn weight(&self) -> &Param {
        &self.weight
    }
}
