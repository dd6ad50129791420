//! The spine of Tenterhook: hooks on named places of a model.
//!
//! A model declares its [`Point`]s in a [`PointTable`] and calls [`Pass::tap`] where their tensors pass. A [`Hook`] says which points it
//! [`Want`]s; a [`HookManager`] keeps the hooks in order and makes a [`Pass`] for every forward. Nobody there: one load and a
//! branch. Somebody there: the call is guarded, timed and written into a [`Receipt`], so that no hook can silently do nothing.
//!
//! This crate knows tensors and nothing else: no models, no training, no files.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use tenterhook_hooks::{HookManager, PassSetup, Point, PointTable, hook_fn};
//!
//! // A model declares where tensors pass ...
//! let mut points = PointTable::builder();
//! let hidden = points.point(Point::new("net.hidden", "batch neuron"))?;
//! let hooks = HookManager::new(points.build());
//! hooks.register(hook_fn::edit("net.*", |_, x, _| Ok(Some((x * 2.0)?))))?;
//!
//! // ... and takes a pass along when it computes.
//! let pass = hooks.pass(PassSetup::default());
//! let x = pass.tap(hidden, Tensor::new(&[[1f32, 2.0]], &Device::Cpu)?)?;
//! assert_eq!(x.to_vec2::<f32>()?, [[2.0, 4.0]]);
//! assert_eq!(pass.report().hooks[0].receipt.elements_changed, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backtrace;
mod batch;
mod board;
mod clock;
mod cx;
mod error;
mod event;
mod exclusive;
mod gradient_tap;
mod grads;
mod guard;
mod hook;
pub mod hook_fn;
mod hooked;
mod inspect;
pub mod kinds;
mod life;
mod manager;
mod mock;
mod mock_trainer;
mod options;
mod part;
mod pass;
mod permutation;
mod plan;
mod point;
mod positions;
pub mod random;
mod receipt;
mod registry;
mod request;
mod rows;
mod selector;
mod slot;
mod state_store;
mod states;
mod statistics;
mod sync;
mod tensors;
mod train_state;

pub use batch::{Batch, IGNORED};
pub use board::Board;
pub use clock::{Clock, Gradients, Mode, PassSetup};
pub use cx::Cx;
pub use error::{AttachError, BoxError, HookError, HookResult, nearest};
pub use event::{BatchInfo, CheckpointInfo, ClipInfo, Event, Metrics, MetricsRow, RunStatus};
pub use grads::NamedGrads;
pub use hook::{Access, At, Hook, Site, Want};
pub use hooked::{Bound, Hooked};
pub use inspect::{TensorSummary, inspect};
pub use kinds::capture::{Capture, CaptureOptions};
pub use kinds::debug::{Action, Condition, Debug, DebugOptions, Finding};
pub use kinds::gradient_flow::{GradientFlow, GradientFlowOptions, LayerFlow, Verdict};
pub use kinds::monitor::{Histogram, LayerStats, Metric, Monitor, MonitorOptions};
pub use life::{Ended, Events, Published};
pub use manager::{HookInfo, HookManager, ManagerConfig, SavedHook, ScopedHook};
pub use mock::Mock;
pub use mock_trainer::MockTrainer;
pub use options::{Every, HookOptions, OnError};
pub use part::{Chosen, Part, Refused};
pub use pass::{GradientObserver, Pass};
pub use permutation::Permutation;
pub use plan::Listens;
pub use point::{Layer, Point, PointId, PointTable, PointTableBuilder};
pub use positions::Positions;
pub use receipt::{Control, HookReceipt, Receipt, Report};
pub use registry::{HookRegistry, KindInfo, OptionInfo};
pub use request::Request;
pub use rows::{Places, Rows, without_padding};
pub use selector::{Match, Selector, glob_matches};
pub use states::{AtLimit, CaptureLimits, CapturedState, Retention, Spill};
pub use train_state::{GroupInfo, OptimizerInfo, ParamInfo, TrainState};
