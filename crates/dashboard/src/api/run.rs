//! One run: all about it, and what happens to it.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::json;

use super::App;
use crate::error::Refusal;
use crate::events;

pub(super) async fn about(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Refusal> {
    app.answer(move |app| {
        let follower = app.followers.get(&id)?;
        let told = {
            let reading = follower.look();
            let mut told = reading.about_json();
            told["config"] = json!(reading.about.config);
            told
        };
        app.bodies.json(&told)
    })
    .await
}

pub(super) async fn events(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let room = app.streams.room()?;
    let this = Arc::clone(&app);
    let begin = tokio::task::spawn_blocking(move || {
        let follower = this.followers.get(&id)?;
        let (hello, receiver) = follower.listen();
        Ok((follower, hello, receiver))
    });
    let failed = |_| Refusal::busy("the run cannot be followed just now");
    let (follower, hello, receiver) = begin.await.map_err(failed)??;
    tokio::spawn(follower.send_events());
    Ok(events::answer(hello, receiver, room))
}
