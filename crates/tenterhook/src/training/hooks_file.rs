//! A file of hooks: the same one for training, inference and generation.

use std::path::Path;

use serde_json::Value;
use tenterhook_hooks::{HookManager, HookRegistry};
use tenterhook_train::config::{Document, Format, Problems, RunConfig, Section, check_hooks};

/// The `[[hooks]]` of a TOML or JSON file. A whole configuration will do: only its hooks are looked at.
///
/// ```
/// use candle_core::{DType, Device};
/// use tenterhook::models::{Transformer, config::TransformerConfig};
/// use tenterhook::training::{HooksFile, registry};
///
/// let model = Transformer::init(TransformerConfig::gpt2(50, 16, 8, 2, 2), 42, DType::F32, &Device::Cpu)?;
/// let file = HooksFile::parse("[[hooks]]\nkind = \"zero_ablate\"\npoints = \"blocks.0.attn.hook_z\"\nheads = [1]\n")?;
/// assert_eq!(file.attach(&model.hook_manager(), &registry())?.attached, ["zero_ablate"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HooksFile {
    document: Document,
}

/// What became of the hooks of a file.
pub struct Attached {
    /// The ids of those that listen inside the model.
    pub attached: Vec<String>,
    /// The kinds of those that listen nowhere in it: they take part in training runs only.
    pub left_out: Vec<String>,
    /// The ids of those that listen to gradients, alone or beside values: a pass without gradients never calls them for those.
    pub gradients: Vec<String>,
}

impl HooksFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, Problems> {
        Ok(Self { document: Document::read(path)? })
    }

    /// The same from text, as TOML.
    pub fn parse(text: &str) -> Result<Self, Problems> {
        Ok(Self { document: Document::parse(text, Format::Toml)? })
    }

    /// The descriptions of its hooks, with the files they name by their full path. Every mistake in them is told at once.
    pub fn specs(&self, registry: &HookRegistry) -> Result<Vec<Value>, Problems> {
        Ok(self.sections(registry)?.into_iter().map(|section| section.value).collect())
    }

    fn sections(&self, registry: &HookRegistry) -> Result<Vec<Section>, Problems> {
        let mut problems = self.document.problems();
        let mut hooks = RunConfig::hooks_of(&self.document, &mut problems);
        for section in &mut hooks {
            section.value = registry.with_full_paths(&section.value, &self.document.directory());
        }
        check_hooks(&hooks, registry, &mut problems);
        if hooks.is_empty() && problems.is_empty() {
            problems.add("hooks", "missing: a file of hooks has tables such as [[hooks]] with a kind");
        }
        if problems.is_empty() { Ok(hooks) } else { Err(problems) }
    }

    /// Attaches its hooks to a model. Those that hear only of a training run are left out, and said to be.
    pub fn attach(&self, hooks: &HookManager, registry: &HookRegistry) -> Result<Attached, Problems> {
        let mut problems = self.document.problems();
        let (mut attached, mut left_out, mut gradients) = (Vec::new(), Vec::new(), Vec::new());
        for section in self.sections(registry)? {
            let registered = registry.build(&section.value).and_then(|(hook, options)| {
                let wants = hook.wants();
                if wants.is_empty() {
                    left_out.push(hook.kind().to_string());
                    return Ok(());
                }
                let id = hooks.register_boxed(hook, options)?;
                if wants.iter().any(|want| want.site.is_gradient()) {
                    gradients.push(id.clone());
                }
                attached.push(id);
                Ok(())
            });
            registered.unwrap_or_else(|error| problems.add(section.path, error.to_string()));
        }
        if attached.is_empty() && problems.is_empty() {
            let message = format!(
                "none listens inside the model: {} {} part in training runs only",
                left_out.join(", "),
                if left_out.len() == 1 { "takes" } else { "take" }
            );
            problems.add("hooks", message);
        }
        if problems.is_empty() { Ok(Attached { attached, left_out, gradients }) } else { Err(problems) }
    }
}
