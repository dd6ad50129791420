//! Activation patching: a run per cell, each from where its patch begins.

use std::collections::BTreeMap;

use candle_core::Tensor;
use tenterhook_hooks::Report;

use super::contrast::Contrast;
use super::grid::{Method, PatchingGrid};
use super::hooks::{Part, Patch, patched};
use super::runs::{Lab, Run, Start, bits, repeated};
use super::sweep::{Plan, Sweep, SweptPoint};
use crate::error::LensError;
use crate::language_model::LanguageModel;

impl LanguageModel {
    /// Patches every place of the sweep in turn and measures. Hooks that are registered take part in all runs. `on_cell` hears how many
    /// cells of how many are done.
    ///
    /// The numbers have the bits of a whole run per cell. Blocks before a patch are not run again, and a patch that changes no bit is not
    /// run at all.
    pub fn activation_patching(
        &self,
        contrast: &Contrast,
        sweep: &Sweep,
        mut on_cell: impl FnMut(usize, usize),
    ) -> Result<(PatchingGrid, Report), LensError> {
        let mut lab = Lab::new(self, contrast)?;
        let plan = sweep.plan(self, contrast.length())?;
        let (source, base) = contrast.source_and_base();
        let (source, base) = (lab.run(source, &plan.names())?, lab.run(base, &plan.names())?);
        let batch_size = match self.hooks().list_hooks().is_empty() {
            true => sweep.batch_size,
            // Somebody else's hook may well be for one sequence.
            false => 1,
        };
        let mut cells =
            Cells { lab, source, base, batch_size, exact_batches: BTreeMap::new(), largest_batch: 1 };
        let (total, mut values) = (plan.cells(), Vec::with_capacity(plan.cells()));
        for (point, parts) in plan.points.iter().zip(&plan.parts) {
            cells.measure(point, parts, &mut values, &mut |done| on_cell(done, total))?;
        }
        let layers = cells.lab.layers();
        let naive = (layers * (total + 2)) as u64;
        let metrics = (cells.source.metric, cells.base.metric);
        let costs = (cells.lab.block_evaluations, naive);
        let frame = Plan::into_frame(plan, Method::Exact);
        let grid = PatchingGrid::new(frame, contrast, metrics, &values, costs);
        Ok((PatchingGrid { largest_batch: cells.largest_batch, ..grid }, cells.lab.report))
    }
}

/// The two runs, and how cells are run together.
struct Cells<'a> {
    lab: Lab<'a>,
    source: Run,
    base: Run,
    batch_size: usize,
    /// Sizes of batches that were tried, and whether each sequence had the bits it has alone.
    exact_batches: BTreeMap<usize, bool>,
    largest_batch: usize,
}

impl Cells<'_> {
    /// The metric with each of these parts of a point patched, added to `values`.
    fn measure(
        &mut self,
        point: &SweptPoint,
        parts: &[Part],
        values: &mut Vec<f32>,
        on_cell: &mut dyn FnMut(usize),
    ) -> Result<(), LensError> {
        let first = values.len();
        values.resize(first + parts.len(), self.base.metric);
        let changes = self.changes(point, parts)?;
        let changed: Vec<usize> = (0..parts.len()).filter(|cell| changes[*cell]).collect();
        let mut done = first + parts.len() - changed.len();
        on_cell(done);
        for cells in changed.chunks(self.batch_size) {
            let size = if self.is_exact(point, cells.len())? { cells.len() } else { 1 };
            for cells in cells.chunks(size) {
                let batch: Vec<Part> = cells.iter().map(|cell| parts[*cell]).collect();
                let logits = self.patched_logits(point, batch)?;
                self.largest_batch = self.largest_batch.max(cells.len());
                for (row, cell) in cells.iter().enumerate() {
                    values[first + cell] = self.lab.metric().measure(&logits.get(row)?)?;
                }
                done += cells.len();
                on_cell(done);
            }
        }
        Ok(())
    }

    fn patched_logits(&mut self, point: &SweptPoint, parts: Vec<Part>) -> Result<Tensor, LensError> {
        let source = self.source.value(&point.name)?;
        if let Start::After(block) = point.start {
            let stream = repeated(&self.base.streams[block + 1], parts.len())?;
            return self.lab.go_on_from(block + 1, patched(&stream, source, &point.axes, &parts)?);
        }
        let rows = parts.len();
        let patch = Patch { point: point.name.clone(), source: source.clone(), parts };
        self.lab.go_on(&self.base, point.start, rows, vec![Box::new(patch)])
    }

    /// Per part, whether the two runs differ in it.
    fn changes(&self, point: &SweptPoint, parts: &[Part]) -> Result<Vec<bool>, LensError> {
        let place = |run: &Run| point.axes.by_place(run.value(&point.name)?).map_err(LensError::from);
        let (source, base) = (place(&self.source)?, place(&self.base)?);
        let (positions, heads, size) = source.dims3()?;
        let (source, base) = (bits(&source)?, bits(&base)?);
        let differs = |position: usize, head: usize| {
            let first = (position * heads + head) * size;
            source[first..first + size] != base[first..first + size]
        };
        let changes = |part: &Part| {
            let mut all = (0..positions).flat_map(|position| (0..heads).map(move |head| (position, head)));
            all.any(|(position, head)| {
                part.position.is_none_or(|one| one == position)
                    && part.head.is_none_or(|one| one == head)
                    && differs(position, head)
            })
        };
        Ok(parts.iter().map(changes).collect())
    }

    fn is_exact(&mut self, point: &SweptPoint, rows: usize) -> Result<bool, LensError> {
        // What is computed for costly points only is not tried out.
        if rows == 1 || point.costly {
            return Ok(rows == 1);
        }
        if let Some(known) = self.exact_batches.get(&rows) {
            return Ok(*known);
        }
        let exact = self.lab.batches_exactly(&self.base, rows)?;
        self.exact_batches.insert(rows, exact);
        Ok(exact)
    }
}
