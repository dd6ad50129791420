//! What differs between two runs.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};
use tenterhook_record::run::Summary;

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
        let ((a, a_config), (b, b_config)) = (app.compared(&id)?, app.compared(&other)?);
        let mut told = json!({ "a": id, "b": other });
        for (part, found) in a.differences(&a_config, &b, &b_config) {
            told[part] = json!(found);
        }
        app.bodies.json(&told)
    })
    .await
}

impl App {
    /// What of a run is compared.
    fn compared(&self, id: &str) -> Result<(Summary, Value), Refusal> {
        let follower = self.followers.get(id)?;
        let reading = follower.look();
        let config = reading.about.config.parse::<toml::Table>();
        let config = config.map_err(|error| Refusal::unreadable(format!("{id}: config.toml: {error}")))?;
        Ok((reading.account.summary.clone(), serde_json::to_value(config).unwrap_or_default()))
    }
}
