//! Testing hooks without training.

use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};

use crate::batch::Batch;
use crate::clock::PassSetup;
use crate::error::{AttachError, HookError};
use crate::event::{BatchInfo, CheckpointInfo, Event, Metrics, MetricsRow, RunStatus};
use crate::grads::NamedGrads;
use crate::hook::Hook;
use crate::life::{Ended, Events};
use crate::manager::HookManager;
use crate::options::HookOptions;
use crate::point::{Point, PointTable};
use crate::receipt::Control;
use crate::request::Request;
use crate::train_state::{GroupInfo, OptimizerInfo, ParamInfo, TrainState};

/// A trainer that trains nothing: it tells hooks whatever a test makes up, and does what they ask for.
///
/// ```
/// use tenterhook_hooks::{BatchInfo, Cx, Hook, HookResult, MockTrainer};
///
/// /// Halves the learning rate after more than ten batches with a high loss.
/// #[derive(Default)]
/// struct Careful(u32);
///
/// impl Hook for Careful {
///     fn kind(&self) -> &str {
///         "careful"
///     }
///     fn on_train_batch_end(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
///         self.0 += u32::from(batch.metrics["loss"] > 5.0);
///         if self.0 > 10 {
///             cx.scale_lr(0.5);
///         }
///         Ok(())
///     }
/// }
///
/// let mut trainer = MockTrainer::new();
/// trainer.attach(Careful::default())?;
/// (0..10).try_for_each(|_| trainer.step(15.0))?;
/// assert_eq!(trainer.lr(), 1e-3);
/// trainer.step(15.0)?;
/// assert_eq!(trainer.lr(), 5e-4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MockTrainer {
    hooks: HookManager,
    events: Events,
    /// What hooks read. A test may change it at will.
    pub state: TrainState,
    rows: Vec<MetricsRow>,
    requests: Vec<Request>,
    checkpoints: Vec<String>,
    errors: Vec<HookError>,
}

impl Default for MockTrainer {
    fn default() -> Self {
        Self::new()
    }
}

impl MockTrainer {
    /// A run with the parameters `layer.weight` and `layer.bias`, and SGD with a learning rate of 0.001.
    pub fn new() -> Self {
        let mut points = PointTable::builder();
        // A name that is new to an empty table is never refused.
        let _ = points.point(Point::new("layer.hook_out", "batch d_out"));
        let hooks = HookManager::new(points.build());
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
        let params = [("layer.bias", zeros(&[2])), ("layer.weight", zeros(&[3, 2]))];
        let params = params
            .into_iter()
            .filter_map(|(name, value)| Some(ParamInfo { name: name.to_string(), value: value.ok()? }));
        let params: Vec<ParamInfo> = params.collect();
        let group = GroupInfo {
            name: "decay".to_string(),
            lr: 1e-3,
            weight_decay: 0.01,
            momentum: 0.9,
            params: params.iter().map(|param| param.name.clone()).collect(),
        };
        let state = TrainState {
            run_id: "mock".to_string(),
            model_params: 8,
            params: params.into(),
            optimizers: vec![OptimizerInfo { kind: "sgd".to_string(), groups: vec![group] }],
            batches_per_epoch: 100,
            total_steps: Some(1000),
            ..TrainState::default()
        };
        let events = hooks.events(PassSetup::train(0));
        Self { hooks, events, state, rows: vec![], requests: vec![], checkpoints: vec![], errors: vec![] }
    }

