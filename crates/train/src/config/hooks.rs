//! The hooks of a configuration, checked against the kinds there are.

use tenterhook_hooks::{AttachError, HookRegistry, OptionInfo};

use super::path;
use super::problems::Problems;
use super::run::{RunConfig, Section};
use super::section::{in_words, unknown_key};

impl RunConfig {
    /// Notes what is wrong with the hooks: unknown kinds and options, values, missing options.
    pub fn check_hooks(&self, registry: &HookRegistry, problems: &mut Problems) {
        check_hooks(&self.hooks, registry, problems);
    }
}

/// Notes what is wrong with these hooks.
pub fn check_hooks(hooks: &[Section], registry: &HookRegistry, problems: &mut Problems) {
    hooks.iter().for_each(|hook| check(hook, registry, problems));
}

fn check(hook: &Section, registry: &HookRegistry, problems: &mut Problems) {
    let error = match registry.build(&hook.value) {
        Ok(_) => return,
        Err(error) => error,
    };
    match error {
        AttachError::UnknownKind { kind, nearest } => {
            let message = format!("there is no hook kind `{kind}`");
            problems.suggest(path::join(&hook.path, "kind"), message, nearest.into_iter().next());
        }
        AttachError::BadOptions { kind, problems: messages } => {
            let options = registry.kind(&kind).map(|kind| kind.options.clone()).unwrap_or_default();
            let options: Vec<OptionInfo> =
                options.into_iter().chain(HookRegistry::common_options()).collect();
            for message in messages {
                note(hook, &options, &message, problems);
            }
        }
        other => problems.add(hook.path.clone(), other.to_string()),
    }
}

/// Finds the key that a message is about: what is quoted first, if it is one.
fn note(hook: &Section, options: &[OptionInfo], message: &str, problems: &mut Problems) {
    let quoted = message.split('`').nth(1).unwrap_or_default();
    let names = || options.iter().flat_map(|option| std::iter::once(&option.name).chain(&option.aliases));
    let is_given = hook.value.get(quoted).is_some();
    let at = path::join(&hook.path, quoted);
    if is_given && message.starts_with("unknown option") {
        let (message, near) = unknown_key(quoted, names().map(String::as_str).collect());
        problems.suggest(at, message, near);
    } else if is_given && message.starts_with('`') {
        let rest = message[quoted.len() + 2..].trim_start_matches(':').trim_start();
        problems.add(at, in_words(rest));
    } else if message.starts_with("option") && names().any(|name| name == quoted) {
        problems.add(at, "missing key");
    } else {
        problems.add(hook.path.clone(), message);
    }
}
