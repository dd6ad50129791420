//! What differs between two runs.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};
use tenterhook_record::differences::{Difference, differences};

use super::App;
use super::query::Pairs;
use crate::error::Refusal;

pub(super) async fn diff(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    pairs: Pairs,
) -> Result<Response, Refusal> {
    let other = pairs.needed("other")?.to_string();
    app.answer(move |app| {
        let (a, b) = (app.facts(&id)?, app.facts(&other)?);
        let metrics = differences(&a.metrics, &b.metrics).into_iter().map(plain_key).collect::<Vec<_>>();
        app.bodies.json(&json!({
            "a": id,
            "b": other,
            "config": differences(&a.config, &b.config),
            "commit": differences(&a.commit, &b.commit),
            "data": differences(&a.data, &b.data),
            "metrics": metrics,
        }))
    })
    .await
}

/// What of a run is compared.
struct Facts {
    config: Value,
    commit: Value,
    data: Value,
    metrics: Value,
}

impl App {
    fn facts(&self, id: &str) -> Result<Facts, Refusal> {
        let follower = self.followers.get(id)?;
        let reading = follower.look();
        let (summary, config) = (&reading.account.summary, &reading.about.config);
        let config = config.parse::<toml::Table>();
        let config = config.map_err(|error| Refusal::unreadable(format!("{id}: config.toml: {error}")))?;
        let dirty = if summary.record.dirty == Some(true) { " (with changes)" } else { "" };
        Ok(Facts {
            config: serde_json::to_value(config).unwrap_or_default(),
            commit: json!({ "commit": format!("{}{dirty}", summary.record.commit) }),
            data: summary.record.data.clone(),
            metrics: json!(summary.last_values()),
        })
    }
}

/// In a path of keys `val/loss` is quoted; here it is the whole name.
fn plain_key(found: Difference) -> Difference {
    Difference { key: serde_json::from_str(&found.key).unwrap_or(found.key), ..found }
}
