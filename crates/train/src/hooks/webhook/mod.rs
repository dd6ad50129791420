//! Messages to a chat or a pager.

mod address;
mod courier;
mod post;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use tenterhook_hooks::{
    AttachError, BatchInfo, CheckpointInfo, Cx, Hook, HookResult, Metrics, MetricsRow, RunStatus,
};
use url::Url;

use super::model_checkpoint::BestModel;
pub use address::SecretUrl;
use courier::{Counts, Courier};
use post::Post;

/// What a [`Webhook`] tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// The run ends, however it ends.
    TrainingEnd,
    /// There is a new best model.
    BestModel,
    /// The run fails.
    Error,
}

/// Where a [`Webhook`] sends what.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WebhookOptions {
    /// The environment variable that holds the address: better than `url`, as it stands in no file.
    #[serde(serialize_with = "variable_or_nothing")]
    #[schemars(extend("examples" = ["CHAT_WEBHOOK_URL"]))]
    pub url_env: Option<String>,
    /// The address. It is never written anywhere but as `https://host/<redacted>`.
    pub url: Option<SecretUrl>,
    /// What it tells of: "training_end", "best_model", "error".
    pub notify_on: Vec<Notice>,
    /// How long a message may take, and how long the end of the run waits for messages.
    pub timeout_s: f64,
    /// Allows loopback, private and link-local addresses, there also http, and redirects from one of them to another.
    pub allow_local: bool,
}

impl Default for WebhookOptions {
    fn default() -> Self {
        let notify_on = vec![Notice::TrainingEnd, Notice::BestModel];
        Self { url_env: None, url: None, notify_on, timeout_s: 10.0, allow_local: false }
    }
}

/// What may be shown of `url_env`: somebody may have put the address itself there.
fn shown_variable(name: &str) -> &str {
    if is_variable(name) { name } else { "<redacted>" }
}

fn is_variable(name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.len() <= 128 && name.chars().all(word)
}

fn variable_or_nothing<S: Serializer>(name: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    name.as_deref().map(shown_variable).serialize(serializer)
}

impl fmt::Debug for WebhookOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookOptions")
            .field("url_env", &self.url_env.as_deref().map(shown_variable))
            .field("url", &self.url)
            .field("notify_on", &self.notify_on)
            .field("timeout_s", &self.timeout_s)
            .field("allow_local", &self.allow_local)
            .finish()
    }
}

impl WebhookOptions {
    /// The address, or what is wrong, without a word of it.
    fn address(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Url, String> {
        let (name, secret) = match (&self.url_env, &self.url) {
            (Some(_), Some(_)) => return Err("`url_env` and `url` are both given; give one".to_string()),
            (None, None) => return Err("there is no address: give `url_env` or `url`".to_string()),
            (None, Some(url)) => ("`url`".to_string(), url.clone()),
            (Some(name), None) if !is_variable(name) => {
                let problem =
                    "`url_env` is not the name of an environment variable; an address goes into `url`";
                return Err(problem.to_string());
            }
            (Some(name), None) => {
                let value = variable(name)
                    .ok_or_else(|| format!("`url_env`: the environment variable `{name}` is not set"))?;
                (format!("`url_env`, variable `{name}`"), SecretUrl::new(value))
            }
        };
        secret.parse(self.allow_local).map_err(|problem| format!("{name}: {problem}"))
    }
}

/// Posts `{"text": "..."}` to an address when something happens.
///
/// Messages go out on a thread of their own: a dead receiver never delays a step, and never ends a run. Each is tried three times. 64 may
/// wait; `<id>/dropped` counts those that had to go, `<id>/failed` those that did not arrive.
///
/// Only https, only to public addresses, no redirects, no proxy, unless `allow_local` says otherwise.
pub struct Webhook {
    options: WebhookOptions,
    post: Post,
    courier: Option<Courier>,
    /// The counts that were published.
    published: Counts,
    /// The last best model that was told of: its step and its name.
    best: Option<(u64, String)>,
}

impl Webhook {
    /// The kind's name.
    pub const KIND: &'static str = "webhook";

    /// An address that may not be used is an error.
    pub fn new(options: WebhookOptions) -> Result<Self, AttachError> {
        Self::with_variables(options, |name| std::env::var(name).ok())
    }

