//! Recorded configurations lack the secrets of hooks: what can be done without them.

use serde_json::Value;

use super::document::Document;
use super::path;
use super::problems::Problems;
use super::resume::only_tells;
use super::write::is_redacted;

impl Document {
    /// Leaves out the hooks of a recorded configuration whose secrets were not recorded, such as a webhook's `url`, and returns their ids.
    /// A hook that does more than tell cannot be left out: that is a problem.
    pub fn without_secret_hooks(mut self) -> Result<(Self, Vec<String>), Problems> {
        let mut problems = self.problems();
        let Some(hooks) = self.value["hooks"].as_array() else { return Ok((self, Vec::new())) };
        let secret = |hook: &Value| -> Vec<String> {
            let options = hook.as_object().into_iter().flatten();
            options.filter(|(_, value)| is_redacted(value)).map(|(key, _)| key.clone()).collect()
        };
        for (index, hook) in hooks.iter().enumerate().filter(|(_, hook)| !only_tells(hook)) {
            for key in secret(hook) {
                let at = path::join(&path::element("hooks", index), &key);
                problems.add(
                    at,
                    "is secret and was not recorded, and without this hook the results may be others; use the \
                     configuration that the run was started with",
                );
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let is_kept = |hook: &&Value| secret(hook).is_empty();
        let ids = tenterhook_record::differences::hook_ids(&hooks.iter().collect::<Vec<_>>());
        let left_out: Vec<String> =
            ids.into_iter().zip(hooks).filter(|(_, hook)| !is_kept(hook)).map(|(id, _)| id).collect();
        if !left_out.is_empty() {
            let kept: Value = hooks.iter().filter(is_kept).cloned().collect();
            self.replace("hooks", kept);
        }
        Ok((self, left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;

    const HOOKS: &str = "[[hooks]]\nkind = \"webhook\"\nurl = \"<redacted>\"\n[[hooks]]\nkind = \"webhook\"\nurl_env = \"A\"\n";

    #[test]
    fn a_hook_that_only_tells_is_left_out() {
        let document = Document::parse(HOOKS, Format::Toml).unwrap();
        let (document, left_out) = document.without_secret_hooks().unwrap();
        assert_eq!(left_out, ["webhook"]);
        assert_eq!(document.value()["hooks"], serde_json::json!([{"kind": "webhook", "url_env": "A"}]));
        let mut problems = document.problems();
        problems.add("hooks[0].url_env", "x");
        assert_eq!(problems.to_string(), "hooks[0].url_env: x", "the lines of the others have changed");
        let (_, left_out) = document.without_secret_hooks().unwrap();
        assert_eq!(left_out, [""; 0]);
    }

    #[test]
    fn a_hook_that_may_change_the_results_cannot_be_left_out() {
        let text = format!("{HOOKS}[[hooks]]\nkind = \"mine.Hook\"\ntoken = \"<redacted>\"\n");
        let problems = Document::parse(&text, Format::Toml).unwrap().without_secret_hooks().unwrap_err();
        assert_eq!(problems.len(), 1);
        assert!(problems.to_string().starts_with("line 9: hooks[2].token: is secret"), "{problems}");
    }
}
