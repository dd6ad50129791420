//! A hook that writes down all it hears, and may do something about it.

use candle_core::Tensor;
use tenterhook::hooks::{
    At, BatchInfo, CheckpointInfo, ClipInfo, Cx, Hook, HookResult, Metrics, MetricsRow, NamedGrads,
    RunStatus, Site, Want,
};

use crate::small::Notes;

type Reaction = Box<dyn FnMut(&str, &mut Cx) -> HookResult + Send>;

/// Notes every event as a line, such as `on_train_batch_end words 3`.
pub(crate) struct Recorder {
    notes: Notes,
    wants: Vec<Want>,
    react: Reaction,
}

impl Recorder {
    pub(crate) fn new(notes: &Notes) -> Self {
        Self::reacting(notes, |_, _| Ok(()))
    }

    /// The same, with something to be done at every line.
    pub(crate) fn reacting(
        notes: &Notes,
        react: impl FnMut(&str, &mut Cx) -> HookResult + Send + 'static,
    ) -> Self {
        Self { notes: notes.clone(), wants: Vec::new(), react: Box::new(react) }
    }

    /// The same, looking at a point too: its value and its gradient.
    pub(crate) fn at(self, point: &str) -> Self {
        Self { wants: vec![Want::observe(point), Want::observe_gradient(point)], ..self }
    }

    fn hear(&mut self, line: String, cx: &mut Cx) -> HookResult {
        self.notes.add(line.as_str());
        (self.react)(&line, cx)
    }
}

fn batch_line(event: &str, batch: &BatchInfo) -> String {
    format!("{event} {} {}", batch.dataloader_name, batch.batch_idx)
}

impl Hook for Recorder {
    fn kind(&self) -> &str {
        "recorder"
    }

    fn wants(&self) -> Vec<Want> {
        self.wants.clone()
    }

    fn observe(&mut self, at: &At, _x: &Tensor, cx: &mut Cx) -> HookResult {
        let what = if at.site() == Site::Gradient { "gradient at" } else { "value at" };
        self.hear(format!("{what} {}", at.name()), cx)
    }

    fn update(&mut self, _grads: &mut NamedGrads, cx: &mut Cx) -> HookResult {
        self.hear("update".to_string(), cx)
    }

    fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
        self.hear("on_train_start".to_string(), cx)
    }

    fn on_epoch_start(&mut self, epoch: u64, cx: &mut Cx) -> HookResult {
        self.hear(format!("on_epoch_start {epoch}"), cx)
    }

    fn on_train_batch_start(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        self.hear(batch_line("on_train_batch_start", batch), cx)
    }

    fn on_after_forward(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        self.hear(batch_line("on_after_forward", batch), cx)
    }

    fn on_before_backward(&mut self, _loss: f64, cx: &mut Cx) -> HookResult {
        self.hear("on_before_backward".to_string(), cx)
    }

    fn on_after_backward(&mut self, _grads: &NamedGrads, cx: &mut Cx) -> HookResult {
        self.hear("on_after_backward".to_string(), cx)
    }

    fn on_gradient_clip(&mut self, _clip: ClipInfo, cx: &mut Cx) -> HookResult {
        self.hear("on_gradient_clip".to_string(), cx)
    }

    fn on_before_optimizer_step(&mut self, optimizer_idx: usize, cx: &mut Cx) -> HookResult {
        self.hear(format!("on_before_optimizer_step {optimizer_idx}"), cx)
    }

    fn on_after_optimizer_step(&mut self, optimizer_idx: usize, cx: &mut Cx) -> HookResult {
        self.hear(format!("on_after_optimizer_step {optimizer_idx}"), cx)
    }

    fn on_train_batch_end(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        self.hear(batch_line("on_train_batch_end", batch), cx)
    }

    fn on_validation_start(&mut self, epoch: u64, cx: &mut Cx) -> HookResult {
        self.hear(format!("on_validation_start {epoch}"), cx)
    }

    fn on_validation_batch_start(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        self.hear(batch_line("on_validation_batch_start", batch), cx)
    }

    fn on_validation_batch_end(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        self.hear(batch_line("on_validation_batch_end", batch), cx)
    }

    fn on_validation_end(&mut self, _metrics: &Metrics, cx: &mut Cx) -> HookResult {
        self.hear("on_validation_end".to_string(), cx)
    }

    fn on_checkpoint_save(&mut self, checkpoint: &CheckpointInfo, cx: &mut Cx) -> HookResult {
        self.hear(format!("on_checkpoint_save {}", checkpoint.name), cx)
    }

    fn on_checkpoint_load(&mut self, checkpoint: &CheckpointInfo, cx: &mut Cx) -> HookResult {
        self.hear(format!("on_checkpoint_load {}", checkpoint.name), cx)
    }

    fn on_epoch_end(&mut self, epoch: u64, cx: &mut Cx) -> HookResult {
        self.hear(format!("on_epoch_end {epoch}"), cx)
    }

    fn on_metrics(&mut self, row: &MetricsRow, cx: &mut Cx) -> HookResult {
        self.hear(format!("on_metrics {}", row.step), cx)
    }

    fn on_exception(&mut self, error: &str, cx: &mut Cx) -> HookResult {
        self.hear(format!("on_exception {error}"), cx)
    }

    fn on_train_end(&mut self, status: RunStatus, cx: &mut Cx) -> HookResult {
        self.hear(format!("on_train_end {}", status.as_str()), cx)
    }
}
