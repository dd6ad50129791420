//! Captured states, and the words for the limits that keep them from filling the memory.

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::HookResult;
use crate::hook::Site;

/// A tensor that a hook kept.
#[derive(Clone, Debug)]
pub struct CapturedState {
    /// The name of the point that matched.
    pub point: String,
    /// Whether it is an output (`Forward`), an input (`PreForward`) or the gradient of one of them.
    pub site: Site,
    /// The layer's index: the one given at registration, else the point's block.
    pub layer_idx: Option<usize>,
    /// The step it was captured in.
    pub step: u64,
    /// The number of the pass it was captured in, counted by the manager.
    pub pass: u64,
    /// The tensor, detached and in memory of its own.
    pub tensor: Tensor,
}

impl CapturedState {
    /// The sizes of the tensor's axes.
    pub fn shape(&self) -> &[usize] {
        self.tensor.dims()
    }

    /// Under which name it is written down: that of its point, a gradient's behind `grad.`, an input's before `/in`.
    pub fn name(&self) -> String {
        let gradient = if self.site.is_gradient() { "grad." } else { "" };
        let input = if self.is_input() { "/in" } else { "" };
        format!("{gradient}{}{input}", self.point)
    }

    /// Whether it is the input of a layer.
    pub fn is_input(&self) -> bool {
        self.site.is_input()
    }
}

/// What happens when a limit is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AtLimit {
    /// The oldest states go.
    #[default]
    DropOldest,
    /// New states are not taken.
    Refuse,
    /// The oldest states are handed to the [`Spill`].
    Spill,
}

/// How much may be kept, over all hooks of a manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CaptureLimits {
    /// At most this many states.
    pub max_captured_states: Option<usize>,
    /// At most this many MiB of tensors. Holds at every moment. What the process keeps resident can be more where states have many
    /// different sizes: allocators do not give all freed memory back at once.
    pub memory_limit_mb: Option<usize>,
    /// `max_captured_states` is enforced every so many forwards; 1 is at once.
    pub cleanup_interval: u64,
    /// What happens at a limit.
    pub at_limit: AtLimit,
}

impl Default for CaptureLimits {
    fn default() -> Self {
        Self {
            max_captured_states: None,
            memory_limit_mb: None,
            cleanup_interval: 1,
            at_limit: AtLimit::DropOldest,
        }
    }
}

/// How much one hook keeps of its own states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Retention {
    /// Everything, within the manager's limits.
    #[default]
    All,
    /// The states of the latest pass.
    Last,
    /// The newest n states.
    Ring(usize),
    /// The newest states that fit into so many bytes.
    Bytes(usize),
}

/// Where states go that no longer fit into memory: implemented by a store on disk.
pub trait Spill: Send {
    /// Takes a state over.
    fn put(&mut self, hook_id: &str, state: &CapturedState) -> HookResult;
    /// Everything taken over for this hook, oldest first.
    fn get(&mut self, hook_id: &str) -> HookResult<Vec<CapturedState>>;
    /// Forgets what was taken over: for one hook, or for all.
    fn clear(&mut self, hook_id: Option<&str>) -> HookResult;
}
