//! Runs that keep what patching needs, and runs that begin where a patch does.

use std::collections::BTreeMap;

use candle_core::{DType, Tensor};
use tenterhook_hooks::{Gradients, Hook, Pass, PassSetup, PointId, PointTable, Report};

use super::contrast::Contrast;
use super::hooks::{Keep, Passed, options, take};
use super::metric::LogitMetric;
use crate::error::LensError;
use crate::language_model::LanguageModel;

/// A run and what was kept of it.
pub(super) struct Run {
    pub(super) ids: Tensor,
    /// The residual stream before every block, and after the last.
    pub(super) streams: Vec<Tensor>,
    pub(super) logits: Tensor,
    /// By the canonical name of the point.
    pub(super) values: BTreeMap<String, Tensor>,
    pub(super) gradients: BTreeMap<String, Tensor>,
    pub(super) metric: f32,
}

impl Run {
    /// What passed at a point.
    pub(super) fn value(&self, point: &str) -> Result<&Tensor, LensError> {
        self.values.get(point).ok_or_else(|| absent("value", point))
    }
}

pub(super) fn absent(what: &str, point: &str) -> LensError {
    LensError::BadInput(format!("no {what} came by at `{point}`: it cannot be patched"))
}

/// Where a run begins that differs from the unpatched one at some point only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// At the tokens.
    Embed,
    /// Before this block.
    Block(usize),
    /// After this block: its output is what is patched.
    After(usize),
    /// Behind the last block.
    Unembed,
}

impl Start {
    pub(super) fn of(table: &PointTable, point: PointId) -> Self {
        let Some(block) = table.point(point).block else {
            let is_before = table.iter().any(|(id, other)| other.block.is_some() && point < id);
            return if is_before { Start::Embed } else { Start::Unembed };
        };
        match table.find(&format!("blocks.{block}.hook_resid_post")) == Some(point) {
            true => Start::After(block),
            false => Start::Block(block),
        }
    }

    /// The first block that has to be run, of so many.
    pub(super) fn first_block(self, layers: usize) -> usize {
        match self {
            Start::Embed => 0,
            Start::Block(block) => block,
            Start::After(block) => block + 1,
            Start::Unembed => layers,
        }
    }
}

/// The model, its user's hooks, and what the runs cost so far.
pub(super) struct Lab<'a> {
    pub(super) lm: &'a LanguageModel,
    pub(super) contrast: &'a Contrast,
    pub(super) report: Report,
    pub(super) block_evaluations: u64,
}

impl<'a> Lab<'a> {
    pub(super) fn new(lm: &'a LanguageModel, contrast: &'a Contrast) -> Result<Self, LensError> {
        contrast.check(lm)?;
        Ok(Self { lm, contrast, report: Report::default(), block_evaluations: 0 })
    }

    pub(super) fn layers(&self) -> usize {
        self.lm.model().config().layers
    }

    pub(super) fn metric(&self) -> &LogitMetric {
        &self.contrast.metric
    }

    /// Runs a prompt and keeps the streams and what passes at these points.
    pub(super) fn run(&mut self, ids: &[u32], points: &[String]) -> Result<Run, LensError> {
        self.run_for(ids, points, Gradients::Off)
    }

    /// The same with the gradients of the metric at these points.
    pub(super) fn run_with_gradients(&mut self, ids: &[u32], points: &[String]) -> Result<Run, LensError> {
        self.run_for(ids, points, Gradients::Activations)
    }

    fn run_for(&mut self, ids: &[u32], points: &[String], gradients: Gradients) -> Result<Run, LensError> {
        let passed = Passed::default();
        let wants_gradients = gradients != Gradients::Off;
        let keep = Keep { points: points.to_vec(), gradients: wants_gradients, passed: passed.clone() };
        let (ids, layers, lm, metric) =
            (self.lm.batch_of(ids)?, self.layers(), self.lm, self.contrast.metric.clone());
        let mut streams = Vec::with_capacity(layers + 1);
        let (logits, measured) = self.pass(gradients, vec![Box::new(keep)], |pass| {
            let model = lm.model();
            streams.push(model.embed(&ids, pass)?);
            for block in 0..layers {
                let next = model.blocks(block..block + 1, streams[block].clone(), pass)?;
                streams.push(next);
            }
            let logits = model.unembed(&streams[layers], pass)?;
            let measured = metric.of(&logits.get(0)?)?;
            if wants_gradients {
                measured.backward()?;
            }
            Ok((logits.detach(), measured.to_scalar::<f32>()?))
        })?;
        self.block_evaluations += layers as u64;
        let streams = streams.iter().map(Tensor::detach).collect();
        let (values, gradients) = (take(&passed.values), take(&passed.gradients));
        Ok(Run { ids, streams, logits, values, gradients, metric: measured })
    }