    fn with_variables(
        options: WebhookOptions,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, AttachError> {
        let bad = |problems| AttachError::BadOptions { kind: Self::KIND.to_string(), problems };
        let mut problems = Vec::new();
        let timeout = Duration::try_from_secs_f64(options.timeout_s).unwrap_or_default();
        if timeout.is_zero() || timeout > Duration::from_secs(600) {
            problems
                .push(format!("`timeout_s` is {}, it must be above 0 and at most 600", options.timeout_s));
        }
        if options.notify_on.is_empty() {
            problems.push("`notify_on` is empty: nothing would be told".to_string());
        }
        let url = match options.address(variable) {
            Ok(url) if problems.is_empty() => url,
            Ok(_) => return Err(bad(problems)),
            Err(problem) => {
                problems.push(problem);
                return Err(bad(problems));
            }
        };
        let lookup = address::system_lookup();
        let pause = Duration::from_millis(500);
        let post = Post { url, allow_local: options.allow_local, timeout, pause, lookup };
        Ok(Self { options, post, courier: None, published: Counts::default(), best: None })
    }

    fn tell(&self, notice: Notice, cx: &Cx, what: impl FnOnce() -> String) {
        if let (Some(courier), true) = (&self.courier, self.options.notify_on.contains(&notice)) {
            let run = cx.state().map(|state| state.run_id.as_str()).unwrap_or_default();
            courier.send(format!("run `{run}`: {}", what()));
        }
    }

    fn tell_best(&mut self, cx: &Cx) {
        let Some(best) = cx.board().get::<BestModel>() else { return };
        let this = (best.step, best.name.clone());
        if self.best.as_ref() != Some(&this) {
            self.tell(Notice::BestModel, cx, || {
                format!(
                    "new best model `{}`: {} {} at step {}",
                    best.name, best.metric, best.score, best.step
                )
            });
            self.best = Some(this);
        }
    }

    /// Publishes the counts that have changed.
    fn publish(&mut self, cx: &mut Cx) {
        let Some(counts) = self.courier.as_ref().map(Courier::counts) else { return };
        if counts.dropped != self.published.dropped {
            cx.log(format!("{}/dropped", cx.hook_id()), counts.dropped as f64);
        }
        if counts.failed != self.published.failed {
            cx.log(format!("{}/failed", cx.hook_id()), counts.failed as f64);
        }
        self.published = counts;
    }
}

/// Where a run stands, in words.
fn place(cx: &Cx) -> String {
    let Some(state) = cx.state() else { return String::new() };
    let total = state.total_steps.map(|total| format!("/{total}")).unwrap_or_default();
    let loss = state.latest_loss.map(|loss| format!(", loss {loss}")).unwrap_or_default();
    format!("at step {}{total}{loss}", state.step)
}

impl Hook for Webhook {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn only_on_first_rank(&self) -> bool {
        true
    }

    fn on_train_start(&mut self, _cx: &mut Cx) -> HookResult {
        self.courier = Some(Courier::start(self.post.clone())?);
        self.published = Counts::default();
        Ok(())
    }

    fn on_train_batch_end(&mut self, _batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        self.publish(cx);
        Ok(())
    }

    fn on_validation_end(&mut self, _metrics: &Metrics, cx: &mut Cx) -> HookResult {
        self.publish(cx);
        Ok(())
    }

    fn on_metrics(&mut self, _row: &MetricsRow, cx: &mut Cx) -> HookResult {
        self.tell_best(cx);
        Ok(())
    }

    fn on_checkpoint_save(&mut self, _checkpoint: &CheckpointInfo, cx: &mut Cx) -> HookResult {
        self.tell_best(cx);
        Ok(())
    }

    fn on_exception(&mut self, error: &str, cx: &mut Cx) -> HookResult {
        let error: String = error.chars().take(2000).collect();
        self.tell(Notice::Error, cx, || format!("failed {}: {error}", place(cx)));
        Ok(())
    }

    fn on_train_end(&mut self, status: RunStatus, cx: &mut Cx) -> HookResult {
        self.tell_best(cx);
        self.tell(Notice::TrainingEnd, cx, || format!("training {} {}", status.as_str(), place(cx)));
        let Some(courier) = self.courier.take() else { return Ok(()) };
        let left = courier.drain(self.post.timeout);
        let Counts { failed, dropped, .. } = courier.counts();
        if left as u64 + failed + dropped > 0 {
            let to = address::shown(&self.post.url);
            tracing::warn!(to, failed, dropped, unfinished = left, "not every webhook message arrived");
        }
        Ok(())
    }

    fn save_state(&self) -> HookResult<Option<Value>> {
        Ok(Some(json!({ "best": self.best })))
    }

    fn load_state(&mut self, mut state: Value) -> HookResult {
        self.best = serde_json::from_value(state["best"].take())?;
        Ok(())
    }
}
