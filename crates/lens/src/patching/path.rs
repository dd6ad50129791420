//! Path patching: what a sender tells a receiver, and nobody else.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{Hook, Report};
use tenterhook_models::config::TransformerConfig;

use super::contrast::{Contrast, Direction};
use super::grid::{clean_and_corrupted, normalise};
use super::hooks::{Axes, Keep, Part, Passed, Patch, Replace, patched, take};
use super::places::{Receiver, Sender};
use super::runs::{Lab, Run, Start, absent};
use crate::error::LensError;
use crate::language_model::LanguageModel;

/// How paths are patched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathOptions {
    /// Whether paths through MLPs are cut. Without it an MLP between sender and receiver passes on what it hears; heads never do.
    pub freeze_mlps: bool,
}

/// What came of patching paths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathPatching {
    /// Where the paths begin.
    pub senders: Vec<Sender>,
    /// Where they end.
    pub receivers: Vec<Receiver>,
    /// How.
    pub options: PathOptions,
    /// Which run was patched.
    pub direction: Direction,
    /// What was measured.
    pub metric: String,
    /// The metric of the clean prompt.
    pub clean: f32,
    /// The metric of the corrupted prompt.
    pub corrupted: f32,
    /// The metric with the paths patched.
    pub value: f32,
    /// The same on a scale on which the corrupted prompt is 0 and the clean one 1. None where both have the same metric.
    pub normalised: Option<f32>,
    /// How many blocks were run, with the runs of both prompts.
    pub block_evaluations: u64,
    /// How many it would be with whole runs.
    pub naive_block_evaluations: u64,
}

impl LanguageModel {
    /// Lets the receivers read what they would if the senders had sent what they do in the other run, and everything between them stayed
    /// as it was: all other heads frozen, MLPs too where the options say so. Everybody else reads the stream of the unpatched run.
    ///
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use tenterhook_lens::LanguageModel;
    /// # use tenterhook_models::{Transformer, config::TransformerConfig};
    /// use tenterhook_lens::patching::{Contrast, LogitMetric, PathOptions};
    ///
    /// # let model = Transformer::init(TransformerConfig::gpt2(50, 16, 8, 3, 2), 42, DType::F32, &Device::Cpu)?;
    /// # let lm = LanguageModel::new(model)?;
    /// let contrast = Contrast::new(vec![1, 2, 3, 4], vec![1, 5, 3, 4], LogitMetric::logit_diff(7, 9));
    /// // What head 1 of block 0 tells the queries of head 0 of block 2.
    /// let (path, _) = lm.path_patching(&contrast, &["0.1".parse()?], &["2.0.q".parse()?], PathOptions::default())?;
    /// assert_ne!(path.value, path.corrupted);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn path_patching(
        &self,
        contrast: &Contrast,
        senders: &[Sender],
        receivers: &[Receiver],
        options: PathOptions,
    ) -> Result<(PathPatching, Report), LensError> {
        check_paths(senders, receivers, self.model().config())?;
        let mut paths = Paths::new(self, contrast, receivers, options)?;
        let value = paths.measure(senders)?;
        let (source, base) = (paths.source.metric, paths.base.metric);
        let (clean, corrupted) = clean_and_corrupted(contrast.direction, source, base);
        let found = PathPatching {
            senders: senders.to_vec(),
            receivers: receivers.to_vec(),
            options,
            direction: contrast.direction,
            metric: contrast.metric.to_string(),
            clean,
            corrupted,
            value,
            normalised: normalise(value, clean, corrupted),
            block_evaluations: paths.lab.block_evaluations,
            naive_block_evaluations: 4 * paths.lab.layers() as u64,
        };
        Ok((found, paths.lab.report))
    }
}

/// No sender without a receiver that hears it, and no receiver without a sender.
fn check_paths(
    senders: &[Sender],
    receivers: &[Receiver],
    config: &TransformerConfig,
) -> Result<(), LensError> {
    if senders.is_empty() || receivers.is_empty() {
        return Err(LensError::BadInput("a path needs a sender and a receiver".to_string()));
    }
    senders.iter().try_for_each(|sender| sender.check(config))?;
    receivers.iter().try_for_each(|receiver| receiver.check(config))?;
    let hears = |receiver: &Receiver, sender: &Sender| sender.writes_at(config) < receiver.reads_at(config);
    if let Some(deaf) = receivers.iter().find(|one| !senders.iter().any(|sender| hears(one, sender))) {
        return Err(LensError::BadInput(format!(
            "no path leads to `{deaf}`: it reads the stream before every sender"
        )));
    }
    if let Some(mute) = senders.iter().find(|one| !receivers.iter().any(|receiver| hears(receiver, one))) {
        return Err(LensError::BadInput(format!(
            "no path leads from `{mute}`: every receiver reads the stream before it"
        )));
    }
    Ok(())
}

