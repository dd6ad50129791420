//! Switching hooks of runs that go on. The guard has seen the token before anything comes here.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use tenterhook_record::run::{HookRequest, ask};

use super::App;
use crate::error::Refusal;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    enabled: bool,
}

pub(super) async fn switch(
    State(app): State<Arc<App>>,
    Path((run, hook)): Path<(String, String)>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let Switch { enabled } = serde_json::from_slice(&body).map_err(|error| {
        Refusal::bad_request(format!("the body must be {{\"enabled\": true or false}}: {error}"))
    })?;
    app.answer(move |app| {
        let follower = app.followers.get(&run)?;
        {
            let reading = follower.look();
            if !reading.account.is_live() {
                return Err(Refusal::new(
                    StatusCode::CONFLICT,
                    "the run does not go on, so its hooks stay as they are",
                ));
            }
            if !reading.account.summary.record.hooks.iter().any(|known| known["id"] == hook.as_str()) {
                return Err(Refusal::not_found("the run has no such hook"));
            }
        }
        let request = HookRequest { hook, enabled, by: "dashboard".to_string() };
        let id = ask(follower.dir(), &request).map_err(|error| Refusal::unreadable(error.to_string()))?;
        Ok((StatusCode::ACCEPTED, Json(json!({ "request": id }))).into_response())
    })
    .await
}
