//! The `[hooks_config]` section: switches for the usual hooks, as another way to write `[[hooks]]`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tenterhook_hooks::nearest;

use super::path;
use super::problems::Problems;
use super::run::Section;

/// Options of a hook.
type Options = Map<String, Value>;

/// Switches for the usual hooks, and the user's own by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HooksConfig {
    /// Adds `console_log`.
    pub enable_logging_hook: bool,
    /// Adds `gradient_monitor`.
    pub enable_gradient_monitor: bool,
    /// Its options.
    pub gradient_monitor_config: Option<Options>,
    /// Adds `model_checkpoint`.
    pub enable_model_checkpoint_hook: bool,
    /// Its options.
    pub model_checkpoint_config: Option<Options>,
    /// Adds `early_stopping`.
    pub enable_early_stopping_hook: bool,
    /// Its options.
    pub early_stopping_config: Option<Options>,
    /// Adds `lr_monitor`.
    pub enable_lr_monitor: bool,
    /// Its options.
    pub lr_monitor_config: Option<Options>,
    /// Kinds of further hooks, in the order they run.
    pub hook_classes: Vec<String>,
    /// Options of the `hook_classes`, by kind.
    pub hook_configs: BTreeMap<String, Options>,
}

/// A switch: its key, whether it is on, the kind it stands for, the key of its options, and these.
type Switch<'a> = (&'static str, bool, &'static str, &'static str, &'a Option<Options>);

impl HooksConfig {
    /// The hooks that this stands for: the user's first.
    pub(super) fn expand(&self, at: &str, problems: &mut Problems) -> Vec<Section> {
        let configs = path::join(at, "hook_configs");
        for class in self.hook_configs.keys().filter(|class| !self.hook_classes.contains(*class)) {
            let near = nearest(class, self.hook_classes.iter().map(String::as_str), 1).pop();
            let message = "is not among `hook_classes`, so these options would do nothing";
            problems.suggest(path::join(&configs, class), message, near);
        }
        let mut hooks = Vec::new();
        for (index, class) in self.hook_classes.iter().enumerate() {
            let place = path::element(&path::join(at, "hook_classes"), index);
            if self.hook_classes[..index].contains(class) {
                problems.add(place, format!("`{class}` is listed twice"));
                continue;
            }
            let options = self.hook_configs.get(class);
            let place = if options.is_some() { path::join(&configs, class) } else { place };
            hooks.push(hook(class, options, place, problems));
        }
        for (switch, is_on, kind, key, options) in self.switches() {
            match (is_on, options) {
                (true, Some(_)) => hooks.push(hook(kind, options.as_ref(), path::join(at, key), problems)),
                (true, None) => hooks.push(hook(kind, None, path::join(at, switch), problems)),
                (false, Some(_)) => {
                    let message = format!("would do nothing without {switch} = true");
                    problems.add(path::join(at, key), message);
                }
                (false, None) => {}
            }
        }
        hooks
    }

    fn switches(&self) -> [Switch<'_>; 5] {
        let gradients = &self.gradient_monitor_config;
        let checkpoints = &self.model_checkpoint_config;
        let stopping = &self.early_stopping_config;
        [
            ("enable_logging_hook", self.enable_logging_hook, "console_log", "", &None),
            (
                "enable_gradient_monitor",
                self.enable_gradient_monitor,
                "gradient_monitor",
                "gradient_monitor_config",
                gradients,
            ),
            (
                "enable_model_checkpoint_hook",
                self.enable_model_checkpoint_hook,
                "model_checkpoint",
                "model_checkpoint_config",
                checkpoints,
            ),
            (
                "enable_early_stopping_hook",
                self.enable_early_stopping_hook,
                "early_stopping",
                "early_stopping_config",
                stopping,
            ),
            (
                "enable_lr_monitor",
                self.enable_lr_monitor,
                "lr_monitor",
                "lr_monitor_config",
                &self.lr_monitor_config,
            ),
        ]
    }
}

fn hook(kind: &str, options: Option<&Options>, place: String, problems: &mut Problems) -> Section {
    let mut value = Map::from_iter([("kind".to_string(), kind.into())]);
    for (key, option) in options.into_iter().flatten() {
        if key == "kind" {
            problems.add(path::join(&place, key), format!("the kind is `{kind}` already"));
        } else {
            value.insert(key.clone(), option.clone());
        }
    }
    Section { path: place, value: Value::Object(value) }
}
