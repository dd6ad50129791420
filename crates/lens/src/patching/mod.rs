//! What causes an answer: activations of one run patched into another.
//!
//! Two prompts of the same length differ in one thing, and so do the model's answers. An activation of the one run put into the
//! other shows how much of the answer hangs on that place. [`activation_patching`](crate::LanguageModel::activation_patching) does it
//! for every place of a sweep, [`attribution_patching`](crate::LanguageModel::attribution_patching) estimates all of them from one
//! gradient, and [`path_patching`](crate::LanguageModel::path_patching) follows single paths between components.
//!
//! ```
//! # use candle_core::{DType, Device};
//! # use tenterhook_lens::LanguageModel;
//! # use tenterhook_models::{Transformer, config::TransformerConfig};
//! use tenterhook_lens::patching::{Contrast, LogitMetric, Sweep};
//!
//! # let model = Transformer::init(TransformerConfig::gpt2(50, 16, 8, 3, 2), 42, DType::F32, &Device::Cpu)?;
//! # let lm = LanguageModel::new(model)?;
//! // Token 7 is the right answer to the clean prompt, token 9 to the corrupted one.
//! let contrast = Contrast::new(vec![1, 2, 3, 4], vec![1, 5, 3, 4], LogitMetric::logit_diff(7, 9));
//! let (grid, _) = lm.activation_patching(&contrast, &Sweep::of("resid_pre"), |_, _| ())?;
//! assert_eq!((grid.rows.len(), grid.columns.len()), (3, 4));
//! // Nothing differs before position 1, and the whole difference enters there.
//! assert_eq!(grid.values[0][0], grid.corrupted);
//! assert_eq!(grid.values[0][1], grid.clean);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attribution;
mod contrast;
mod exact;
mod grid;
mod hooks;
mod metric;
mod path;
mod path_sweep;
mod places;
mod rank;
mod runs;
mod sweep;

pub use contrast::{Contrast, Direction};
pub use grid::{Method, PatchingGrid};
pub use metric::LogitMetric;
pub use path::{PathOptions, PathPatching};
pub use places::{Receiver, Sender};
pub use sweep::{By, Sweep};