    /// Runs what comes after a patch, on so many copies of the unpatched run: the logits `[rows, pos, vocab]`.
    pub(super) fn go_on(
        &mut self,
        base: &Run,
        start: Start,
        rows: usize,
        hooks: Vec<Box<dyn Hook>>,
    ) -> Result<Tensor, LensError> {
        let first = start.first_block(self.layers());
        let (lm, layers) = (self.lm, self.layers());
        let logits = self.pass(Gradients::Off, hooks, |pass| {
            let model = lm.model();
            let x = match start {
                Start::Embed => model.embed(&repeated(&base.ids, rows)?, pass)?,
                _ => repeated(&base.streams[first], rows)?,
            };
            model.unembed(&model.blocks(first..layers, x, pass)?, pass)
        })?;
        self.block_evaluations += (rows * (layers - first)) as u64;
        Ok(logits)
    }

    /// The same where the stream itself is what is patched: `[rows, pos, d_model]` before this block.
    pub(super) fn go_on_from(&mut self, block: usize, stream: Tensor) -> Result<Tensor, LensError> {
        let (lm, layers, rows) = (self.lm, self.layers(), stream.dim(0)?);
        let logits = self.pass(Gradients::Off, vec![], |pass| {
            lm.model().unembed(&lm.model().blocks(block..layers, stream, pass)?, pass)
        })?;
        self.block_evaluations += (rows * (layers - block)) as u64;
        Ok(logits)
    }

    /// Blocks on the stream of the unpatched run, with these hooks.
    pub(super) fn blocks(
        &mut self,
        base: &Run,
        blocks: std::ops::Range<usize>,
        hooks: Vec<Box<dyn Hook>>,
    ) -> Result<(), LensError> {
        let (lm, stream) = (self.lm, base.streams[blocks.start].clone());
        self.block_evaluations += blocks.len() as u64;
        self.pass(Gradients::Off, hooks, |pass| lm.model().blocks(blocks, stream, pass).map(drop))
    }

    /// Whether so many sequences at once give the bits that each gives alone: products of other sizes may add in another order. Found out
    /// on one block, as all have the same sizes.
    pub(super) fn batches_exactly(&mut self, base: &Run, rows: usize) -> Result<bool, LensError> {
        let last = self.layers().saturating_sub(1);
        let (lm, layers) = (self.lm, self.layers());
        let (stream, logits) = self.pass(Gradients::Off, vec![], |pass| {
            let stream = lm.model().blocks(last..layers, repeated(&base.streams[last], rows)?, pass)?;
            Ok((stream.clone(), lm.model().unembed(&stream, pass)?))
        })?;
        self.block_evaluations += (rows * (layers - last)) as u64;
        let mut same = true;
        for row in 0..rows {
            same &= same_bits(&stream.get(row)?, &base.streams[layers].get(0)?)?
                && same_bits(&logits.get(row)?, &base.logits.get(0)?)?;
        }
        Ok(same)
    }

    /// One pass with the user's hooks and these. Of these, none may have nothing to do.
    fn pass<T>(
        &mut self,
        gradients: Gradients,
        hooks: Vec<Box<dyn Hook>>,
        run: impl FnOnce(&Pass) -> candle_core::Result<T>,
    ) -> Result<T, LensError> {
        let branch = self.lm.branch();
        let register = |hook| branch.hooks().register_boxed(hook, options());
        let ours = hooks.into_iter().map(register).collect::<Result<Vec<_>, _>>()?;
        let pass = branch.hooks().pass(PassSetup::default().gradients(gradients));
        let done = run(&pass).map_err(|error| LensError::of_pass(error, &pass))?;
        let mut report = pass.report();
        if let Some(idle) = report.never_fired().find(|hook| ours.contains(&hook.id)) {
            return Err(absent("value", &idle.matched.join("`, `")));
        }
        report.hooks.retain(|hook| !ours.contains(&hook.id));
        self.report.add(report);
        Ok(done)
    }
}

/// One sequence so many times.
pub(super) fn repeated(x: &Tensor, rows: usize) -> candle_core::Result<Tensor> {
    if rows == 1 {
        return Ok(x.clone());
    }
    let mut shape = x.dims().to_vec();
    shape[0] = rows;
    x.broadcast_as(shape)?.contiguous()
}

/// Whether two tensors have the same bits.
pub(super) fn same_bits(a: &Tensor, b: &Tensor) -> candle_core::Result<bool> {
    Ok(bits(a)? == bits(b)?)
}

/// The bits of all values. Every smaller type fits into f64 as it is.
pub(super) fn bits(x: &Tensor) -> candle_core::Result<Vec<u64>> {
    let values: Vec<f64> = x.flatten_all()?.to_dtype(DType::F64)?.to_vec1()?;
    Ok(values.into_iter().map(f64::to_bits).collect())
}
