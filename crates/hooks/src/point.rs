//! The named places of a model.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::error::AttachError;

/// A point's number in its model's table. Models keep these beside their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PointId(pub(crate) u32);

/// A named place where a tensor passes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Point {
    /// The canonical name, such as `blocks.3.attn.hook_z`.
    pub name: String,
    /// Further names of the same place. Whatever name matched, it fires once.
    pub aliases: Vec<String>,
    /// The axes of the tensor, such as `batch pos head d_head`.
    pub axes: String,
    /// Whether a controller may replace the value.
    pub writable: bool,
    /// Costly to make: matched only by its own full name, never by a glob that also matches others.
    pub on_demand: bool,
    /// Whether there is a gradient of the loss here: not at token ids.
    pub differentiable: bool,
    /// Whether minus infinity is how it should be: at masked scores.
    pub masked: bool,
    /// Whether keys or values that a generation keeps depend on what passes here.
    pub feeds_cache: bool,
    /// The transformer block it belongs to.
    pub block: Option<usize>,
}

impl Point {
    /// A writable point of this name, with no alias.
    pub fn new(name: impl Into<String>, axes: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            aliases: Vec::new(),
            axes: axes.into(),
            writable: true,
            on_demand: false,
            differentiable: true,
            masked: false,
            feeds_cache: true,
            block: None,
        }
    }

    /// Adds a further name.
    pub fn alias(mut self, name: impl Into<String>) -> Self {
        self.aliases.push(name.into());
        self
    }

    /// Says which transformer block the point belongs to.
    pub fn in_block(mut self, block: Option<usize>) -> Self {
        self.block = block;
        self
    }

    /// Marks the point as one that controllers cannot edit.
    pub fn read_only(mut self) -> Self {
        self.writable = false;
        self
    }

    /// Marks the point as one that has no gradient.
    pub fn without_gradient(mut self) -> Self {
        self.differentiable = false;
        self
    }

    /// Marks the point as one where minus infinity is how it should be.
    pub fn masked(mut self) -> Self {
        self.masked = true;
        self
    }

    /// Marks the point as costly: see [`Point::on_demand`].
    pub fn on_demand(mut self) -> Self {
        self.on_demand = true;
        self
    }

    /// All names, the canonical one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }
}

/// A module of the model: the path its weights have, and the points of its input and output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layer {
    /// The dotted path, such as `transformer.h.0.attn.c_attn`.
    pub path: String,
    /// Where its input passes, when that place is a point.
    #[serde(skip)]
    pub input: PointId,
    /// Where its output passes.
    #[serde(skip)]
    pub output: PointId,
}

/// All points and layers of one model, in the order in which they were declared. Immutable once built.
#[derive(Debug, Default)]
pub struct PointTable {
    points: Vec<Point>,
    by_name: BTreeMap<String, PointId>,
    layers: Vec<Layer>,
    by_path: BTreeMap<String, usize>,
    blocks: Vec<usize>,
}

impl PointTable {
    /// Starts a table.
    pub fn builder() -> PointTableBuilder {
        PointTableBuilder::default()
    }

    /// How many points there are.
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// Whether there is no point at all.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// The point with this number. The number must come from this table.
    pub fn point(&self, id: PointId) -> &Point {
        &self.points[id.0 as usize]
    }

    /// All points with their numbers, in the order in which they were declared.
    pub fn iter(&self) -> impl Iterator<Item = (PointId, &Point)> {
        self.points.iter().enumerate().map(|(i, point)| (PointId(i as u32), point))
    }

    /// The point with this canonical name or alias.
    pub fn find(&self, name: &str) -> Option<PointId> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.by_name.contains_key(name) || self.by_path.contains_key(name)
    }

    /// All layers, in the order in which they were declared.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The layer with this path.
    pub fn layer(&self, path: &str) -> Option<&Layer> {
        self.by_path.get(path).map(|&i| &self.layers[i])
    }

    /// The transformer blocks, as layers.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = &Layer> {
        self.blocks.iter().map(|&i| &self.layers[i])
    }

    /// The block with this index; a negative one counts from the end.
    pub fn block(&self, index: i64) -> Result<&Layer, AttachError> {
        let blocks = self.blocks.len();
        let at = if index < 0 { index + blocks as i64 } else { index };
        usize::try_from(at)
            .ok()
            .and_then(|at| self.blocks.get(at))
            .map(|&i| &self.layers[i])
            .ok_or(AttachError::NoBlock { index, blocks })
    }

    /// Every name there is, canonical ones first.
    pub fn all_names(&self) -> impl Iterator<Item = &str> {
        let canonical = self.points.iter().map(|point| point.name.as_str());
        canonical.chain(self.points.iter().flat_map(|point| point.aliases.iter().map(String::as_str)))
    }
}

/// Declares points and layers while a model is built.
#[derive(Debug, Default)]
pub struct PointTableBuilder {
    table: PointTable,
}

impl PointTableBuilder {
    /// Declares a point. A name that is taken is an error.
    pub fn point(&mut self, point: Point) -> Result<PointId, AttachError> {
        let id = PointId(self.table.points.len() as u32);
        let taken = point.names().find(|name| self.table.by_name.contains_key(*name));
        if let Some(name) = taken {
            return Err(AttachError::DuplicatePoint(name.to_string()));
        }
        for name in point.names() {
            self.table.by_name.insert(name.to_string(), id);
        }
        self.table.points.push(point);
        Ok(id)
    }

    /// Declares the module at `path`, whose input and output pass at these points. `path.hook_in`, `path.hook_out` and the
    /// bare path become names of the points, unless they are already.
    pub fn layer(&mut self, path: &str, input: PointId, output: PointId) -> Result<(), AttachError> {
        if self.table.by_path.contains_key(path) {
            return Err(AttachError::DuplicatePoint(path.to_string()));
        }
        self.add_name(input, format!("{path}.hook_in"))?;
        self.add_name(output, format!("{path}.hook_out"))?;
        self.add_name(output, path.to_string())?;
        self.table.by_path.insert(path.to_string(), self.table.layers.len());
        self.table.layers.push(Layer { path: path.to_string(), input, output });
        Ok(())
    }

    /// Says that the layer declared last is the next transformer block.
    pub fn mark_block(&mut self) {
        if let Some(last) = self.table.layers.len().checked_sub(1) {
            self.table.blocks.push(last);
        }
    }

    /// All points so far, for what can be said of them only when the model is complete.
    pub fn points_mut(&mut self) -> impl Iterator<Item = &mut Point> {
        self.table.points.iter_mut()
    }

    /// The finished table.
    pub fn build(self) -> Arc<PointTable> {
        Arc::new(self.table)
    }

    fn add_name(&mut self, id: PointId, name: String) -> Result<(), AttachError> {
        match self.table.by_name.get(&name) {
            Some(owner) if *owner == id => Ok(()),
            Some(_) => Err(AttachError::DuplicatePoint(name)),
            None => {
                self.table.by_name.insert(name.clone(), id);
                self.table.points[id.0 as usize].aliases.push(name);
                Ok(())
            }
        }
    }
}
