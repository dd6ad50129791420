//! Path patching from every head in turn.

use tenterhook_hooks::Report;

use super::contrast::Contrast;
use super::grid::{Frame, Method, PatchingGrid};
use super::path::{PathOptions, Paths};
use super::places::{Receiver, Sender};
use crate::error::LensError;
use crate::language_model::LanguageModel;

impl LanguageModel {
    /// [`path_patching`](Self::path_patching) from each head alone to the receivers: which heads tell them what they know. A row per
    /// block, a column per head; heads that no receiver can hear change nothing. `on_cell` hears how many cells of how many are done.
    pub fn path_patching_sweep(
        &self,
        contrast: &Contrast,
        receivers: &[Receiver],
        options: PathOptions,
        mut on_cell: impl FnMut(usize, usize),
    ) -> Result<(PatchingGrid, Report), LensError> {
        let config = self.model().config();
        receivers.iter().try_for_each(|receiver| receiver.check(config))?;
        let Some(reach) = receivers.iter().map(|receiver| receiver.reads_at(config)).max() else {
            return Err(LensError::BadInput("a path needs a receiver".to_string()));
        };
        let mut paths = Paths::new(self, contrast, receivers, options)?;
        let (layers, heads) = (config.layers, config.heads);
        let mut values = Vec::with_capacity(layers * heads);
        for layer in 0..layers {
            for head in 0..heads {
                let sender = Sender::Head { layer, head };
                values.push(match sender.writes_at(config) < reach {
                    true => paths.measure(&[sender])?,
                    false => paths.base.metric,
                });
                on_cell(values.len(), layers * heads);
            }
        }
        let numbers = |count: usize| (0..count).map(|number| number.to_string()).collect();
        let ends: Vec<String> = receivers.iter().map(ToString::to_string).collect();
        let frame = Frame {
            method: Method::Path,
            sweep: format!("heads to {}", ends.join(", ")),
            rows: numbers(layers),
            column_axis: "head".to_string(),
            columns: numbers(heads),
        };
        let metrics = (paths.source.metric, paths.base.metric);
        let naive = (layers * (2 * layers * heads + 2)) as u64;
        let costs = (paths.lab.block_evaluations, naive);
        Ok((PatchingGrid::new(frame, contrast, metrics, &values, costs), paths.lab.report))
    }
}