/// Two runs, and the receivers of all paths.
pub(super) struct Paths<'a> {
    pub(super) lab: Lab<'a>,
    pub(super) source: Run,
    pub(super) base: Run,
    receivers: Vec<Receiver>,
    options: PathOptions,
}

impl<'a> Paths<'a> {
    pub(super) fn new(
        lm: &'a LanguageModel,
        contrast: &'a Contrast,
        receivers: &[Receiver],
        options: PathOptions,
    ) -> Result<Self, LensError> {
        let mut lab = Lab::new(lm, contrast)?;
        let (source, base) = contrast.source_and_base();
        let config = lm.model().config();
        let mut points: Vec<String> = (0..config.layers).map(z).collect();
        if config.mlp_width > 0 {
            points.extend((0..config.layers).map(mlp_out));
        }
        points.push(EMBEDDED.to_string());
        let (source, base) = (lab.run(source, &points)?, lab.run(base, &points)?);
        Ok(Self { lab, source, base, receivers: receivers.to_vec(), options })
    }

    /// The metric with the paths from these senders patched.
    pub(super) fn measure(&mut self, senders: &[Sender]) -> Result<f32, LensError> {
        let heard = self.hear(senders)?;
        let logits = self.tell(heard)?;
        Ok(self.lab.metric().measure(&logits.get(0)?)?)
    }

    /// What the receivers read when the senders send what they do in the other run, and all else is frozen.
    fn hear(&mut self, senders: &[Sender]) -> Result<BTreeMap<String, Tensor>, LensError> {
        let config = self.lab.lm.model().config();
        let first = senders.iter().map(Sender::block).min().unwrap_or(0);
        let last = self.receivers.iter().map(|receiver| receiver.block(config)).max().unwrap_or(0);
        let points: BTreeSet<String> = self.receivers.iter().map(|one| one.point(config).0).collect();
        let frozen = Replace { values: self.frozen(senders, first..last + 1)? };
        let passed = Passed::default();
        let keep = Keep { points: points.into_iter().collect(), gradients: false, passed: passed.clone() };
        self.lab.blocks(&self.base, first..last + 1, vec![Box::new(frozen), Box::new(keep)])?;
        Ok(take(&passed.values))
    }

    /// What heads and MLPs of these blocks put out while the senders are heard.
    fn frozen(
        &self,
        senders: &[Sender],
        blocks: std::ops::Range<usize>,
    ) -> Result<BTreeMap<String, Tensor>, LensError> {
        let mut values = BTreeMap::new();
        for block in blocks.clone() {
            values.insert(z(block), self.base.value(&z(block))?.clone());
            if self.options.freeze_mlps && self.base.values.contains_key(&mlp_out(block)) {
                values.insert(mlp_out(block), self.base.value(&mlp_out(block))?.clone());
            }
        }
        // A sender in a block that only writes after the last receiver has read says nothing to it.
        for sender in senders.iter().filter(|sender| blocks.contains(&sender.block())) {
            let (point, head) = match *sender {
                Sender::Embed => (EMBEDDED.to_string(), None),
                Sender::Head { layer, head } => (z(layer), Some(head)),
                Sender::Attn { layer } => (z(layer), None),
                Sender::Mlp { layer } => (mlp_out(layer), None),
            };
            let source = self.source.value(&point)?;
            let sent = match (values.get(&point), head) {
                (Some(before), Some(head)) => {
                    let part = Part { position: None, head: Some(head) };
                    patched(before, source, &Axes::of("batch pos head d_head"), &[part])?
                }
                _ => source.clone(),
            };
            values.insert(point, sent);
        }
        Ok(values)
    }

    /// The unpatched run, in which the receivers read what was heard.
    fn tell(&mut self, heard: BTreeMap<String, Tensor>) -> Result<Tensor, LensError> {
        let config = self.lab.lm.model().config();
        let first = self.receivers.iter().map(|receiver| receiver.block(config)).min().unwrap_or(0);
        let mut hooks: Vec<Box<dyn Hook>> = Vec::new();
        for receiver in &self.receivers {
            let (point, head) = receiver.point(config);
            let source = heard.get(&point).ok_or_else(|| absent("value", &point))?.clone();
            hooks.push(Box::new(Patch { point, source, parts: vec![Part { position: None, head }] }));
        }
        self.lab.go_on(&self.base, Start::Block(first), 1, hooks)
    }
}

/// What the tokens put into the stream.
const EMBEDDED: &str = "blocks.0.hook_resid_pre";

fn z(layer: usize) -> String {
    format!("blocks.{layer}.attn.hook_z")
}

fn mlp_out(layer: usize) -> String {
    format!("blocks.{layer}.hook_mlp_out")
}