    /// The same in a directory, for hooks that write files.
    pub fn in_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.state.run_dir = Some(dir.into());
        self
    }

    /// Attaches a hook.
    pub fn attach(&mut self, hook: impl Hook) -> Result<String, AttachError> {
        self.attach_with(hook, HookOptions::default())
    }

    /// The same with options.
    pub fn attach_with(&mut self, hook: impl Hook, options: HookOptions) -> Result<String, AttachError> {
        self.hooks.register_with(hook, options)
    }

    /// The manager.
    pub fn hooks(&self) -> &HookManager {
        &self.hooks
    }

    /// Tells the hooks of an event, and does what they ask for.
    pub fn fire(&mut self, event: Event) -> Result<(), Ended> {
        let result = self.events.fire(&self.state, event);
        self.serve();
        result
    }

    /// A step with this loss: the batch begins and ends, and a row is logged.
    pub fn step(&mut self, loss: f64) -> Result<(), Ended> {
        self.step_with(loss, &NamedGrads::default())
    }

    /// The same with gradients, which update hooks may change.
    pub fn step_with(&mut self, loss: f64, grads: &NamedGrads) -> Result<(), Ended> {
        let mut setup = PassSetup::train(self.state.step);
        setup.clock.epoch = self.state.current_epoch;
        setup.clock.batch = self.state.current_batch_idx;
        self.events = self.hooks.events(setup);
        let batch = Batch::new(vec![self.state.step]);
        let info = |metrics| BatchInfo {
            batch: &batch,
            batch_idx: self.state.current_batch_idx,
            dataloader_idx: 0,
            dataloader_name: "train",
            metrics,
            completes_step: true,
        };
        let none = Metrics::new();
        let (start, index) = (info(&none), self.state.current_batch_idx);
        self.fire(Event::TrainBatchStart(&start))?;
        self.fire(Event::BeforeBackward(loss))?;
        self.fire(Event::AfterBackward(grads))?;
        self.events.update(&self.state, grads.clone())?;
        self.fire(Event::BeforeOptimizerStep(0))?;
        self.fire(Event::AfterOptimizerStep(0))?;
        self.state.step += 1;
        self.state.latest_loss = Some(loss);
        self.state.tokens_seen += 1;
        self.events.log("loss", loss);
        let metrics = self.events.metrics();
        let end = BatchInfo { metrics: &metrics, batch_idx: index, ..start };
        self.fire(Event::TrainBatchEnd(&end))?;
        self.log()?;
        self.state.current_batch_idx += 1;
        Ok(())
    }

    /// A validation with these results.
    pub fn validate(&mut self, metrics: &[(&str, f64)]) -> Result<(), Ended> {
        let metrics: Metrics = metrics.iter().map(|(name, value)| (name.to_string(), *value)).collect();
        self.fire(Event::ValidationStart(self.state.current_epoch))?;
        metrics.iter().for_each(|(name, value)| self.events.log(name, *value));
        self.state.metrics.extend(metrics.clone());
        self.fire(Event::ValidationEnd(&metrics))?;
        self.log()
    }

    /// The end of this epoch and the start of the next.
    pub fn next_epoch(&mut self) -> Result<(), Ended> {
        self.fire(Event::EpochEnd(self.state.current_epoch))?;
        self.state.current_epoch += 1;
        self.state.current_batch_idx = 0;
        let mut setup = PassSetup::train(self.state.step);
        setup.clock.epoch = self.state.current_epoch;
        setup.clock.batch = 0;
        self.events = self.hooks.events(setup);
        self.fire(Event::EpochStart(self.state.current_epoch))
    }

    /// The end of the run.
    pub fn end(&mut self, status: RunStatus) -> Result<(), Ended> {
        self.state.status = status;
        self.fire(Event::TrainEnd(status))
    }

    /// The learning rate of the first group.
    pub fn lr(&self) -> f64 {
        self.state.lr().unwrap_or_default()
    }

    /// The reason why a hook asked for the end of the run, if one did.
    pub fn stopped(&self) -> Option<String> {
        self.events.control().map(|control| match control {
            Control::Stop { reason, .. } | Control::Abort { reason, .. } => reason,
        })
    }

    /// Every row that was logged.
    pub fn rows(&self) -> &[MetricsRow] {
        &self.rows
    }

    /// The last value of a metric in the rows.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.rows.iter().rev().find_map(|row| row.values.get(name).copied())
    }

    /// Everything that hooks asked for.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// The names of the checkpoints that were asked for and not removed.
    pub fn checkpoints(&self) -> &[String] {
        &self.checkpoints
    }

    /// Every failure of a hook.
    pub fn errors(&self) -> &[HookError] {
        &self.errors
    }

    fn log(&mut self) -> Result<(), Ended> {
        let published = self.events.take_published();
        let row = MetricsRow {
            step: self.state.step,
            epoch: self.state.current_epoch,
            values: published.metrics,
            histograms: published.histograms,
        };
        self.state.metrics.extend(row.values.clone());
        let result = self.fire(Event::Metrics(&row));
        self.rows.push(row);
        result
    }

    fn serve(&mut self) {
        self.errors.extend(self.events.take_errors());
        for (id, request) in self.events.take_requests() {
            self.requests.push(request.clone());
            match request {
                Request::SetLr { lr, .. } => self.each_group(|group| group.lr = lr),
                Request::ScaleLr { factor, .. } => self.each_group(|group| group.lr *= factor),
                Request::Freeze(names) => self.state.frozen.extend(names),
                Request::Unfreeze(names) => self.state.frozen.retain(|name| !names.contains(name)),
                Request::Save { name } => {
                    let name = name.unwrap_or_else(|| format!("step-{:08}", self.state.step));
                    self.checkpoints.push(name.clone());
                    let path = self.state.run_dir.clone().unwrap_or_default().join("checkpoints").join(&name);
                    let by = [id];
                    let info =
                        CheckpointInfo { path: &path, name: &name, step: self.state.step, requested_by: &by };
                    // Hooks that fail here stand in the errors of the next event.
                    let _ = self.events.fire(&self.state, Event::CheckpointSave(&info));
                }
                Request::Remove { name } => self.checkpoints.retain(|other| *other != name),
                Request::Validate => {}
            }
        }
    }

    fn each_group(&mut self, change: impl Fn(&mut GroupInfo)) {
        self.state.optimizers.iter_mut().flat_map(|optimizer| &mut optimizer.groups).for_each(change);
    }
}
